"""The verdict on a run, from the scheduler's answer and the evidence in files. Every cell of the table has a test.

exit.json wins, except if only the scheduler can know better: it ended the job, the node died, or it requeued the job. A
missing file is never success: a run without exit.json that the scheduler calls completed, or does not list any more, is
UNKNOWN for 90 s, then LOST.
"""

from __future__ import annotations

import enum
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from serried.base.text import compress, seconds_of
from serried.schedulers.interface import Job
from serried.schema import names, reasons
from serried.schema.reasons import Reason

SUBMITTING = "SUBMITTING"
"""The submitting command still runs."""
UNCERTAIN = "UNCERTAIN"
"""That command died or got no answer: the scheduler may have the job, or not."""

MISSING_SECONDS = 90.0
"""How long an exit.json may take to appear: shared file systems hide new files for up to a minute."""

ABSENT = "ABSENT"
"""The scheduler answered, and does not list the job (any more)."""
UNREACHABLE = "UNREACHABLE"
"""The scheduler did not answer."""


class EndingKind(enum.Enum):
    """The content of exit.json, as far as it matters to the table."""

    NONE = "no exit.json"
    REQUEUED = "ended well enough for the next attempt"
    FINAL = "certain by itself"
    CANCELLED = "ended from outside, for a reason that the files do not show"
    NODE = "a node or an agent vanished"
    KILLED = "a rank was killed by signal 9"
    LAUNCH = "no rank ever started"


class Say(enum.Enum):
    """Which source decides."""

    EXIT = "exit.json"
    SCHEDULER = "the scheduler"
    MISSING = "none: UNKNOWN, later LOST"
    LAST_KNOWN = "the last known state"


_E, _S, _M, _L = Say.EXIT, Say.SCHEDULER, Say.MISSING, Say.LAST_KNOWN
_COLUMNS = tuple(EndingKind)
# fmt: off
_ROWS: Mapping[str, tuple[Say, ...]] = {
    #                   NONE REQUEUED FINAL CANCELLED NODE KILLED LAUNCH
    names.PENDING:       (_S, _S, _E, _S, _S, _E, _E),
    names.RUNNING:       (_S, _S, _E, _S, _S, _E, _S),
    names.REQUEUED:      (_S, _S, _E, _S, _S, _E, _E),
    names.COMPLETED:     (_M, _M, _E, _E, _E, _E, _E),
    names.FAILED:        (_S, _S, _E, _E, _E, _E, _E),
    names.TIMEOUT:       (_S, _S, _E, _S, _E, _E, _E),
    names.CANCELLED:     (_S, _S, _E, _S, _E, _E, _S),
    names.PREEMPTED:     (_S, _S, _E, _S, _E, _E, _S),
    names.OUT_OF_MEMORY: (_S, _S, _E, _S, _S, _S, _E),
    names.NODE_FAIL:     (_S, _S, _E, _S, _S, _E, _S),
    names.LAUNCH_FAILED: (_S, _S, _E, _E, _E, _E, _E),
    names.LOST:          (_M, _M, _E, _E, _E, _E, _E),
    names.UNKNOWN:       (_L, _L, _E, _E, _E, _E, _E),
    ABSENT:              (_M, _M, _E, _E, _E, _E, _E),
    UNREACHABLE:         (_L, _L, _E, _E, _E, _E, _E),
}
# fmt: on
TABLE: Mapping[tuple[str, EndingKind], Say] = {
    (word, kind): say for word, row in _ROWS.items() for kind, say in zip(_COLUMNS, row, strict=True)
}
AMBIGUOUS = frozenset({EndingKind.CANCELLED, EndingKind.NODE, EndingKind.KILLED, EndingKind.LAUNCH})
"""Ends that the scheduler may correct."""

_CAUSES = {
    names.FAILED: Reason.UNRECORDED,
    names.TIMEOUT: Reason.LIMIT,
    names.CANCELLED: Reason.CANCEL,
    names.PREEMPTED: Reason.PREEMPT,
    names.OUT_OF_MEMORY: Reason.OUT_OF_MEMORY,
    names.NODE_FAIL: Reason.NODE_LOST,
    names.LAUNCH_FAILED: Reason.LAUNCH,
}
_MESSAGES = {
    names.FAILED: "the job failed before an agent could record why",
    names.TIMEOUT: "the scheduler ended it at its time limit",
    names.CANCELLED: "it was cancelled through the scheduler",
    names.PREEMPTED: "the scheduler took its nodes for a job of higher priority",
    names.OUT_OF_MEMORY: "it used more memory than it requested",
    names.NODE_FAIL: "one of its nodes failed",
    names.LAUNCH_FAILED: "the scheduler could not start it",
}


_OF_REASON = {
    "SupervisorGone": (Reason.SUPERVISOR_GONE, "its supervisor on this machine was killed"),
}
"""Cause and message by the scheduler's reason, if that says more than its state."""

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
"""The state of an array that failed is the first of these that one of its tasks has."""

_IN_ORDER = (names.COMPLETED, *_WORST_FIRST, names.RUNNING, names.PENDING)


@dataclass(frozen=True)
class Ending:
    """An exit.json, checked field by field: a later version or a failing disk may have written anything."""

    state: str
    exit_code: int | None
    cause: str | None
    message: str
    ended: float | None
    kind: EndingKind
    conditions: tuple[Mapping[str, Any], ...] = ()

    @classmethod
    def parse(cls, document: Mapping[str, Any]) -> Ending | None:
        """None if the document does not state an end: then it counts as missing."""
        state = document.get("state")
        if not isinstance(state, str) or state not in names.ENDED | {names.REQUEUED}:
            return None
        code, cause = document.get("exit_code"), document.get("cause")
        return cls(
            state=state,
            exit_code=code if isinstance(code, int) else None,
            cause=cause if isinstance(cause, str) else None,
            message=str(document.get("message") or ""),
            ended=seconds_of(document.get("ended")),
            kind=_kind(state, cause, document.get("first_failure")),
            conditions=tuple(reasons.conditions(document)),
        )

    def verdict(self, *, settled: bool, stale: float | None = None) -> Verdict:
        return Verdict(
            self.state,
            self.exit_code,
            self.cause,
            self.message,
            since=self.ended,
            stale=stale,
            settled=settled,
            conditions=self.conditions,
        )


def _kind(state: str, cause: object, failure: object) -> EndingKind:
    if state == names.REQUEUED:
        return EndingKind.REQUEUED
    if state == names.COMPLETED:
        return EndingKind.FINAL
    if cause == Reason.CANCEL:
        return EndingKind.CANCELLED
    if cause in (Reason.NODE_LOST, Reason.AGENT_KILLED, Reason.JOB_SCRIPT_KILLED):
        return EndingKind.NODE
    if cause in reasons.NOT_STARTED:  # or a cancel reached one of its processes before another
        return EndingKind.LAUNCH
    killed = isinstance(failure, Mapping) and failure.get("signal") == 9
    return EndingKind.KILLED if state == names.FAILED and killed else EndingKind.FINAL


@dataclass(frozen=True)
class Verdict:
    """The state of a run or of a task, and the reasons for it."""

    state: str
    exit_code: int | None = None
    cause: str | None = None
    message: str = ""
    since: float | None = None
    """When it ended, if it has."""
    stale: float | None = None
    """The last moment that anything is known about."""
    settled: bool = False
    """No later evidence can change it: it may be written into the record."""
    missing: bool = False
    """exit.json should exist and does not."""
    conditions: tuple[Mapping[str, Any], ...] = ()
    """The conditions in exit.json, each with its `code`; empty if the verdict is not from exit.json."""

    @property
    def has_ended(self) -> bool:
        return self.state in names.ENDED

    @property
    def has_failed(self) -> bool:
        """It ended for good, without COMPLETED. A stale end may be a preemption, after which the task starts again."""
        return self.has_ended and self.state != names.COMPLETED and self.stale is None


@dataclass(frozen=True)
class Observations:
    """The observations of earlier readers."""

    job: Job | None = None
    at: float | None = None
    """When the scheduler reported the job."""
    claimed: float | None = None
    """When the latest attempt began, by its own file."""
    missing_since: float | None = None
    """When a reader first missed exit.json."""


def judge(word: Job | str, ending: Ending | None, known: Observations, now: float) -> Verdict:
    """`word` is the scheduler's job, or ABSENT or UNREACHABLE."""
    if isinstance(word, str) and known.job is not None and known.job.state in names.ENDED:
        word = known.job  # schedulers forget jobs
    state = word if isinstance(word, str) else word.state
    kind = ending.kind if ending else EndingKind.NONE
    say = TABLE.get((state, kind), Say.LAST_KNOWN if kind in (EndingKind.NONE, EndingKind.REQUEUED) else Say.EXIT)
    agreed = ending is not None and ending.state == state and state in names.ENDED
    if ending is not None and (say is Say.EXIT or agreed):  # if both agree, exit.json says more
        return _by_exit(ending, state, now)
    if say is Say.SCHEDULER and isinstance(word, Job):
        return _by_scheduler(word, ending, known, now)
    if say is Say.MISSING:
        return _by_absence(word, known, now)
    return _by_memory(known, state)


def _by_exit(ending: Ending, word: str, now: float) -> Verdict:
    late = ending.ended is not None and now - ending.ended > MISSING_SECONDS
    answered = word in names.ENDED or (late and word != UNREACHABLE)
    may_continue = word == UNREACHABLE and ending.kind in (
        EndingKind.CANCELLED,
        EndingKind.NODE,
    )  # if the scheduler preempted it
    return ending.verdict(
        settled=ending.kind is EndingKind.FINAL or answered, stale=ending.ended if may_continue else None
    )


def _by_scheduler(job: Job, ending: Ending | None, known: Observations, now: float) -> Verdict:
    if job.state not in names.ENDED:
        return Verdict(names.PENDING if job.state == names.REQUEUED else job.state)
    has_final = ending is not None and ending.kind is not EndingKind.REQUEUED
    # A job that has begun an attempt was started, however it ended.
    state = names.FAILED if job.state == names.LAUNCH_FAILED and known.claimed is not None else job.state
    cause, message = _OF_REASON.get(job.reason, (_CAUSES.get(state), _MESSAGES.get(state, "")))
    noticed = known.missing_since if known.missing_since is not None else now
    since = min(noticed, job.ended if job.ended is not None else noticed)
    return Verdict(
        state=state,
        exit_code=_exit_code(job),
        cause=cause,
        message=message,
        since=job.ended or (ending.ended if ending else None) or since,
        settled=has_final or now - since > MISSING_SECONDS,
        missing=not has_final,
    )


def _exit_code(job: Job) -> int | None:
    """Never 0, because the job did not succeed."""
    if job.state in names.EXIT_CODES:
        return names.EXIT_CODES[job.state]
    return 128 + job.signal if job.signal else job.exit_code or 1


def _by_absence(word: Job | str, known: Observations, now: float) -> Verdict:
    noticed = known.missing_since if known.missing_since is not None else now
    ended = word.ended if isinstance(word, Job) else None
    since = min(noticed, ended if ended is not None else noticed)
    what = "the scheduler reports its end" if isinstance(word, Job) else "the scheduler does not list it"
    if now - since > MISSING_SECONDS:
        message = f"{what}, and it left no exit.json"
        return Verdict(names.LOST, cause=Reason.LOST, message=message, since=since, missing=True)
    return Verdict(names.UNKNOWN, message=f"{what}; waiting for its exit.json", missing=True)


def _by_memory(known: Observations, word: str) -> Verdict:
    why = "the scheduler does not answer" if word == UNREACHABLE else "the scheduler cannot tell its state"
    if known.job is not None and known.job.state in (names.PENDING, names.RUNNING):
        began = known.claimed is not None and (known.at is None or known.claimed > known.at)
        return Verdict(names.RUNNING if began else known.job.state, message=why, stale=known.at)
    if known.claimed is not None:
        return Verdict(names.RUNNING, message=why, stale=known.claimed)
    return Verdict(names.UNKNOWN, cause=Reason.UNREACHABLE if word == UNREACHABLE else None, message=why)


def of_array(verdicts: Mapping[int, Verdict]) -> Verdict:
    """The verdict on an array, from the verdicts on its tasks."""
    states = {verdict.state for verdict in verdicts.values()}
    open_ = states - names.ENDED
    if open_:
        stale = min((verdict.stale for verdict in verdicts.values() if verdict.stale is not None), default=None)
        return Verdict(_open_state(states), message=_open_message(verdicts), stale=stale)
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


def tasks_by_state(verdicts: Mapping[int, Verdict]) -> dict[str, list[int]]:
    """COMPLETED first, then failures, the worst first, then tasks that have not ended."""
    by_state: dict[str, list[int]] = {}
    for index, verdict in verdicts.items():
        by_state.setdefault(verdict.state, []).append(index)
    known = [state for state in _IN_ORDER if state in by_state]
    return {state: by_state[state] for state in dict.fromkeys((*known, *by_state))}


def ranges_by_state(verdicts: Mapping[int, Verdict]) -> dict[str, str]:
    """`{"COMPLETED": "0-16,18-999", "FAILED": "17"}`."""
    return {state: compress(indices) for state, indices in tasks_by_state(verdicts).items()}


def counts_text(verdicts: Mapping[int, Verdict]) -> str:
    """`996 COMPLETED, 4 FAILED`."""
    return ", ".join(f"{len(indices):,} {state}" for state, indices in tasks_by_state(verdicts).items())


def signal_name(number: object) -> str:
    """`signal 11 (SIGSEGV)`."""
    try:
        return f"signal {number} ({signal.Signals(int(str(number))).name})"
    except ValueError:
        return f"signal {number}"
