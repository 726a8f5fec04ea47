"""The events of a run in order, from its submissions, its attempts' journals and their ends.

From the same journals: the progress of staging, and its rate.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePath
from typing import Any, NamedTuple

from serried.base.files import read_journal, read_json
from serried.base.text import iso, maker, seconds_of, spell
from serried.records import index
from serried.records.logs import launch_order
from serried.records.record import Record, RecordUnreadable, Submission, jobs_text, read_exit
from serried.records.status import Verdict, attempt_numbers, latest_attempt
from serried.schema import exits, names
from serried.schema.events import ItemOrigin, JournalEvent
from serried.schema.layout import AttemptDirectory, TaskDirectory
from serried.schema.missing_outputs import left_out
from serried.schema.names import SCRIPT_RANK
from serried.schema.reasons import Reason


@dataclass(frozen=True)
class FailedRank:
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
    hosts = {
        entry.get("node"): str(entry.get("host"))
        for entry in read_journal(attempt.events)
        if entry.get("event") == JournalEvent.CONNECTED
    }
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


_BEGIN = (JournalEvent.STARTED, JournalEvent.LAUNCHED_RANK_STARTED)
_END = (JournalEvent.RANK_EXIT, JournalEvent.LAUNCHED_RANK_ENDED, JournalEvent.RANK_EXCUSED)


class RankProcess(NamedTuple):
    rank: int
    node: int
    pid: int
    launch: str = ""
    """The launch in a job script that started it."""


def running(attempt: AttemptDirectory) -> list[RankProcess]:
    """The ranks that have started and not ended, by number; of several launches the newest comes first."""
    found: dict[tuple[str, int, int], RankProcess] = {}
    for path in sorted(attempt.path.glob("node-*/events.jsonl")):
        node = path.parent.name.removeprefix("node-")
        for process, has_begun in _changes(int(node), read_journal(path)) if node.isdecimal() else ():
            key = (process.launch, process.rank, process.node)
            if has_begun:
                found[key] = process
            else:
                found.pop(key, None)
    script = _script(read_journal(attempt.events))
    newest_first = [*reversed(found.values()), *script]
    return sorted(newest_first, key=lambda process: (process.rank == SCRIPT_RANK, process.rank))


def _changes(node: int, events: list[dict[str, Any]]) -> Iterator[tuple[RankProcess, bool]]:
    for event in events:
        kind, rank = event.get("event"), event.get("rank")
        if isinstance(rank, int) and kind in (*_BEGIN, *_END):
            pid = event.get("pid")
            process = RankProcess(rank, node, pid if isinstance(pid, int) else 0, str(event.get("launch") or ""))
            yield process, kind in _BEGIN


def _script(events: list[dict[str, Any]]) -> list[RankProcess]:
    """The user's job script, which the head starts on the first node."""
    pids = [event.get("pid") for event in events if event.get("event") == JournalEvent.STARTED]
    return [RankProcess(SCRIPT_RANK, 0, pid) for pid in pids if isinstance(pid, int)][-1:]


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

_MESSAGES = {
    JournalEvent.LAUNCH_FAILED: "the launch failed",
    Reason.RANKS_APART: "warning",
    JournalEvent.ANOMALY: "warning",
}
"""Events of the head that carry a message."""

_FROM = {
    ItemOrigin.SOURCE: "from the source",
    ItemOrigin.PEER: "from the node before it",
    ItemOrigin.CACHE: "from its own disk",
    ItemOrigin.IN_PLACE: "where it is",
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
        own = [*_of_attempt(attempt, record.summary.nodes)]
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
        if at is not None:
            other = f"submission {submission.number}: {submission.state}"
            yield submission.number, Event(at, _as_job(submission) if submission.is_submitted else other)


def _as_job(submission: Submission) -> str:
    if submission.number == 1:
        return f"submitted to {submission.cluster} as {jobs_text(submission.jobs)}"
    if submission.moved:
        return f"too early: queued again as job {submission.job}, behind its dependencies"
    return f"job {submission.job} was submitted to continue after it"


def _of_attempt(attempt: AttemptRecord, nodes: int) -> Iterator[Event]:
    number = attempt.number
    started = attempt.claim.get("started")
    if isinstance(started, int | float):
        yield Event(float(started), f"attempt {number} began on {attempt.claim.get('host', '?')}", number)
    yield from _journals(attempt, nodes)


def _end_of(attempt: AttemptRecord) -> Iterator[Event]:
    """Of the end too, only the second is known."""
    ended = seconds_of(attempt.exit.get("ended"))
    if ended is not None:
        message = attempt.exit.get("message")
        text = f"attempt {attempt.number} ended: {attempt.state}" + (f", {message}" if message else "")
        yield Event(ended, text, attempt.number)


def _launched(attempt: AttemptRecord, nodes: int) -> Iterator[Event]:
    """The newest launches of a job script, without those that ranks of launches started."""
    yield from _events_of(read_journal(attempt.directory.events), attempt.number, _ending_text)
    own = [launch for launch in launches(attempt.directory, nodes) if "." not in launch.launch]
    for launch in own[-_MOST_LAUNCHES:]:
        name, number = f"launch {launch.launch}", attempt.number
        yield Event(launch.began, f"{name} began: {launch.command}", number)
        failed = launch.first_failed
        if failed is not None:
            yield Event(failed.t, f"{names.rank_name(failed.rank)} of {name} on {failed.host} {failed.how}", number)
        if launch.ended is not None:
            status = "" if launch.status is None else f" with status {launch.status}"
            yield Event(launch.ended, f"{name} ended{status}", number)
    for program in failed_programs(attempt.directory)[:_MOST_LAUNCHES]:
        yield Event(
            program.t, f"`{shlex.join(program.argv)[:_LONGEST]}` failed with status {program.status}", attempt.number
        )


def _journals(attempt: AttemptRecord, nodes: int) -> Iterator[Event]:
    number = attempt.number
    head = read_journal(attempt.directory.events)
    hosts = {
        entry.get("node"): str(entry.get("host")) for entry in head if entry.get("event") == JournalEvent.CONNECTED
    }
    are_many = nodes > _MOST_NODES
    chosen = _telling(head) if are_many else range(nodes)
    if are_many:
        yield from _of_many(head, number, nodes)
    else:
        yield from _events_of(head, number, _head_text)
    for node in chosen:
        journal = read_journal(attempt.directory.node_events(node))
        for text_of in (_image_text, _staging_text, _launches_text, _results_text):
            yield from _events_of(journal, number, partial(text_of, hosts.get(node, f"node {node}")))
        if not are_many:
            yield from _started(journal, number, hosts.get(node, f"node {node}"))
        yield from _exits(journal, number, hosts.get(node, f"node {node}"))


def _of_many(head: Sequence[Mapping[str, Any]], number: int, nodes: int) -> Iterator[Event]:
    """The events of the head, but one for all nodes that do the same."""
    alike: dict[Any, list[Mapping[str, Any]]] = {what: [] for what in _ALIKE}
    for entry in head:
        if entry.get("event") in alike:
            alike[entry["event"]].append(entry)
        else:
            yield from _events_of([entry], number, _head_text)
    for event, what in _ALIKE.items():
        times = [float(entry["t"]) for entry in alike[event] if isinstance(entry.get("t"), int | float)]
        if times:
            yield Event(max(times), f"{len(times):,} of {nodes:,} nodes {what}", number)
    yield from _events_of(alike[JournalEvent.NODE_LOST][:_FEW_NODES], number, _head_text)


def _telling(head: Iterable[Mapping[str, Any]]) -> list[int]:
    """The first node, and the first ones that failed or were lost."""
    bad = (JournalEvent.RANK_FAILED, JournalEvent.NODE_LOST)
    nodes = [0, *(entry["node"] for entry in head if entry.get("event") in bad and isinstance(entry.get("node"), int))]
    return [*dict.fromkeys(nodes)][:_FEW_NODES]


def _events_of(journal: Iterable[Mapping[str, Any]], number: int, text_of: Any) -> Iterator[Event]:
    for entry in journal:
        text = text_of(entry)
        if text and isinstance(entry.get("t"), int | float):
            yield Event(float(entry["t"]), text, number)


def _head_text(entry: Mapping[str, Any]) -> str | None:
    event = entry.get("event")
    if event in (JournalEvent.CONNECTED, JournalEvent.NODE_LOST):
        fate = "is ready" if event == JournalEvent.CONNECTED else "was lost"
        return f"node {entry.get('node')} ({entry.get('host')}) {fate}"
    if event == JournalEvent.STOPPING:
        because = entry.get("because")
        reason = _REASONS.get(str(entry.get("reason")), str(entry.get("reason")))
        return f"stopping: {reason}" + (f" ({because})" if because else "")
    if event == JournalEvent.STARTING_RANKS:
        resume = entry.get("resume")
        return f"ranks resume from {PurePath(resume).name}" if isinstance(resume, str) and resume else None
    if event in _MESSAGES:
        return f"{_MESSAGES[event]}: {entry.get('message')}"
    if event == JournalEvent.STAGED:
        return f"every node has its data: {spell(int(entry['bytes']))} after {entry.get('seconds')} s"
    return None


def _image_text(host: str, entry: Mapping[str, Any]) -> str | None:
    if entry.get("event") != JournalEvent.IMAGE:
        return None
    if entry.get("problem"):
        return f"{host} runs the shared image, without a copy on its own disk: {entry['problem']}"
    if not entry.get("bytes"):
        return f"{host} has a copy of the image on its own disk already"
    return f"{host} copied the image to its own disk in {entry.get('seconds')} s"


def _staging_text(host: str, entry: Mapping[str, Any]) -> str | None:
    event = entry.get("event")
    if event == JournalEvent.ITEM_STAGED:
        return f"{host} {_item_text(entry)}"
    if event == JournalEvent.STAGING_WAITS:
        run = maker(str(entry.get("run") or ""))
        return f"{host} waits for {entry.get('item')}: {run} is copying it to this node"
    if event == JournalEvent.STAGING_PROBLEM:
        item = f"in {entry['item']}, " if entry.get("item") else ""
        return f"{host}: {item}{entry.get('problem')}"
    if event == JournalEvent.STAGING_ALONE:
        return f"{host} reads from the source, because the node before it cannot serve: {entry.get('because')}"
    if event == JournalEvent.STAGING_REFUSED:
        return f"{host} refused a request for data from {entry.get('address')}: {entry.get('because')}"
    return None


def _item_text(entry: Mapping[str, Any]) -> str:
    if entry.get("origin") == ItemOrigin.IN_PLACE:
        why = entry.get("because") or "it has no disk of its own"
        return f"uses {entry.get('item')} where it is: {why}"
    origin = _FROM.get(str(entry.get("origin")), str(entry.get("origin")))
    if entry.get("origin") == ItemOrigin.CACHE and not entry["bytes"]:  # unpacked before, from an archive elsewhere
        return f"has {entry.get('item')} {origin}"
    return f"has {entry.get('item')} {origin}: {spell(int(entry['bytes']))} in {entry.get('seconds')} s"


def _ending_text(entry: Mapping[str, Any]) -> str | None:
    """Of the head, about a launch of the script."""
    if entry.get("event") != JournalEvent.ENDING_LAUNCH:
        return None
    launch, rank, host = entry.get("launch"), entry.get("rank"), entry.get("host")
    return f"ending launch {launch}: its other ranks cannot continue without rank {rank} on {host}"


def _launches_text(host: str, entry: Mapping[str, Any]) -> str | None:
    if entry.get("event") == JournalEvent.LAUNCHED_RANKS_HAVE_NO_LOGS:
        return f"{host}: ranks of the script have no logs here: {entry.get('because')}"
    return None


def _results_text(host: str, entry: Mapping[str, Any]) -> str | None:
    if entry.get("event") == JournalEvent.STAGE_OUT_PROBLEM:
        return f"{host}: {entry.get('message')}"
    if entry.get("event") == JournalEvent.STAGE_OUT_ENDED:
        return "; ".join(f"{host}: {sentence}" for sentence in left_out(entry)) or None
    return None


def _started(journal: Iterable[Mapping[str, Any]], number: int, host: str) -> Iterator[Event]:
    """One line for all ranks of a node, at the time when each had started once."""
    began = [
        entry
        for entry in journal
        if entry.get("event") == JournalEvent.STARTED and isinstance(entry.get("t"), int | float)
    ]
    started = list({entry.get("rank"): entry for entry in reversed(began)}.values())[::-1]
    if started:
        ranks = sorted(int(entry["rank"]) for entry in started if isinstance(entry.get("rank"), int))
        which = names.rank_name(ranks[0]) if len(ranks) == 1 else f"ranks {ranks[0]}-{ranks[-1]}" if ranks else "ranks"
        yield Event(float(started[-1]["t"]), f"{which} started on {host}", number)


def _exits(journal: Iterable[Mapping[str, Any]], number: int, host: str) -> Iterator[Event]:
    """Ranks that failed by themselves; those that succeeded, or that Serried ended, are left out."""
    for entry in journal:
        is_end = entry.get("event") in (JournalEvent.RANK_EXIT, JournalEvent.RANK_RESTARTED) and not entry.get(
            "ended_by_us"
        )
        if not is_end or not isinstance(entry.get("t"), int | float):
            continue
        code, signal = entry.get("exit_code"), entry.get("signal")
        if code == 0:
            continue
        how = exits.how(code, signal, is_named=True)
        again = ", and is restarted" if entry["event"] == JournalEvent.RANK_RESTARTED else ""
        yield Event(float(entry["t"]), f"{names.rank_name(entry.get('rank'))} on {host} {how}{again}", number)


@dataclass(frozen=True)
class StagingRate:
    bytes_per_second: float
    run: str
    """The run that measured it."""


def staging_rate(cluster: str) -> StagingRate | None:
    """The rate of the newest run on `cluster` that copied enough; None without such a run."""
    found = [(record.summary.created, record) for record in index.records() if _is_on(record, cluster)]
    for _, record in sorted(found, key=lambda pair: pair[0], reverse=True)[:_LOOKED_AT]:
        attempt = latest_attempt(record.where)
        if attempt is None:
            continue
        items = [it for it in read_journal(attempt.node_events(0)) if it["event"] == JournalEvent.ITEM_STAGED]
        copied = [(it["bytes"], it["seconds"]) for it in items if it["origin"] in _COPIED]
        size, seconds = sum(size for size, _ in copied), sum(seconds for _, seconds in copied)
        if size >= _ENOUGH_BYTES and seconds > 0:
            return StagingRate(size / seconds, record.id)
    return None


def _is_on(record: Record, cluster: str) -> bool:
    try:
        return record.summary.cluster == cluster
    except RecordUnreadable:
        return False
