"""The events of a run in order, from its submissions, its attempts' journals and their ends.

From the same files: the launches of a job script, the ranks that run now, and the rate at which data was staged.
"""

from __future__ import annotations

import contextlib
import shlex
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any, Optional, Union

from serried.base import NamedTuple
from serried.base.files import read_journal, read_json
from serried.base.text import iso, maker, seconds_of, spell
from serried.records import index
from serried.records.logs import launch_order
from serried.records.record import Record, RecordUnreadable, jobs_text
from serried.records.status import Verdict, attempt_numbers, latest_attempt
from serried.schema import exits, names
from serried.schema.checks import CheckResults, Finding
from serried.schema.codec import known
from serried.schema.endings import End, documents_in, launch_documents, outputs_left_out
from serried.schema.events import ItemOrigin, JournalEvent
from serried.schema.layout import AttemptDirectory, TaskDirectory
from serried.schema.reasons import Reason

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


Entry = Mapping[str, Any]
"""Of a journal."""
_Line = tuple[float, str]


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
    found = [directory.attempt(number) for number in attempt_numbers(directory)]
    return [AttemptRecord(it, read_json(it.claim) or {}, End.read_known(it.exit)) for it in found]


def timeline(record: Record, task: int | None = None, end: Verdict | None = None) -> list[Event]:
    """All known events, the earliest first. Clocks of nodes may differ a little.

    `end` is the verdict on the run or task: its last attempt may have intended another one that never began.
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
    if end is not None and end.has_ended and last is not None and last.state not in ("", end.state):
        message = f": {end.message}" if end.message else ""
        at = max([end.since or 0.0, *(event.t for event in events)])
        events.append(Event(at, f"no further attempt began; the run ended {end.state}{message}"))
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
    hosts = _hosts(head)
    chosen = [*range(max(nodes, len(hosts)))]  # with spare nodes there are more
    yield from _lines((entry for entry in head if not are_many or entry.get("event") not in _ALIKE), _OF_HEAD)
    if are_many:
        for event, what in _ALIKE.items():
            alike = [entry for entry in head if entry.get("event") == event]
            times = [float(entry["t"]) for entry in alike if isinstance(entry.get("t"), (int, float))]
            if times:
                yield max(times), f"{len(times):,} of {nodes:,} nodes {what}"
            if event == JournalEvent.NODE_LOST:
                yield from _lines(alike[:_FEW_NODES], _OF_HEAD)
        failing = (JournalEvent.RANK_FAILED, JournalEvent.NODE_LOST)
        failed = [entry["node"] for entry in head if entry.get("event") in failing and "node" in entry]
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
        attempt = latest_attempt(record.where)
        if attempt is None:
            continue
        items = [it for it in read_journal(attempt.node_events(0)) if it["event"] == JournalEvent.ITEM_STAGED]
        copied = [(it["bytes"], it["seconds"]) for it in items if it["origin"] in _COPIED]
        size, seconds = sum(size for size, _ in copied), sum(seconds for _, seconds in copied)
        if size >= _ENOUGH_BYTES and seconds > 0:
            return StagingRate(size / seconds, record.id)
    return None
