"""When a fault comes: at a condition that a run goes through, or some time between two of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from serried.base import files

if TYPE_CHECKING:
    from faults.case import Case

RANKS = 2
"""On each node."""


@dataclass(frozen=True)
class Moment:
    name: str
    phase: str
    """`submits`, `starts`, `works`, `ends` or, while it is being cancelled, `stops`."""
    has_come: Callable[[Case], bool]


def _noted(event: str) -> Callable[[Case], bool]:
    """Whether the first attempt's journal has this event."""

    def has_come(case: Case) -> bool:
        attempt = case.attempt
        return attempt is not None and any(it.get("event") == event for it in files.read_journal(attempt.events))

    return has_come


def _has_exit(case: Case) -> bool:
    attempt = case.attempt
    return attempt is not None and attempt.exit.exists()


def _is_asked(case: Case) -> bool:
    attempt = case.attempt
    return attempt is not None and attempt.control.exists() and attempt.control.stat().st_size > 0


MOMENTS: Sequence[Moment] = (
    Moment("submit runs", "submits", lambda case: "submit" in case.seen),
    Moment("the record is there", "submits", lambda case: case.record is not None),
    Moment("the intent is written", "submits", lambda case: bool(case.submission)),
    Moment("the job is known", "submits", lambda case: case.submission.get("state") == "submitted"),
    Moment("the attempt is claimed", "starts", _noted("claimed")),
    Moment("the launcher starts", "starts", _noted("launching")),
    Moment("an agent is connected", "starts", _noted("connected")),
    Moment("a rank has begun", "starts", lambda case: bool(case.executions())),
    Moment("all ranks work", "works", lambda case: case.is_at_work()),
    Moment("the request is written", "stops", _is_asked),
    Moment("the head is stopping", "stops", _noted("stopping")),
    Moment("a node has stopped", "stops", _noted("node-ended")),
    Moment("the ranks may end", "ends", lambda case: case.is_released),
    Moment("a rank has ended", "ends", lambda case: bool(case.executions("ended"))),
    Moment("all ranks have ended", "ends", lambda case: len(case.executions("ended")) >= case.nodes * RANKS),
    Moment("the head has heard of all ends", "ends", _noted("all-over")),
    Moment("the head has ended", "ends", _noted("ended")),
    Moment("finish runs", "ends", lambda case: case.seen.finds_finish()),
    Moment("the end is written", "ends", _has_exit),
)
"""In the order in which a run goes through them, if it is cancelled while it works, or not."""

WINDOWS = {
    "submit": ("submit runs", "the job is known"),
    "head": ("the attempt is claimed", "all ranks have ended"),
    "node": ("the attempt is claimed", "a rank has ended"),
    "connection": ("an agent is connected", "a rank has ended"),
    "rank": ("a rank has begun", "the ranks may end"),
    "finish": ("finish runs", "the end is written"),
    "": ("submit runs", "finish runs"),
}
"""The first and the last moment at which a process, or a connection to one, surely is there; "" is the whole run."""
WEIGHTS = {"starts": 3, "works": 4, "ends": 3}
"""How often a fault comes in which phase, unless it is bound to one."""


def of(what: str, phase: str) -> list[Moment]:
    """The moments of a phase at which it is there."""
    every = [moment.name for moment in MOMENTS]
    first, last = WINDOWS.get(what, (every[0], every[-1]))
    return [moment for moment in MOMENTS[every.index(first) : every.index(last) + 1] if moment.phase == phase]
