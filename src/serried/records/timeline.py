"""The events of a run in order, from its submissions, its attempts' journals and their ends.

From the same files: the launches of a job script, the ranks that run now, and the rate at which data was staged.
"""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import Any, NamedTuple

from serried.base.files import read_journal, read_json
from serried.base.text import iso, maker, seconds_of, spell
from serried.records import index
from serried.records.logs import launch_order
from serried.records.record import Record, RecordUnreadable, jobs_text, read_exit
from serried.records.status import Verdict, attempt_numbers, latest_attempt
from serried.schema import exits, names
from serried.schema.endings import outputs_left_out
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

    number: int
    directory: AttemptDirectory
    claim: Mapping[str, Any]
    exit: Mapping[str, Any]

    @property
    def state(self) -> str | None:
        state = self.exit.get("state")
        return str(state) if state is not None else None

    def to_json(self) -> dict[str, Any]:
        started = self.claim.get("started")
        return {
            "attempt": self.number,
            "directory": str(self.directory.path),
            "host": self.claim.get("host"),
            "job": self.claim.get("job"),
            "started": iso(started) if isinstance(started, int | float) else None,
            "exit": dict(self.exit) or None,
        }


def attempts(directory: TaskDirectory) -> list[AttemptRecord]:
    """All attempts, the first one first."""
    found: list[AttemptRecord] = []
    for number in attempt_numbers(directory):
        attempt = directory.attempt(number)
        found.append(AttemptRecord(number, attempt, read_json(attempt.claim) or {}, read_exit(attempt.exit) or {}))
    return found


def timeline(record: Record, task: int | None = None, end: Verdict | None = None) -> list[Event]:
    """All known events, the earliest first. Clocks of nodes may differ a little.

    `end` is the verdict on the run or task: its last attempt may have intended another one that never began.
    """
    known = attempts(record.where.task(task))
    last_of = {str(attempt.claim.get("token")).rpartition("-")[2]: attempt.number for attempt in known}
    following: dict[int | None, list[Event]] = {}
    for number, event in _submitted(record, task):
        following.setdefault(last_of.get(str(number - 1)), []).append(event)
    events = following.pop(None, [])
    for attempt in known:
        own = [*_began(attempt), *_journals(attempt, record.summary.nodes)]
        if record.summary.script:
            own += _launched(attempt, record.summary.nodes)
        for whole_second in (*following.get(attempt.number, ()), *_end_of(attempt)):
            in_it = [event.t for event in own if 0 <= event.t - whole_second.t < 1]
            own.append(replace(whole_second, t=max([whole_second.t, *in_it])))  # it came after those
        events += own
    events.sort(key=lambda event: event.t)
    if end is not None and end.has_ended and known and known[-1].state not in (None, end.state):
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


def _began(attempt: AttemptRecord) -> Iterator[Event]:
    started = attempt.claim.get("started")
    if isinstance(started, int | float):
        text = f"attempt {attempt.number} began on {attempt.claim.get('host', '?')}"
        yield Event(float(started), text, attempt.number)


def _end_of(attempt: AttemptRecord) -> Iterator[Event]:
    """Of the end too, only the second is known."""
    ended = seconds_of(attempt.exit.get("ended"))
    if ended is not None:
        message = attempt.exit.get("message")
        text = f"attempt {attempt.number} ended: {attempt.state}" + (f", {message}" if message else "")
        yield Event(ended, text, attempt.number)


def _launched(attempt: AttemptRecord, nodes: int) -> Iterator[Event]:
    """The newest launches of a job script, without those that ranks of launches started."""
    number = attempt.number
    own = [launch for launch in launches(attempt.directory, nodes) if "." not in launch.launch]
    for launch in own[-_MOST_LAUNCHES:]:
        name = f"launch {launch.launch}"
        yield Event(launch.began, f"{name} began: {launch.command}", number)
        failed = launch.first_failed
        if failed is not None:
            yield Event(failed.t, f"{names.rank_name(failed.rank)} of {name} on {failed.host} {failed.how}", number)
        if launch.ended is not None:
            status = "" if launch.status is None else f" with status {launch.status}"
            yield Event(launch.ended, f"{name} ended{status}", number)
    for program in failed_programs(attempt.directory)[:_MOST_LAUNCHES]:
        command = shlex.join(program.argv)[:_LONGEST]
        yield Event(program.t, f"`{command}` failed with status {program.status}", number)


def _journals(attempt: AttemptRecord, nodes: int) -> Iterator[Event]:
    number, are_many = attempt.number, nodes > _MOST_NODES
    head = read_journal(attempt.directory.events)
    hosts = _hosts(head)
    if are_many:
        yield from _of_many(head, number, nodes)
        failing = (JournalEvent.RANK_FAILED, JournalEvent.NODE_LOST)
        failed = [entry["node"] for entry in head if entry.get("event") in failing and "node" in entry]
        chosen = [node for node in dict.fromkeys([0, *failed]) if isinstance(node, int)][:_FEW_NODES]
    else:
        yield from _told(head, number, _head_text)
        chosen = [*range(nodes)]
    for node in chosen:
        journal, host = read_journal(attempt.directory.node_events(node)), hosts.get(node, f"node {node}")
        if not are_many:
            yield from _started(journal, number, host)
        yield from _told(journal, number, lambda entry, host=host: _node_text(host, entry))  # type: ignore[misc]


def _hosts(head: Iterable[Mapping[str, Any]]) -> dict[Any, str]:
    """The name of each node, by its number."""
    connected = (entry for entry in head if entry.get("event") == JournalEvent.CONNECTED)
    return {entry.get("node"): str(entry.get("host")) for entry in connected}


def _of_many(head: Sequence[Mapping[str, Any]], number: int, nodes: int) -> Iterator[Event]:
    """The events of the head, but one for all nodes that do the same."""
    yield from _told((entry for entry in head if entry.get("event") not in _ALIKE), number, _head_text)
    for event, what in _ALIKE.items():
        alike = [entry for entry in head if entry.get("event") == event]
        times = [float(entry["t"]) for entry in alike if isinstance(entry.get("t"), int | float)]
        if times:
            yield Event(max(times), f"{len(times):,} of {nodes:,} nodes {what}", number)
        if event == JournalEvent.NODE_LOST:
            yield from _told(alike[:_FEW_NODES], number, _head_text)


def _told(
    journal: Iterable[Mapping[str, Any]], number: int, text_of: Callable[[Mapping[str, Any]], str | None]
) -> Iterator[Event]:
    """The entries of a journal that have a text and a time."""
    for entry in journal:
        text = text_of(entry)
        if text and isinstance(entry.get("t"), int | float):
            yield Event(float(entry["t"]), text, number)


def _head_text(entry: Mapping[str, Any]) -> str | None:
    text_of = _OF_HEAD.get(str(entry.get("event")))
    return text_of(entry) if text_of else None


def _node_text(host: str, entry: Mapping[str, Any]) -> str | None:
    text_of = _OF_NODE.get(str(entry.get("event")))
    return text_of(host, entry) if text_of else None


def _stopping(entry: Mapping[str, Any]) -> str:
    because = entry.get("because")
    reason = _REASONS.get(str(entry.get("reason")), str(entry.get("reason")))
    return f"stopping: {reason}" + (f" ({because})" if because else "")


def _resuming(entry: Mapping[str, Any]) -> str | None:
    resume = entry.get("resume")
    return f"ranks resume from {PurePath(resume).name}" if isinstance(resume, str) and resume else None


def _ending_launch(entry: Mapping[str, Any]) -> str:
    where = f"rank {entry.get('rank')} on {entry.get('host')}"
    return f"ending launch {entry.get('launch')}: its other ranks cannot continue without {where}"


_OF_HEAD: Mapping[str, Callable[[Mapping[str, Any]], str | None]] = {
    JournalEvent.CONNECTED: lambda entry: f"node {entry.get('node')} ({entry.get('host')}) is ready",
    JournalEvent.NODE_LOST: lambda entry: f"node {entry.get('node')} ({entry.get('host')}) was lost",
    JournalEvent.STOPPING: _stopping,
    JournalEvent.STARTING_RANKS: _resuming,
    JournalEvent.LAUNCH_FAILED: lambda entry: f"the launch failed: {entry.get('message')}",
    JournalEvent.RANKS_UNCONNECTED: lambda entry: f"warning: {entry.get('message')}",
    JournalEvent.ANOMALY: lambda entry: f"warning: {entry.get('message')}",
    JournalEvent.STAGED: lambda entry: (
        f"every node has its data: {spell(int(entry['bytes']))} after {entry.get('seconds')} s"
    ),
    JournalEvent.ENDING_LAUNCH: _ending_launch,
}
"""The text of an entry in the journal of the head, by its event; others are left out."""


def _image(host: str, entry: Mapping[str, Any]) -> str:
    if entry.get("problem"):
        return f"{host} runs the shared image, without a copy on its own disk: {entry['problem']}"
    if not entry.get("bytes"):
        return f"{host} has a copy of the image on its own disk already"
    return f"{host} copied the image to its own disk in {entry.get('seconds')} s"


def _item_staged(host: str, entry: Mapping[str, Any]) -> str:
    item, origin = entry.get("item"), entry.get("origin")
    if origin == ItemOrigin.IN_PLACE:
        return f"{host} uses {item} where it is: {entry.get('because') or 'it has no disk of its own'}"
    text = f"{host} has {item} {_FROM.get(str(origin), str(origin))}"
    if origin == ItemOrigin.CACHE and not entry["bytes"]:  # unpacked before, from an archive elsewhere
        return text
    return f"{text}: {spell(int(entry['bytes']))} in {entry.get('seconds')} s"


def _staging_waits(host: str, entry: Mapping[str, Any]) -> str:
    run = maker(str(entry.get("run") or ""))
    return f"{host} waits for {entry.get('item')}: {run} is copying it to this node"


def _staging_problem(host: str, entry: Mapping[str, Any]) -> str:
    item = f"in {entry['item']}, " if entry.get("item") else ""
    return f"{host}: {item}{entry.get('problem')}"


def _rank_failed(host: str, entry: Mapping[str, Any]) -> str | None:
    """None for a rank that succeeded, or that Serried ended."""
    if entry.get("ended_by_us") or entry.get("exit_code") == 0:
        return None
    how = exits.how(entry.get("exit_code"), entry.get("signal"), is_named=True)
    again = ", and is restarted" if entry["event"] == JournalEvent.RANK_RESTARTED else ""
    return f"{names.rank_name(entry.get('rank'))} on {host} {how}{again}"


_OF_NODE: Mapping[str, Callable[[str, Mapping[str, Any]], str | None]] = {
    JournalEvent.IMAGE: _image,
    JournalEvent.ITEM_STAGED: _item_staged,
    JournalEvent.STAGING_WAITS: _staging_waits,
    JournalEvent.STAGING_PROBLEM: _staging_problem,
    JournalEvent.STAGING_ALONE: lambda host, entry: (
        f"{host} reads from the source, because the node before it cannot serve: {entry.get('because')}"
    ),
    JournalEvent.STAGING_REFUSED: lambda host, entry: (
        f"{host} refused a request for data from {entry.get('address')}: {entry.get('because')}"
    ),
    JournalEvent.LAUNCHED_RANKS_HAVE_NO_LOGS: lambda host, entry: (
        f"{host}: ranks of the script have no logs here: {entry.get('because')}"
    ),
    JournalEvent.STAGE_OUT_PROBLEM: lambda host, entry: f"{host}: {entry.get('message')}",
    JournalEvent.STAGE_OUT_ENDED: lambda host, entry: "; ".join(f"{host}: {text}" for text in outputs_left_out(entry)),
    JournalEvent.RANK_EXIT: _rank_failed,
    JournalEvent.RANK_RESTARTED: _rank_failed,
}
"""The text of an entry in the journal of a node, by its event; others are left out."""


def _started(journal: Iterable[Mapping[str, Any]], number: int, host: str) -> Iterator[Event]:
    """One line for all ranks of a node, at the time when each had started once."""
    first_starts: dict[Any, float] = {}
    for entry in journal:
        if entry.get("event") == JournalEvent.STARTED and isinstance(entry.get("t"), int | float):
            first_starts.setdefault(entry.get("rank"), float(entry["t"]))
    if first_starts:
        ranks = sorted(rank for rank in first_starts if isinstance(rank, int))
        which = names.rank_name(ranks[0]) if len(ranks) == 1 else f"ranks {ranks[0]}-{ranks[-1]}" if ranks else "ranks"
        yield Event([*first_starts.values()][-1], f"{which} started on {host}", number)


@dataclass(frozen=True)
class FailedRank:
    """The rank of a launch that failed first."""

    rank: int
    host: str
    exit_code: int | None
    signal: int | None
    t: float

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> FailedRank:
        return cls(entry["rank"], entry["host"], entry.get("exit_code"), entry.get("signal"), float(entry["t"]))

    @property
    def how(self) -> str:
        return exits.how(self.exit_code, self.signal, is_named=True)

    def to_json(self) -> dict[str, Any]:
        return {"rank": self.rank, "host": self.host, "exit_code": self.exit_code, "signal": self.signal}


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
    first_failed: FailedRank | None

    @property
    def command(self) -> str:
        return shlex.join(self.argv)

    def to_json(self) -> dict[str, Any]:
        return {
            "launch": self.launch,
            "argv": list(self.argv),
            "untouched": self.untouched,
            "began": iso(self.began),
            "ended": None if self.ended is None else iso(self.ended),
            "ranks": self.ranks,
            "nodes": list(self.nodes),
            "exit_code": self.status,
            "handled": self.handled,
            "first_failed": self.first_failed and self.first_failed.to_json(),
        }


def launches(attempt: AttemptDirectory, nodes: int) -> list[ScriptLaunch]:
    """All launches of an attempt, in the order of their ids. Several ranks may have started the same launch."""
    documents: dict[str, list[Mapping[str, Any]]] = {}
    for document in _documents(attempt.launches):
        documents.setdefault(str(document["launch"]), []).append(document)
    if not documents:
        return []
    failures = {document["call"]: document for document in _documents_in(attempt.launches / "failures")}
    entries = _ranks_by_launch(attempt, nodes)
    return [
        _launch(
            documents[launch],
            entries.get(launch, []),
            [failures[document["call"]] for document in documents[launch] if document.get("call") in failures],
        )
        for launch in sorted(documents, key=launch_order)
    ]


@dataclass(frozen=True)
class FailedProgram:
    """A program in a job script that is no launcher, and whose failure the script did not handle."""

    argv: tuple[str, ...]
    status: int
    t: float


def failed_programs(attempt: AttemptDirectory) -> list[FailedProgram]:
    """The earliest first."""
    launched = {document.get("call") for document in _documents(attempt.launches)}
    failures = [
        it for it in _documents_in(attempt.launches / "failures") if not (it.get("handled") or it.get("signalled"))
    ]
    found = [
        FailedProgram((str(it.get("name")), *map(str, it.get("argv") or ())), int(it["status"]), float(it["time"]))
        for it in failures
        if it.get("call") not in launched and not it.get("within")
    ]
    return sorted(found, key=lambda program: program.t)


def _launch(
    documents: Sequence[Mapping[str, Any]], entries: Iterable[Mapping[str, Any]], failures: Sequence[Mapping[str, Any]]
) -> ScriptLaunch:
    document = documents[0]
    by_event: dict[str, list[Mapping[str, Any]]] = {}
    for entry in entries:
        by_event.setdefault(str(entry["event"]), []).append(entry)
    started = by_event.get(JournalEvent.LAUNCHED_RANK_STARTED, [])
    ends = by_event.get(JournalEvent.LAUNCHED_RANK_ENDED, [])
    have_ended = bool(started) and len(ends) == len(started)
    status = int(failures[0]["status"]) if failures else None
    if status is None and have_ended and not any(map(_has_failed, ends)):
        status = 0
    own = [entry for entry in ends if _has_failed(entry) and not entry.get("ended_by_us")]
    first = min(own, key=lambda entry: (bool(entry.get("stumbled")), entry["t"], entry["rank"]), default=None)
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
        first_failed=FailedRank.of(first) if first else None,
    )


def _has_failed(entry: Mapping[str, Any]) -> bool:
    return bool(entry.get("exit_code") or entry.get("signal"))


def _ranks_by_launch(attempt: AttemptDirectory, nodes: int) -> dict[str, list[dict[str, Any]]]:
    """The starts and ends of ranks by launch, each with the name of its node."""
    hosts = _hosts(read_journal(attempt.events))
    found: dict[str, list[dict[str, Any]]] = {}
    for node in range(nodes):
        for entry in read_journal(attempt.node_events(node)):
            if entry.get("event") in (JournalEvent.LAUNCHED_RANK_STARTED, JournalEvent.LAUNCHED_RANK_ENDED):
                host = hosts.get(node, f"node {node}")
                found.setdefault(str(entry.get("launch")), []).append({**entry, "host": host})
    return found


def _documents(folder: Path) -> list[dict[str, Any]]:
    """Of the launches, also of those that ranks of launches started."""
    found = _documents_in(folder)
    for rank in folder.glob("[0-9]*/**/rank-*"):
        found += _documents_in(rank)
    return sorted(found, key=lambda document: float(document["time"]))


def _documents_in(folder: Path) -> list[dict[str, Any]]:
    """The complete documents in a folder."""
    documents = (read_json(path) for path in folder.glob("*.json"))
    return [document for document in documents if document and "time" in document]


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
