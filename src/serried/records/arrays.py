"""An array's state is made of its elements' states."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from serried.protocol import names
from serried.records import proof, scheduler_memory
from serried.records.documents import Summary
from serried.records.evidence import Evidence, claimed_at, latest_attempt
from serried.records.scheduler_memory import Seen
from serried.records.verdict import ABSENT, UNREACHABLE, Known, Verdict, judge
from serried.schedulers.indices import compress
from serried.schedulers.interface import Job

_WORST_FIRST = (
    names.FAILED,
    names.OUT_OF_MEMORY,
    names.TIMEOUT,
    names.NODE_FAIL,
    names.LAUNCH_FAILED,
    names.LOST,
    names.PREEMPTED,
    names.CANCELLED,
)
"""An array that did not do well is called by the first of these that an element is in."""

FOR_EVER = "DependencyNeverSatisfied"
"""Schedulers' word for a job that waits for what cannot be any more."""

Answer = scheduler_memory.Answer | None
"""None where the scheduler did not answer."""


def judge_elements(evidence: Evidence, answer: Answer, now: float) -> tuple[dict[int, Verdict], Seen]:
    """Each element's verdict, and what to remember of it all."""
    memory = evidence.seen
    remembered = {one.element: one for one in memory.jobs}
    verdicts: dict[int, Verdict] = {}
    missing: dict[int | None, float] = {}
    for index in evidence.indices:
        if index in memory.ended:
            verdicts[index] = Verdict(memory.ended[index], settled=True)
            continue
        before = remembered.get(index)
        said = None if answer is None else scheduler_memory.current(evidence.jobs(index), index, answer, before, now)
        word: Job | str = UNREACHABLE if answer is None else said or ABSENT
        if said is not None:
            remembered[index] = said
        known = Known(remembered.get(index), memory.at, _claimed(evidence, index, word), memory.missing.get(index))
        ending = evidence.endings.get(index)
        proven = proof.of(evidence, index, word) if ending is None and index in evidence.begun else None
        verdict = judge(word, ending or proven, known, now)
        if proven:
            verdict = proof.with_patience(verdict, memory.missing.get(index, now), now)
        verdicts[index] = verdict
        if verdict.missing:
            missing[index] = memory.missing.get(index, now)
    ended = {index: verdict.state for index, verdict in verdicts.items() if verdict.settled}
    # What the scheduler says now, and what it said of elements that it has forgotten since.
    jobs = tuple(one for element, one in remembered.items() if element is not None and element not in ended)
    return verdicts, Seen(memory.at if answer is None else now, jobs, missing, ended)


def _claimed(evidence: Evidence, index: int, word: Job | str) -> float | None:
    """When the latest attempt began; not read where the state does not depend on it, as arrays are large."""
    is_alive = isinstance(word, Job) and word.state not in names.ENDED
    if is_alive or index not in evidence.begun or not evidence.is_open(index):
        return None
    attempt = latest_attempt(evidence.record.where.element(index))
    return None if attempt is None else claimed_at(attempt)


def whole(verdicts: Mapping[int, Verdict]) -> Verdict:
    """The array's own verdict."""
    states = {verdict.state for verdict in verdicts.values()}
    open_ = states - names.ENDED
    if open_:
        return Verdict(_open_state(states), message=_open_message(verdicts), stale=_oldest(verdicts))
    ends = [verdict.since for verdict in verdicts.values() if verdict.since is not None]
    since = max(ends, default=None)
    settled = all(verdict.settled for verdict in verdicts.values())
    worst = next((state for state in _WORST_FIRST if state in states), None)
    if worst is None:
        return Verdict(names.COMPLETED, 0, None, "all tasks completed", since, settled=settled)
    index, first = next((index, verdict) for index, verdict in verdicts.items() if verdict.state == worst)
    number = sum(verdict.state != names.COMPLETED for verdict in verdicts.values())
    message = f"{number} of {len(verdicts)} tasks did not complete; the first is {index}"
    return Verdict(worst, first.exit_code or 1, first.cause, message, since, settled=settled)


def _open_state(states: set[str]) -> str:
    if names.RUNNING in states:
        return names.RUNNING
    if names.PENDING in states:
        return names.PENDING if states == {names.PENDING} else names.RUNNING
    return names.UNKNOWN


def _open_message(verdicts: Mapping[int, Verdict]) -> str:
    unsure = [verdict.message for verdict in verdicts.values() if verdict.state == names.UNKNOWN or verdict.stale]
    return unsure[0] if unsure else ""


def _oldest(verdicts: Mapping[int, Verdict]) -> float | None:
    return min((verdict.stale for verdict in verdicts.values() if verdict.stale is not None), default=None)


def waits_for_others(summary: Summary, reason: str) -> bool:
    """Whether it waits because of the runs that it comes after; each scheduler writes that word in its own way."""
    return bool(summary.after) and reason.casefold().startswith("dependency")


def counts(verdicts: Mapping[int, Verdict]) -> dict[str, int]:
    """How many elements are in each state."""
    numbers: dict[str, int] = {}
    for verdict in verdicts.values():
        numbers[verdict.state] = numbers.get(verdict.state, 0) + 1
    return numbers


def ranges_by_state(verdicts: Mapping[int, Verdict]) -> dict[str, str]:
    """`{"COMPLETED": "0-16,18-999", "FAILED": "17"}`."""
    by_state: dict[str, list[int]] = {}
    for index, verdict in verdicts.items():
        by_state.setdefault(verdict.state, []).append(index)
    return {state: compress(indices) for state, indices in by_state.items()}


def in_context(verdict: Verdict, evidence: Evidence, reason: str = "") -> Verdict:
    """Say what the table cannot know: that it comes after others, is between attempts, or has no run directory.

    `reason` is the scheduler's for letting it wait.
    """
    if verdict.message and not verdict.missing:
        return verdict
    if verdict.state == names.PENDING and not evidence.attempt and waits_for_others(evidence.summary, reason):
        never = ", and never starts: what it waits for was deleted" if reason == FOR_EVER else ""
        return dataclasses.replace(verdict, message=f"comes after {', '.join(evidence.summary.after)}{never}")
    if verdict.state == names.PENDING and evidence.attempt:
        return dataclasses.replace(verdict, message=f"waits for attempt {evidence.attempt + 1}")
    if verdict.state == names.RUNNING and evidence.attempt is None:
        return dataclasses.replace(verdict, message="starting")
    if verdict.missing and not evidence.record.where.path.is_dir():
        return dataclasses.replace(verdict, message=f"{verdict.message}; its run directory is gone")
    return verdict
