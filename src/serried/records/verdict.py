"""The scheduler's word and the evidence in files make the verdict. The table is data; every cell of it is tested.

exit.json wins, except where the scheduler alone can know better: it ended the job, the node died, or it starts the same
job again. Missing is never success: a run without exit.json that the scheduler calls completed, or no longer knows, is
UNKNOWN for 90 s, then LOST.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from serried.protocol import names, reasons
from serried.protocol.reasons import Reason
from serried.protocol.times import seconds_of
from serried.schedulers.interface import Job

SUBMITTING = "SUBMITTING"
"""The command that submits it is still at work."""
UNCERTAIN = "UNCERTAIN"
"""That command died or got no answer: the scheduler may have it, or not."""

MISSING_SECONDS = 90.0
"""How long an exit.json may take to appear: shared file systems hide new files for up to a minute."""

ABSENT = "ABSENT"
"""The scheduler answered, and does not know the job (any more)."""
UNREACHABLE = "UNREACHABLE"
"""The scheduler did not answer."""


class Kind(enum.Enum):
    """What exit.json says, as far as it matters to the table."""

    NONE = "no exit.json"
    REQUEUED = "ended well enough for the next attempt"
    FINAL = "certain by itself"
    CANCELLED = "ended from outside, by what the files cannot tell"
    NODE = "a node or an agent vanished"
    KILLED = "a rank was killed by signal 9"
    LAUNCH = "no rank ever started"


class Say(enum.Enum):
    """Whose word counts."""

    EXIT = "exit.json"
    SCHEDULER = "the scheduler"
    MISSING = "nobody: UNKNOWN, later LOST"
    LAST_KNOWN = "what was known before"


_E, _S, _M, _L = Say.EXIT, Say.SCHEDULER, Say.MISSING, Say.LAST_KNOWN
_COLUMNS = (Kind.NONE, Kind.REQUEUED, Kind.FINAL, Kind.CANCELLED, Kind.NODE, Kind.KILLED, Kind.LAUNCH)
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
TABLE: Mapping[tuple[str, Kind], Say] = {
    (word, kind): say for word, row in _ROWS.items() for kind, say in zip(_COLUMNS, row, strict=True)
}
AMBIGUOUS = frozenset({Kind.CANCELLED, Kind.NODE, Kind.KILLED, Kind.LAUNCH})
"""Ends about which the scheduler is asked once more."""

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
    names.OUT_OF_MEMORY: "it used more memory than it had asked for",
    names.NODE_FAIL: "a node of it failed",
    names.LAUNCH_FAILED: "the scheduler could not start it",
}


_OF_REASON = {
    "SupervisorGone": (Reason.SUPERVISOR_GONE, "the process on this machine that looked after it was killed"),
}
"""By the scheduler's reason, where that says more than its state: cause and message."""


@dataclass(frozen=True)
class Ending:
    """An exit.json, read with suspicion: a later version or a tired disk may have written anything."""

    state: str
    exit_code: int | None
    cause: str | None
    message: str
    ended: float | None
    kind: Kind
    conditions: tuple[Mapping[str, Any], ...] = ()

    @classmethod
    def parse(cls, document: Mapping[str, Any]) -> Ending | None:
        """None where it does not say how it ended: then it is as good as missing."""
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


def _kind(state: str, cause: object, failure: object) -> Kind:
    if state == names.REQUEUED:
        return Kind.REQUEUED
    if state == names.COMPLETED:
        return Kind.FINAL
    if cause == Reason.CANCEL:
        return Kind.CANCELLED
    if cause in (Reason.NODE_LOST, Reason.AGENT_KILLED, Reason.JOB_SCRIPT_KILLED):
        return Kind.NODE
    if cause in reasons.NOT_STARTED:  # or a cancel ended one of its processes before another had heard of it
        return Kind.LAUNCH
    killed = isinstance(failure, Mapping) and failure.get("signal") == 9
    return Kind.KILLED if state == names.FAILED and killed else Kind.FINAL


@dataclass(frozen=True)
class Verdict:
    """How a run or an element stands."""

    state: str
    exit_code: int | None = None
    cause: str | None = None
    message: str = ""
    since: float | None = None
    """When it ended, where it has."""
    stale: float | None = None
    """Nothing newer is known than from this moment."""
    settled: bool = False
    """No later evidence can change it: it may be written down."""
    missing: bool = False
    """exit.json should be there and is not."""
    conditions: tuple[Mapping[str, Any], ...] = ()
    """What exit.json states, each with its `code`; empty where the verdict is not exit.json's."""

    @property
    def has_ended(self) -> bool:
        return self.state in names.ENDED


@dataclass(frozen=True)
class Known:
    """What an earlier reader saw."""

    job: Job | None = None
    at: float | None = None
    """When the scheduler said that."""
    claimed: float | None = None
    """When the latest attempt began, by its own file."""
    missing_since: float | None = None
    """When a reader first missed exit.json."""


def judge(word: Job | str, ending: Ending | None, known: Known, now: float) -> Verdict:
    """The verdict. `word` is the scheduler's job, or ABSENT or UNREACHABLE."""
    if isinstance(word, str) and known.job is not None and known.job.state in names.ENDED:
        word = known.job  # schedulers forget; we do not
    state = word if isinstance(word, str) else word.state
    kind = ending.kind if ending else Kind.NONE
    say = TABLE.get((state, kind), Say.LAST_KNOWN if kind in (Kind.NONE, Kind.REQUEUED) else Say.EXIT)
    agreed = ending is not None and ending.state == state and state in names.ENDED
    if ending is not None and (say is Say.EXIT or agreed):  # where they agree, exit.json tells more
        return _by_exit(ending, state, now)
    if say is Say.SCHEDULER and isinstance(word, Job):
        return _by_scheduler(word, ending, known, now)
    if say is Say.MISSING:
        return _by_nobody(word, known, now)
    return _by_memory(known, state)


def _by_exit(ending: Ending, word: str, now: float) -> Verdict:
    late = ending.ended is not None and now - ending.ended > MISSING_SECONDS
    answered = word in names.ENDED or (late and word != UNREACHABLE)
    may_go_on = word == UNREACHABLE and ending.kind in (Kind.CANCELLED, Kind.NODE)  # if the scheduler preempted it
    return Verdict(
        state=ending.state,
        exit_code=ending.exit_code,
        cause=ending.cause,
        message=ending.message,
        since=ending.ended,
        stale=ending.ended if may_go_on else None,
        settled=ending.kind is Kind.FINAL or answered,
        conditions=ending.conditions,
    )


def _by_scheduler(job: Job, ending: Ending | None, known: Known, now: float) -> Verdict:
    if job.state not in names.ENDED:
        return Verdict(names.PENDING if job.state == names.REQUEUED else job.state)
    has_final = ending is not None and ending.kind is not Kind.REQUEUED
    # A job that has begun an attempt was started, whatever became of it.
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
    """Never 0: this job did not do well."""
    if job.state in names.EXIT_CODES:
        return names.EXIT_CODES[job.state]
    return 128 + job.signal if job.signal else job.exit_code or 1


def _by_nobody(word: Job | str, known: Known, now: float) -> Verdict:
    noticed = known.missing_since if known.missing_since is not None else now
    ended = word.ended if isinstance(word, Job) else None
    since = min(noticed, ended if ended is not None else noticed)
    what = "the scheduler says that it ended" if isinstance(word, Job) else "the scheduler does not know it"
    if now - since > MISSING_SECONDS:
        message = f"{what}, and it left no exit.json"
        return Verdict(names.LOST, cause=Reason.LOST, message=message, since=since, missing=True)
    return Verdict(names.UNKNOWN, message=f"{what}; waiting for its exit.json", missing=True)


def _by_memory(known: Known, word: str) -> Verdict:
    why = "the scheduler does not answer" if word == UNREACHABLE else "the scheduler cannot say how it is"
    if known.job is not None and known.job.state in (names.PENDING, names.RUNNING):
        began = known.claimed is not None and (known.at is None or known.claimed > known.at)
        return Verdict(names.RUNNING if began else known.job.state, message=why, stale=known.at)
    if known.claimed is not None:
        return Verdict(names.RUNNING, message=why, stale=known.claimed)
    return Verdict(names.UNKNOWN, cause=Reason.UNREACHABLE if word == UNREACHABLE else None, message=why)
