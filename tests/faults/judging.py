"""What must hold after every fault. A broken rule is a sentence; none is what a campaign wants."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from faults.case import RANKS, Case
from faults.seen import describe
from serried.schema import names

LEFT_SECONDS = 90.0
"""For processes to be gone after the run is said to have ended."""


def broken(case: Case, end: Mapping[str, Any] | None) -> Iterator[str]:
    """The rules that the case has broken, given how it is said to have ended; None is that nobody said."""
    if case.run is None:
        if case.executions():
            yield "a run without a record was executed"
        return
    if end is None:
        yield "no final state was reached"
    elif end["state"] == "COMPLETED":
        yield from _false_success(case)
        if case.cancelled_in is not None:
            yield "COMPLETED, though it was cancelled while its ranks worked"
    if end is not None:
        yield from _false_reason(case, end)
    yield from _came_back(case)
    yield from _executed_twice(case)
    yield from case.harmed
    yield from _left_behind(case)


def _false_success(case: Case) -> Iterator[str]:
    """All ranks of the last attempt have to have done their last act, and none of them was ended by the fault."""
    last = max((attempt for attempt, _, _ in case.executions()), default=0)
    proven = {rank for attempt, rank, _ in case.executions("ended") if attempt == last}
    if missing := set(range(case.nodes * RANKS)) - proven:
        yield f"COMPLETED, though ranks {sorted(missing)} of attempt {last} have not finished"
    if killed := [rank for attempt, rank, _ in case.killed if attempt == last]:
        yield f"COMPLETED, though ranks {killed} of attempt {last} were killed"


def _false_reason(case: Case, end: Mapping[str, Any]) -> Iterator[str]:
    """Nobody is said to have cancelled a run that nobody has, and so of its time limit and of the rank that failed."""
    state = end["state"]
    if case.is_harmless and state != names.COMPLETED:
        yield f"{state}, though the fault does not concern it: {end['message']}"
    if case.states and state not in case.states:
        yield f"{state}, though it can only be {' or '.join(case.states)}: {end['message']}"
    elapsed = time.monotonic() - case.began
    if not 0 <= (end.get("seconds") or 0) <= elapsed + 1:
        yield f"it took {end['seconds']} s, and {elapsed:.1f} s have passed since it was submitted"
    if (end["exit_code"] == 0) != (state == names.COMPLETED):
        yield f"{state} with exit code {end['exit_code']}"
    if state == names.CANCELLED and not (case.is_cancel_asked or case.may_be_cancelled):
        yield f"CANCELLED, though nobody cancelled it: {end['message']}"
    if state == names.TIMEOUT and not case.has_short_limit:
        yield f"TIMEOUT, though there was time left: {end['message']}"
    if state in (names.PREEMPTED, names.OUT_OF_MEMORY):
        yield f"{state}, though it was not: {end['message']}"
    killed = {rank for _, rank, _ in case.killed}
    if killed and case.blamed is not None and case.blamed not in killed:
        yield f"rank {case.blamed} is blamed, though ranks {sorted(killed)} were killed"


def _came_back(case: Case) -> Iterator[str]:
    attempts = {attempt for attempt, _, _ in case.executions()}
    if case.cancelled_in is not None and max(attempts, default=0) > max(case.cancelled_in, 1):
        yield f"attempt {max(attempts)} began, though it was cancelled in attempt {case.cancelled_in}"


def _executed_twice(case: Case) -> Iterator[str]:
    times = Counter((attempt, rank) for attempt, rank, _ in case.executions())
    if twice := [it for it, number in times.items() if number > 1]:
        yield f"executed more than once: (attempt, rank) in {twice}"
    attempts = {attempt for attempt, _ in times}
    if len(attempts) > case.restarts + 1:
        yield f"{len(attempts)} attempts, and {case.restarts + 1} were allowed"


def _left_behind(case: Case) -> Iterator[str]:
    deadline = time.monotonic() + LEFT_SECONDS
    while (left := case.leftovers()) and time.monotonic() < deadline:
        time.sleep(0.2)
    if left:
        yield f"left running: {'; '.join(map(describe, left))}"


def is_hidden(case: Case, end: Mapping[str, Any] | None) -> bool:
    """Whether all ranks of the last attempt finished, and were not hit, but the run is not called completed.

    No rule forbids that: a node agent that was killed may have hidden it. It is counted all the same.
    """
    if end is None or end["state"] == names.COMPLETED or case.is_cancel_asked:
        return False
    return bool(case.executions()) and not list(_false_success(case))
