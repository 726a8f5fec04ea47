"""The events of a run in order, from its submissions, its attempts' journals and their ends.

From the same files: the launches of a job script, the ranks that run now, the rate at which data was staged, and where
the time of a run went. Goodput is "the fraction of elapsed time during which a training job is making useful progress"
(docs.nvidia.com, Cluster Readiness Engine): here, that of steps that no later attempt or round repeated.
"""

from __future__ import annotations

import contextlib
import dataclasses
import shlex
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, Optional, Union

from serried.base import NamedTuple
from serried.base.files import numbers, read_journal, read_json
from serried.base.text import iso, maker, seconds_of, spell
from serried.records import index
from serried.records.logs import launch_order
from serried.records.record import Record, RecordUnreadable, jobs_text
from serried.schema import exits, names
from serried.schema.checks import CheckResults, Finding
from serried.schema.codec import known
from serried.schema.endings import End, documents_in, launch_documents, outputs_left_out
from serried.schema.events import ItemOrigin, JournalEvent
from serried.schema.layout import AttemptDirectory, TaskDirectory
from serried.schema.reasons import Reason

if TYPE_CHECKING:
    from serried.schema.series import DoneStep

_REASONS: Mapping[str, str] = {
    Reason.FAILURE: "a rank failed",
    Reason.LIMIT: "the time limit is near",
    Reason.PREEMPT: "the scheduler preempts the job",
    Reason.USER: "requested",
    Reason.PROFILED: "the steps are profiled",
    Reason.CANCEL: "cancelled through the scheduler",
    Reason.SILENCE: "no rank wrote any output for too long",
    Reason.LOST: "a node was lost",
    Reason.LAUNCHER: "the launcher failed",
}

_FROM = {
    ItemOrigin.SOURCE: "from the source",
    ItemOrigin.PEER: "from the node before it",
    ItemOrigin.CACHE: "from its own disk",
}
_MOST_LAUNCHES = 20
_LONGEST = 200
"""Characters of a command."""
_MOST_NODES = 64
"""Of more nodes, one event tells how many are ready, and only the journals of a few are read."""
_FEW_NODES = 8
_ALIKE: Mapping[str, str] = {
    JournalEvent.CONNECTED: "are ready",
    JournalEvent.STARTED: "have started their ranks",
    JournalEvent.NODE_LOST: "were lost",
}
_LOOKED_AT = 40
"""Runs that are read at most: each costs a few small files on a shared file system."""
_ENOUGH_BYTES = 10_000_000
_COPIED = (ItemOrigin.SOURCE, ItemOrigin.PEER)
"""The origins of an item that was copied."""

HANG_SECONDS, HANG_GAPS = 60.0, 5
"""A failed round that made no step for so long, and for so many times its longest gap, had hung."""
_LOSSES = (Reason.FAILURE, Reason.LOST, Reason.SILENCE, Reason.LAUNCHER)
"""Reasons of stops that cut off a step."""
_FAILURES = (JournalEvent.RANK_FAILED, JournalEvent.NODE_LOST)


Entry = Mapping[str, Any]
"""Of a journal."""
_Line = tuple[float, str]
Ending = tuple[str, str, Optional[float]]
"""State, message and time."""


@dataclass(frozen=True)
class Event:
    t: float
    text: str
    attempt: int | None = None

    def to_json(self) -> dict[str, Any]:
        return {"time": iso(self.t), "attempt": self.attempt, "event": self.text}


@dataclass(frozen=True)
class AttemptRecord:
    """One execution of a run, by its files."""

    directory: AttemptDirectory
    claim: Mapping[str, Any]
    end: End | None

    @property
    def number(self) -> int:
        return self.directory.number

    @property
    def started(self) -> float | None:
        started = self.claim.get("started")
        return float(started) if isinstance(started, (int, float)) else None

    def to_json(self) -> dict[str, Any]:
        return {
            "attempt": self.number,
            "directory": str(self.directory.path),
            "host": self.claim.get("host"),
            "job": self.claim.get("job"),
            "started": iso(self.started),
            "exit": self.end and self.end.to_json(),
            "checks": [finding.to_json() for finding in findings(self.directory)],
        }


def attempts(directory: TaskDirectory) -> list[AttemptRecord]:
    """All attempts, the first one first."""
    found = [directory.attempt(number) for number in numbers(directory.attempts)]
    return [AttemptRecord(it, read_json(it.claim) or {}, End.read_known(it.exit)) for it in found]


def timeline(record: Record, task: int | None = None, ending: Ending | None = None) -> list[Event]:
    """All known events, the earliest first. Clocks of nodes may differ a little.

    `ending` is that of the run or task: its last attempt may have intended another one that never began.
    """
    every = attempts(record.where.task(task))
    last_of = {str(attempt.claim.get("token")).rpartition("-")[2]: attempt.number for attempt in every}
    following: dict[int | None, list[Event]] = {}
    for number, event in _submitted(record, task):
        following.setdefault(last_of.get(str(number - 1)), []).append(event)
    events = following.pop(None, [])
    for attempt in every:
        lines = [*_journal_lines(attempt.directory, record.summary.job_nodes)]
        if attempt.started is not None:
            lines.insert(0, (attempt.started, f"attempt {attempt.number} began on {attempt.claim.get('host', '?')}"))
        if record.summary.script:
            lines += _launch_lines(attempt.directory, record.summary.nodes)
        own = [Event(t, text, attempt.number) for t, text in lines]
        to_the_second = following.get(attempt.number, [])
        ended = seconds_of(attempt.end.ended) if attempt.end else None
        if attempt.end and ended is not None:
            how = ", ".join(filter(None, (attempt.end.state, attempt.end.message)))
            to_the_second.append(Event(ended, f"attempt {attempt.number} ended: {how}", attempt.number))
        for event in to_the_second:
            in_it = [earlier.t for earlier in own if 0 <= earlier.t - event.t < 1]
            own.append(replace(event, t=max([event.t, *in_it])))  # it came after those
        events += own
    events.sort(key=lambda event: event.t)
    last = every[-1].end if every else None
    if ending is not None and last is not None and last.state not in ("", ending[0]):
        state, message, since = ending
        at = max([since or 0.0, *(event.t for event in events)])
        events.append(Event(at, f"no further attempt began; the run ended {state}{f': {message}' if message else ''}"))
    return events


def _submitted(record: Record, task: int | None) -> Iterator[tuple[int, Event]]:
    """The number of each submission, and the second in which it was made."""
    for submission in record.submissions_of(task):
        at = seconds_of(submission.at)
        if at is None:
            continue
        if not submission.is_submitted:
            text = f"submission {submission.number}: {submission.state}"
        elif submission.number == 1:
            text = f"submitted to {submission.cluster} as {jobs_text(submission.jobs)}"
        elif submission.moved:
            text = f"too early: queued again as job {submission.job}, behind its dependencies"
        else:
            text = f"job {submission.job} was submitted to continue after it"
        yield submission.number, Event(at, text)


def _launch_lines(attempt: AttemptDirectory, nodes: int) -> Iterator[_Line]:
    """The newest launches of a job script, without those that ranks of launches started; and programs that failed."""
    own = [launch for launch in launches(attempt, nodes) if "." not in launch.launch]
    for launch in own[-_MOST_LAUNCHES:]:
        name, failed = f"launch {launch.launch}", launch.first_failed
        yield launch.began, f"{name} began: {launch.command}"
        if failed is not None:
            how = exits.how(failed.get("exit_code"), failed.get("signal"), is_named=True)
            yield float(failed["t"]), f"{names.rank_name(failed['rank'])} of {name} on {failed['host']} {how}"
        if launch.ended is not None:
            yield launch.ended, f"{name} ended" + ("" if launch.status is None else f" with status {launch.status}")
    # Programs that are no launchers, and whose failure the script did not handle.
    launched = {document.get("call") for document in launch_documents(attempt.launches)}
    failures = [
        failure
        for failure in documents_in(attempt.launches / "failures")
        if not any(failure.get(fact) for fact in ("handled", "signalled", "within"))
        if failure.get("call") not in launched
    ]
    for failure in sorted(failures, key=lambda failure: float(failure["time"]))[:_MOST_LAUNCHES]:
        command = shlex.join([str(failure.get("name")), *map(str, failure.get("argv") or ())])[:_LONGEST]
        yield float(failure["time"]), f"`{command}` failed with status {int(failure['status'])}"


def _journal_lines(attempt: AttemptDirectory, nodes: int) -> Iterator[_Line]:
    """Of many nodes, one line for all that do the same, and the journals of a few."""
    head, are_many = read_journal(attempt.events), nodes > _MOST_NODES
    hosts, chosen = _hosts(head), [*range(nodes)]
    yield from _lines((entry for entry in head if not are_many or entry.get("event") not in _ALIKE), _OF_HEAD)
    if are_many:
        for event, what in _ALIKE.items():
            alike = [entry for entry in head if entry.get("event") == event]
            times = [float(entry["t"]) for entry in alike if isinstance(entry.get("t"), (int, float))]
            if times:
                yield max(times), f"{len(times):,} of {nodes:,} nodes {what}"
            if event == JournalEvent.NODE_LOST:
                yield from _lines(alike[:_FEW_NODES], _OF_HEAD)
        failed = [entry["node"] for entry in head if entry.get("event") in _FAILURES and "node" in entry]
        chosen = [node for node in dict.fromkeys([0, *failed]) if isinstance(node, int)][:_FEW_NODES]
    for node in chosen:
        journal, host = read_journal(attempt.node_events(node)), hosts.get(node, f"node {node}")
        # One line for all ranks of a node, at the time when each had started once.
        first_starts: dict[Any, float] = {}
        for entry in journal if not are_many else ():
            if entry.get("event") == JournalEvent.STARTED and isinstance(entry.get("t"), (int, float)):
                first_starts.setdefault(entry.get("rank"), float(entry["t"]))
        if first_starts:
            ranks = sorted(rank for rank in first_starts if isinstance(rank, int))
            which = f"ranks {ranks[0]}-{ranks[-1]}" if ranks else "ranks"
            which = names.rank_name(ranks[0]) if len(ranks) == 1 else which
            yield [*first_starts.values()][-1], f"{which} started on {host}"
        yield from _lines(journal, _OF_NODE, host)


def _hosts(head: Iterable[Entry]) -> dict[Any, str]:
    """The name of each node, by its number."""
    connected = (entry for entry in head if entry.get("event") == JournalEvent.CONNECTED)
    return {entry.get("node"): str(entry.get("host")) for entry in connected}


def _resuming(_: str, entry: Entry) -> str | None:
    resume = entry.get("resume")
    return f"ranks resume from {PurePath(resume).name}" if isinstance(resume, str) and resume else None


def _stopping(_: str, entry: Entry) -> str:
    because, reason = entry.get("because"), str(entry.get("reason"))
    what = "stop notice" if entry.get("save") else "stopping"
    return f"{what}: {_REASONS.get(reason, reason)}" + (f" ({because})" if because else "")


def _image(host: str, entry: Entry) -> str:
    if entry.get("problem"):
        return f"{host} runs the shared image, without a copy on its own disk: {entry['problem']}"
    if not entry.get("bytes"):
        return f"{host} has a copy of the image on its own disk already"
    return f"{host} copied the image to its own disk in {entry.get('seconds')} s"


def _item_staged(host: str, entry: Entry) -> str:
    item, origin = entry.get("item"), entry.get("origin")
    if origin == ItemOrigin.IN_PLACE:
        return f"{host} uses {item} where it is: {entry.get('because') or 'it has no disk of its own'}"
    text = f"{host} has {item} {_FROM.get(str(origin), str(origin))}"
    if origin == ItemOrigin.CACHE and not entry["bytes"]:  # unpacked before, from an archive elsewhere
        return text
    return f"{text}: {spell(int(entry['bytes']))} in {entry.get('seconds')} s"


def _staging_problem(host: str, entry: Entry) -> str:
    item = f"in {entry['item']}, " if entry.get("item") else ""
    return f"{host}: {item}{entry.get('problem')}"


def _rank_failed(host: str, entry: Entry) -> str | None:
    """None for a rank that succeeded, or that Serried ended."""
    if entry.get("ended_by_us") or entry.get("exit_code") == 0:
        return None
    how = exits.how(entry.get("exit_code"), entry.get("signal"), is_named=True)
    again = ", and is restarted" if entry["event"] == JournalEvent.RANK_RESTARTED else ""
    return f"{names.rank_name(entry.get('rank'))} on {host} {how}{again}"


_Texts = Mapping[str, Union[str, Callable[[str, Entry], Optional[str]]]]
"""The text of an entry by its event, from its own facts and the name of the host; entries of others are left out."""
_OF_HEAD: _Texts = {
    JournalEvent.CONNECTED: "node {node} ({host}) is ready",
    JournalEvent.NODE_LOST: "node {node} ({host}) was lost",
    JournalEvent.SPARE_LOST: "spare node {node} ({host}) was lost",
    JournalEvent.STOPPING: _stopping,
    JournalEvent.STARTING_RANKS: _resuming,
    JournalEvent.ROUND: "round {round}: the ranks start again, because {message}",
    JournalEvent.LAUNCH_FAILED: "the launch failed: {message}",
    JournalEvent.RANKS_UNCONNECTED: "warning: {message}",
    JournalEvent.ANOMALY: "warning: {message}",
    JournalEvent.STAGED: lambda _, entry: (
        f"every node has its data: {spell(int(entry['bytes']))} after {entry.get('seconds')} s"
    ),
    JournalEvent.ENDING_LAUNCH: (
        "ending launch {launch}: its other ranks cannot continue without rank {rank} on {host}"
    ),
}
_OF_NODE: _Texts = {
    JournalEvent.IMAGE: _image,
    JournalEvent.ITEM_STAGED: _item_staged,
    JournalEvent.STAGING_WAITS: lambda host, entry: (
        f"{host} waits for {entry.get('item')}: {maker(str(entry.get('run') or ''))} is copying it to this node"
    ),
    JournalEvent.STAGING_PROBLEM: _staging_problem,
    JournalEvent.STAGING_ALONE: ("{host} reads from the source, because the node before it cannot serve: {because}"),
    JournalEvent.STAGING_REFUSED: "{host} refused a request for data from {address}: {because}",
    JournalEvent.LAUNCHED_RANKS_HAVE_NO_LOGS: "{host}: ranks of the script have no logs here: {because}",
    JournalEvent.STAGE_OUT_PROBLEM: "{host}: {message}",
    JournalEvent.STAGE_OUT_ENDED: lambda host, entry: "; ".join(f"{host}: {text}" for text in outputs_left_out(entry)),
    JournalEvent.RANK_EXIT: _rank_failed,
    JournalEvent.RANK_RESTARTED: _rank_failed,
}


def _lines(journal: Iterable[Entry], texts: _Texts, host: str | None = None) -> Iterator[_Line]:
    """The entries that have a text and a time. `host` is that of the journal; each entry of the head has its own."""
    for entry in journal:
        text, its_host = texts.get(str(entry.get("event"))), host or str(entry.get("host"))
        if callable(text):
            text = text(its_host, entry)
        elif text:
            text = text.format_map(defaultdict(lambda: None, entry, host=its_host))
        if text and isinstance(entry.get("t"), (int, float)):
            yield float(entry["t"]), text


def findings(attempt: AttemptDirectory | None) -> list[Finding]:
    """The results of the checks of an attempt's nodes, from the head's journal."""
    entries = read_journal(attempt.events) if attempt else []
    parts = (
        known(CheckResults, {"part": "", **entry}) for entry in entries if entry.get("event") == JournalEvent.CHECKED
    )
    return [finding for part in parts for finding in part.findings]


@dataclass(frozen=True)
class ScriptLaunch:
    """A call of a launcher in a job script."""

    launch: str
    """`2`; `1.2` is the second launch inside a rank of launch 1."""
    argv: tuple[str, ...]
    untouched: str | None
    """Why its ranks have no logs of their own."""
    began: float
    ranks: int
    """Those that have started."""
    nodes: tuple[str, ...]
    ended: float | None
    status: int | None
    """Of the launcher; None while it runs, and if nothing shows it."""
    handled: bool
    """The script handled its failure."""
    first_failed: Entry | None
    """The end of the rank that failed first."""

    @property
    def command(self) -> str:
        return shlex.join(self.argv)

    def to_json(self) -> dict[str, Any]:
        failed = self.first_failed
        return {
            "launch": self.launch,
            "argv": list(self.argv),
            "untouched": self.untouched,
            "began": iso(self.began),
            "ended": iso(self.ended),
            "ranks": self.ranks,
            "nodes": list(self.nodes),
            "exit_code": self.status,
            "handled": self.handled,
            "first_failed": failed and {name: failed.get(name) for name in ("rank", "host", "exit_code", "signal")},
        }


def launches(attempt: AttemptDirectory, nodes: int) -> list[ScriptLaunch]:
    """All launches of an attempt, in the order of their ids. Several ranks may have started the same launch."""
    documents: dict[str, list[Mapping[str, Any]]] = {}
    for document in launch_documents(attempt.launches):
        documents.setdefault(str(document["launch"]), []).append(document)
    if not documents:
        return []
    failures = {document["call"]: document for document in documents_in(attempt.launches / "failures")}
    hosts = _hosts(read_journal(attempt.events))
    ranks: dict[str, list[Entry]] = {}
    for node in range(nodes):
        for entry in read_journal(attempt.node_events(node)):
            if entry.get("event") in (JournalEvent.LAUNCHED_RANK_STARTED, JournalEvent.LAUNCHED_RANK_ENDED):
                own = {**entry, "host": hosts.get(node, f"node {node}")}
                ranks.setdefault(str(entry.get("launch")), []).append(own)
    return [
        _launch(
            documents[launch][0],
            ranks.get(launch, []),
            [failures[document["call"]] for document in documents[launch] if document.get("call") in failures],
        )
        for launch in sorted(documents, key=launch_order)
    ]


def _launch(
    document: Mapping[str, Any], entries: Sequence[Entry], failures: Sequence[Mapping[str, Any]]
) -> ScriptLaunch:
    started = [entry for entry in entries if entry["event"] == JournalEvent.LAUNCHED_RANK_STARTED]
    ends = [entry for entry in entries if entry["event"] == JournalEvent.LAUNCHED_RANK_ENDED]
    failed = [entry for entry in ends if entry.get("exit_code") or entry.get("signal")]
    have_ended = bool(started) and len(ends) == len(started)
    status = int(failures[0]["status"]) if failures else 0 if have_ended and not failed else None
    by_themselves = [entry for entry in failed if not entry.get("ended_by_us")]
    times = [float(entry["t"]) for entry in ends if have_ended] + [float(failure["time"]) for failure in failures]
    return ScriptLaunch(
        launch=str(document["launch"]),
        argv=(str(document.get("name")), *map(str, document.get("argv") or ())),
        untouched=document.get("untouched"),
        began=float(document["time"]),
        ranks=len(started),
        nodes=tuple(dict.fromkeys(entry["host"] for entry in sorted(started, key=lambda entry: entry["rank"]))),
        ended=max(times, default=None),
        status=status,
        handled=bool(failures) and all(failure.get("handled") for failure in failures),
        first_failed=min(
            by_themselves, key=lambda entry: (bool(entry.get("stumbled")), entry["t"], entry["rank"]), default=None
        ),
    )


@dataclass(frozen=True)
class TimeSpent:
    """In seconds."""

    steps: float = 0.0
    """Steps that no later attempt or round repeated, with evaluations and saves in between."""
    queue: float = 0.0
    start: float = 0.0
    """Agents, data, imports and the checkpoint, up to the first step."""
    check: float = 0.0
    """Ranks waited for checks of the nodes."""
    hang: float = 0.0
    """Silence of ranks or of a node, until it was noticed."""
    repeated: float = 0.0
    """Steps that were done again later, and those that a failure cut off."""
    stop: float = 0.0
    """From a failure, a stop notice or the last step until ranks start again or the attempt ends."""
    unknown: float = 0.0
    """Ranks ran, but logged no steps."""

    @property
    def total(self) -> float:
        return float(sum(dataclasses.astuple(self)))

    @property
    def goodput(self) -> float | None:
        """The share of all time; None if the steps are not known."""
        return None if self.unknown or not self.total else self.steps / self.total

    @property
    def goodput_without_queue(self) -> float | None:
        return dataclasses.replace(self, queue=0.0).goodput

    @property
    def lost(self) -> dict[str, float]:
        """By cause, the largest first."""
        causes = dataclasses.asdict(self)
        del causes["steps"], causes["unknown"]
        return {name: causes[name] for name in sorted(causes, key=causes.__getitem__, reverse=True) if causes[name] > 0}

    def to_json(self) -> dict[str, Any]:
        parts = {f"{name}_seconds": round(value, 3) for name, value in dataclasses.asdict(self).items()}
        shares = {"goodput": self.goodput, "goodput_without_queue": self.goodput_without_queue}
        return {"total_seconds": round(self.total, 3), **parts, **shares}

    @classmethod
    def from_json(cls, value: object) -> TimeSpent | None:
        """None for what is not a summary of `to_json`."""
        found = value if isinstance(value, dict) else {}
        known = {each.name: found.get(f"{each.name}_seconds") for each in fields(cls)}
        given = {name: float(seconds) for name, seconds in known.items() if isinstance(seconds, (int, float))}
        return cls(**given) if len(given) == len(known) else None


class AttemptTimes(NamedTuple):
    started: float
    ended: float | None
    """None while it runs."""
    events: Sequence[Mapping[str, Any]]
    """Of the head's journal, each with a time."""
    steps: Sequence[DoneStep] = ()


@dataclass
class _Walk:
    """Through the time from `at` to `end`, in one direction: clocks of nodes differ a little."""

    at: float
    end: float
    spent: dict[str, float] = field(default_factory=dict)

    def until(self, t: float, cause: str) -> None:
        t = min(t, self.end)
        if t > self.at:
            self.spent[cause] = self.spent.get(cause, 0.0) + t - self.at
            self.at = t

    def wait_until(self, t: float, cause: str, events: Sequence[Mapping[str, Any]]) -> None:
        """Checks beside the copying of data cost nothing."""
        staged = max((it["t"] for it in events if it.get("event") == JournalEvent.STAGED and it["t"] <= t), default=0.0)
        for checked in events:
            if checked.get("event") == JournalEvent.CHECKED and self.at < checked["t"] <= t:
                self.until(max(checked["t"] - float(checked.get("seconds") or 0.0), staged), cause)
                self.until(checked["t"], "check")
        self.until(t, cause)


def time_spent(submitted: float, end: float, attempts: Sequence[AttemptTimes], *, has_ended: bool) -> TimeSpent:
    """From `submitted` to `end`, which is the end of the run, or now."""
    walk = _Walk(submitted, end)
    pace = _pace(attempts)
    for attempt in attempts:
        walk.until(attempt.started, "queue")
        begun = [it["t"] for it in attempt.events if it.get("event") == JournalEvent.STARTING_RANKS]
        if not begun and (attempt.steps or not attempt.events):  # the journal is lost
            begun = [attempt.started]
        for go, until in zip(begun, [*begun[1:], end if attempt.ended is None else attempt.ended]):
            walk.wait_until(go, "stop" if go != begun[0] else "start", attempt.events)
            first, last = go == begun[0], until not in begun  # the end is known to the second
            inside = [it for it in attempt.events if it["t"] >= go and (last or it["t"] <= until)]
            steps = [it for it in attempt.steps if (first or it.t >= go) and (last or it.t < until)]
            _run(walk, inside, steps, until, pace)
        if attempt.ended is not None:
            walk.wait_until(attempt.ended, "stop" if begun else "start", attempt.events)
        else:
            walk.until(end, "start")
    walk.until(end, "stop" if attempts and has_ended else "queue")
    return TimeSpent(**walk.spent)


def _run(
    walk: _Walk, events: Sequence[Mapping[str, Any]], steps: Sequence[DoneStep], until: float, pace: float | None
) -> None:
    """The time of a round's ranks, until they end or are to end."""
    stop = next((it for it in events if it.get("event") in (JournalEvent.STOPPING, *_FAILURES)), None)
    ended = next((it["t"] for it in events if it.get("event") == JournalEvent.ALL_RANKS_ENDED), until)
    is_loss = stop is not None and (stop.get("event") in _FAILURES or stop.get("reason") in _LOSSES)
    tail_ends = ended if stop is None else stop["t"]
    if pace is None:
        walk.until(tail_ends, "unknown")
        return
    if steps:
        walk.until(steps[0].t - pace * steps[0].steps, "start")
    elif stop is not None or tail_ends == walk.end:
        walk.until(tail_ends, "start")
    gaps = [HANG_SECONDS / HANG_GAPS]
    for step in steps:
        gaps.append(step.t - walk.at)
        walk.until(step.t, "steps" if step.is_kept else "repeated")
    if is_loss and stop is not None:
        is_silent = stop.get("event") == JournalEvent.NODE_LOST or stop.get("reason") in (Reason.SILENCE, Reason.LOST)
        walk.until(tail_ends, "hang" if is_silent or tail_ends - walk.at > HANG_GAPS * max(gaps) else "repeated")
    walk.until(tail_ends, "steps")


def _pace(attempts: Sequence[AttemptTimes]) -> float | None:
    """The usual seconds of a step; None without steps."""
    every = [step for attempt in attempts for step in attempt.steps]
    pairs = zip(every, every[1:])
    gaps = [(b.t - a.t) / b.steps for a, b in pairs if b.step - a.step == b.steps and b.t > a.t]
    return statistics.median(gaps) if gaps else 0.0 if every else None


def time_spent_of(record: Record, task: int | None, *, now: float, ended: float | None) -> TimeSpent | None:
    """Of a run or a task. `ended` is None before its end. None before its first attempt, and without its files."""
    place = record.where.task(task)
    submitted = next((seconds_of(each.at) for each in record.submissions_of(task) if each.is_submitted), None)
    found: list[AttemptTimes] = []
    files: dict[Path, int] = {}
    every = attempts(place)
    for each in every:
        events = [it for it in read_journal(each.directory.events) if isinstance(it.get("t"), (int, float))]
        end = seconds_of(each.end.ended) if each.end else None
        if end is None and (each is not every[-1] or ended is not None):  # nothing recorded how it ended
            end = max((it["t"] for it in events), default=each.started)
        if each.started is not None:
            gos = [it for it in events if it.get("event") == JournalEvent.STARTING_RANKS]
            nodes = [(it.get("nodes") or [0])[0] for it in gos] or [0]  # of rank 0
            files.update((each.directory.metrics(node, 0), len(found)) for node in nodes)
            found.append(AttemptTimes(each.started, end, events))
    if submitted is None or not found:
        kept = read_json(record.directory.usage) if task is None and not every else None
        return TimeSpent.from_json(kept.get("time")) if kept else None
    from serried.schema import series  # not before an attempt

    steps = series.done(files.items())
    times = [each._replace(steps=[it for it in steps if it.attempt == at]) for at, each in enumerate(found)]
    return time_spent(submitted, now if ended is None else ended, times, has_ended=ended is not None)


class RankProcess(NamedTuple):
    rank: int
    node: int
    pid: int
    launch: str = ""
    """The launch in a job script that started it."""


_BEGIN = (JournalEvent.STARTED, JournalEvent.LAUNCHED_RANK_STARTED)
_END = (JournalEvent.RANK_EXIT, JournalEvent.LAUNCHED_RANK_ENDED, JournalEvent.RANK_EXCUSED)


def running(attempt: AttemptDirectory) -> list[RankProcess]:
    """The ranks that have started and not ended, by number; of several launches the newest comes first.

    The user's job script comes last: the head starts it on the first node.
    """
    alive: dict[tuple[str, int, int], RankProcess] = {}
    for path in sorted(attempt.path.glob("node-*/events.jsonl")):
        node = path.parent.name.removeprefix("node-")
        for event in read_journal(path) if node.isdecimal() else ():
            kind, rank, pid = event.get("event"), event.get("rank"), event.get("pid")
            if not isinstance(rank, int) or kind not in (*_BEGIN, *_END):
                continue
            key = (str(event.get("launch") or ""), rank, int(node))
            if kind in _BEGIN:
                alive[key] = RankProcess(rank, int(node), pid if isinstance(pid, int) else 0, key[0])
            else:
                alive.pop(key, None)
    started = [event.get("pid") for event in read_journal(attempt.events) if event.get("event") == JournalEvent.STARTED]
    script = [RankProcess(names.SCRIPT_RANK, 0, pid) for pid in started if isinstance(pid, int)][-1:]
    newest_first = [*reversed(alive.values()), *script]
    return sorted(newest_first, key=lambda process: (process.rank == names.SCRIPT_RANK, process.rank))


@dataclass(frozen=True)
class StagingRate:
    bytes_per_second: float
    run: str
    """The run that measured it."""


def staging_rate(cluster: str) -> StagingRate | None:
    """The rate of the newest run on `cluster` that copied enough; None without such a run."""
    on_cluster: list[tuple[str, Record]] = []
    for record in index.records():
        with contextlib.suppress(RecordUnreadable):
            if record.summary.cluster == cluster:
                on_cluster.append((record.summary.created, record))
    for _, record in sorted(on_cluster, key=lambda pair: pair[0], reverse=True)[:_LOOKED_AT]:
        newest = numbers(record.where.attempts)[-1:]
        journals = [read_journal(record.where.attempt(number).node_events(0)) for number in newest]
        items = [it for journal in journals for it in journal if it["event"] == JournalEvent.ITEM_STAGED]
        copied = [(it["bytes"], it["seconds"]) for it in items if it["origin"] in _COPIED]
        size, seconds = sum(size for size, _ in copied), sum(seconds for _, seconds in copied)
        if size >= _ENOUGH_BYTES and seconds > 0:
            return StagingRate(size / seconds, record.id)
    return None
