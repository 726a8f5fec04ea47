"""Waiting for runs to end: files each second, the scheduler ever more seldom while nothing changes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from serried.errors import SerriedError
from serried.fs.files import read_json
from serried.protocol import names
from serried.protocol.reasons import NEVER_STARTS, Reason
from serried.records.arrays import FOR_EVER
from serried.records.index import Selection
from serried.records.run_status import RunStatus
from serried.records.status import SchedulerFor, element_of, registered, statuses
from serried.records.verdict import UNCERTAIN, Ending, Kind

_FILES_SECONDS = 1.0
_FIRST_SECONDS, _LONGEST_SECONDS, _GROWTH = 2.0, 30.0, 1.5

Observer = Callable[[Sequence[RunStatus]], None]


def statuses_of(selections: Sequence[Selection], scheduler_for: SchedulerFor | None = None) -> list[RunStatus]:
    """How each selected run or element stands, by one look at all."""
    wholes = statuses([selection.record for selection in selections], scheduler_for)
    return [
        whole if selection.element is None else element_of(whole, selection.element)
        for selection, whole in zip(selections, wholes, strict=True)
    ]


def wait(
    selections: Sequence[Selection],
    *,
    timeout: float | None = None,
    observe: Observer | None = None,
    tick: Callable[[], None] = lambda: None,
    scheduler_for: SchedulerFor | None = None,
) -> list[RunStatus]:
    """Return how they stand once all have ended, never start, are uncertain for good, or `timeout` seconds are over.

    `observe` hears of each look at the scheduler; `tick` is called about once a second.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    interval, before = _FIRST_SECONDS, ""
    stuck: set[str] = set()
    while True:
        found = statuses_of(selections, scheduler_for)
        if observe:
            observe(found)
        # What never starts is believed when it is seen twice: between two questions a job may have ended.
        seen, stuck = stuck, {status.id for status in found if never_starts(status, scheduler_for)}
        over = [is_over(status) or status.id in stuck & seen for status in found]
        open_ = [one for one, is_done in zip(selections, over, strict=True) if not is_done]
        if not open_ or (deadline is not None and time.monotonic() >= deadline):
            return found
        now = repr([(status.state, status.attempt, len(_ended_elements(status))) for status in found])
        interval = _FIRST_SECONDS if now != before else min(interval * _GROWTH, _LONGEST_SECONDS)
        before = now
        _watch_files(open_, time.monotonic() + interval, deadline, tick)


def is_over(status: RunStatus) -> bool:
    """Whether waiting longer would not help."""
    return (status.has_ended and status.verdict.stale is None) or status.state == UNCERTAIN


def never_starts(status: RunStatus, scheduler_for: SchedulerFor | None = None) -> bool:
    """Whether its scheduler lets it wait for ever: it asks for too much, or waits for what cannot be any more."""
    return why_it_waits(status, scheduler_for) in NEVER_STARTS


def why_never(status: RunStatus) -> str:
    """Why a run never starts, as the end of a sentence."""
    if status.reason == FOR_EVER or status.summary is None:
        return "what it waits for was deleted"
    return registered(status.summary.scheduler).explain(status.reason)


def why_it_waits(status: RunStatus, scheduler_for: SchedulerFor | None = None) -> Reason | None:
    """The code of the scheduler's reason for letting a run wait."""
    if status.state != names.PENDING or not status.reason or status.summary is None:
        return None
    try:
        return (scheduler_for or registered)(status.summary.scheduler).classify(status.reason)
    except SerriedError:  # a scheduler of which this version knows nothing
        return Reason.DEPENDENCY_NEVER_SATISFIED if status.reason == FOR_EVER else None


def _ended_elements(status: RunStatus) -> list[int]:
    return [index for index, verdict in (status.elements or {}).items() if verdict.has_ended]


def _watch_files(
    selections: Sequence[Selection], until: float, deadline: float | None, tick: Callable[[], None]
) -> None:
    """Sleep until `until`, or until a file says that one of them has ended."""
    until = until if deadline is None else min(until, deadline)
    selections = [one for one in selections if not has_ended_by_file(one)]  # a preempted one has, and goes on
    while (left := until - time.monotonic()) > 0:
        time.sleep(min(_FILES_SECONDS, left))
        tick()
        if any(has_ended_by_file(selection) for selection in selections):
            return


def has_ended_by_file(selection: Selection) -> bool:
    """Whether exit.json is there: one file, nobody is asked. Of an array as a whole no single file tells."""
    document: dict[str, Any] = read_json(selection.place.exit) or {}
    ending = Ending.parse(document)
    return ending is not None and ending.kind is not Kind.REQUEUED
