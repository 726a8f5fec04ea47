"""The events of a run in order, from its submissions, its attempts' journals and their ends.

From the same journals: the progress of staging, and its rate.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import PurePath
from typing import Any

from serried.base.files import read_journal, read_json
from serried.base.text import iso, maker, seconds_of, spell
from serried.base.text import progress as progress_text
from serried.records import index
from serried.records.evidence import attempt_numbers, latest_attempt
from serried.records.record import Record, RecordUnreadable, Submission, jobs_text, read_exit
from serried.records.verdict import Verdict, signal_name
from serried.schema import names
from serried.schema.events import ItemOrigin, JournalEvent
from serried.schema.layout import AttemptDirectory, TaskDirectory
from serried.schema.missing_outputs import left_out
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
    from serried.records.launches import failed_programs, launches  # other runs have none

    yield from _entries(read_journal(attempt.directory.events), attempt.number, _ending_text)
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
        yield from _entries(head, number, _head_text)
    for node in chosen:
        journal = read_journal(attempt.directory.node_events(node))
        for text_of in (_image_text, _staging_text, _launches_text, _results_text):
            yield from _entries(journal, number, partial(text_of, hosts.get(node, f"node {node}")))
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
            yield from _entries([entry], number, _head_text)
    for event, what in _ALIKE.items():
        times = [float(entry["t"]) for entry in alike[event] if isinstance(entry.get("t"), int | float)]
        if times:
            yield Event(max(times), f"{len(times):,} of {nodes:,} nodes {what}", number)
    yield from _entries(alike[JournalEvent.NODE_LOST][:_FEW_NODES], number, _head_text)


def _telling(head: Iterable[Mapping[str, Any]]) -> list[int]:
    """The first node, and the first ones that failed or were lost."""
    bad = (JournalEvent.RANK_FAILED, JournalEvent.NODE_LOST)
    nodes = [0, *(entry["node"] for entry in head if entry.get("event") in bad and isinstance(entry.get("node"), int))]
    return [*dict.fromkeys(nodes)][:_FEW_NODES]


def _entries(journal: Iterable[Mapping[str, Any]], number: int, text_of: Any) -> Iterator[Event]:
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
        how = f"was killed by {signal_name(signal)}" if signal else f"exited with status {code}"
        again = ", and is restarted" if entry["event"] == JournalEvent.RANK_RESTARTED else ""
        yield Event(float(entry["t"]), f"{names.rank_name(entry.get('rank'))} on {host} {how}{again}", number)


def staging_progress(attempt: AttemptDirectory) -> str:
    """`staging 41 % of 12.0 GB at 102.1 MB/s, 2 min left`; empty if no rank waits for data."""
    last = ""
    for entry in read_journal(attempt.events):
        if entry.get("event") == JournalEvent.STAGING:
            last = f"staging {progress_text(entry)}".rstrip()
        elif entry.get("event") in (
            JournalEvent.STAGED,
            JournalEvent.STARTING_RANKS,
            JournalEvent.LAUNCH_FAILED,
            JournalEvent.STOPPING,
        ):
            last = ""
    return last


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
