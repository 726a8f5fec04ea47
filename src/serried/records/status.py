"""The status of runs: files first, then one query to each scheduler for all runs whose end the files do not prove.

In the order of this module:

- The verdict, from the scheduler's answer and exit.json. Every cell of the table has a test. exit.json wins, except if
  only the scheduler can know better: it ended the job, the node died, or it requeued the job. A missing file is never
  success: a run without exit.json that the scheduler calls completed, or does not list any more, is UNKNOWN for 90 s,
  then LOST.
- The evidence, from few files: submissions, attempts, ends. `seen.json` in the record has the last answers of a
  scheduler that forgets jobs, and when a file was first missing. Several readers may write it; the last one wins, which
  costs at most a longer wait.
- The status, as every command prints it. The first reader that is certain of an end writes it into the record, and all
  later ones read it.
- Waiting, which reads files each second, and queries the scheduler less and less often while nothing changes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import functools
import json
import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

from serried import schedulers
from serried.base.errors import RunNotFoundError, SchedulerUnreachable, SerriedError, UsageError
from serried.base.files import MODES, numbers, read_journal, read_json, text_of, write_bytes, write_text
from serried.base.processes import identify
from serried.base.text import ago, compress, expand, iso, seconds_of
from serried.records.index import Selection
from serried.records.record import Record, RecordUnreadable, Submission, Summary
from serried.schedulers.interface import Job, Scheduler, names_token
from serried.schema import SCHEMA, names, reasons
from serried.schema.endings import Condition, End, NodeEnded, condition_of, entries, recovered_in, warnings_in
from serried.schema.events import JournalEvent
from serried.schema.exits import Exit
from serried.schema.layout import AttemptDirectory, TaskDirectory, owner_of, withdraw, worker_in
from serried.schema.names import SubmissionState
from serried.schema.reasons import NEVER_STARTS, OF_DEPENDENCIES, Reason
from serried.schema.successor_commands import offset_of, part_of

if TYPE_CHECKING:
    from serried.records.live import RunProgress


SUBMITTING = "SUBMITTING"
"""The submitting command still runs."""
UNCERTAIN = "UNCERTAIN"
"""That command died or got no answer: the scheduler may have the job, or not."""


class State(str, enum.Enum):
    """The state of a run or task. It equals its name, as a string."""

    def __str__(self) -> str:  # `StrEnum` is 3.11's
        return str.__str__(self)

    def __format__(self, format_spec: str) -> str:
        return str.__format__(self, format_spec)

    PENDING, RUNNING, COMPLETED, FAILED = names.PENDING, names.RUNNING, names.COMPLETED, names.FAILED
    TIMEOUT, CANCELLED, PREEMPTED = names.TIMEOUT, names.CANCELLED, names.PREEMPTED
    OUT_OF_MEMORY, NODE_FAIL, LAUNCH_FAILED = names.OUT_OF_MEMORY, names.NODE_FAIL, names.LAUNCH_FAILED
    LOST, SUBMITTING, UNCERTAIN, UNKNOWN = names.LOST, SUBMITTING, UNCERTAIN, names.UNKNOWN


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
    (word, kind): say for word, row in _ROWS.items() for kind, say in zip(_COLUMNS, row)
}

_BY_STATE: Mapping[str, tuple[Reason | None, str]] = {
    names.FAILED: (Reason.UNRECORDED, "the job failed before an agent could record why"),
    names.TIMEOUT: (Reason.LIMIT, "the scheduler ended it at its time limit"),
    names.CANCELLED: (Reason.CANCEL, "it was cancelled through the scheduler"),
    names.PREEMPTED: (Reason.PREEMPT, "the scheduler took its nodes for a job of higher priority"),
    names.OUT_OF_MEMORY: (Reason.OUT_OF_MEMORY, "it used more memory than it requested"),
    names.NODE_FAIL: (Reason.NODE_LOST, "one of its nodes failed"),
    names.LAUNCH_FAILED: (Reason.LAUNCH, "the scheduler could not start it"),
}
_BY_REASON = {"SupervisorGone": (Reason.SUPERVISOR_GONE, "its supervisor on this machine was killed")}
"""Cause and message of an end that only the scheduler knows, by its state, or by its reason if that says more."""

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


def kind_of(end: End | None) -> EndingKind:
    state = end.state if end else ""
    if end is None or state in ("", names.REQUEUED, names.COMPLETED):
        by_state = {names.REQUEUED: EndingKind.REQUEUED, names.COMPLETED: EndingKind.FINAL}
        return by_state.get(state, EndingKind.NONE)
    if end.cause == Reason.CANCEL:
        return EndingKind.CANCELLED
    if end.cause in (Reason.NODE_LOST, Reason.AGENT_KILLED, Reason.JOB_SCRIPT_KILLED):
        return EndingKind.NODE
    if end.cause in reasons.NOT_STARTED:  # or a cancel reached one of its processes before another
        return EndingKind.LAUNCH
    killed = end.first_failure is not None and end.first_failure.signal == 9
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
    conditions: tuple[Condition, ...] = ()
    """The conditions in exit.json; empty if the verdict is not from exit.json."""

    @classmethod
    def of(cls, end: End, *, settled: bool, stale: float | None = None) -> Verdict:
        since = seconds_of(end.ended)
        return cls(end.state, end.exit_code, end.cause, end.message, since, stale, settled, conditions=end.conditions)

    @property
    def has_ended(self) -> bool:
        return self.state in names.ENDED

    @property
    def ending(self) -> tuple[str, str, float | None] | None:
        """State, message and time, once it has ended."""
        return (self.state, self.message, self.since) if self.has_ended else None

    @property
    def has_failed(self) -> bool:
        """It ended for good, without COMPLETED. A stale end may be a preemption, after which the task starts again."""
        return self.has_ended and self.state != names.COMPLETED and self.stale is None


@dataclass(frozen=True)
class Observations:
    job: Job | None = None
    at: float | None = None
    """When the scheduler reported the job."""
    claimed: float | None = None
    """When the latest attempt began, by its own file."""
    missing_since: float | None = None
    """When a reader first missed exit.json."""


def judge(word: Job | str, end: End | None, known: Observations, now: float) -> Verdict:
    """`word` is the scheduler's job, or ABSENT or UNREACHABLE."""
    if isinstance(word, str) and known.job is not None and known.job.state in names.ENDED:
        word = known.job  # schedulers forget jobs
    state = word if isinstance(word, str) else word.state
    kind = kind_of(end)
    say = TABLE.get((state, kind), Say.LAST_KNOWN if kind in (EndingKind.NONE, EndingKind.REQUEUED) else Say.EXIT)
    agreed = end is not None and end.state == state and state in names.ENDED
    if end is not None and (say is Say.EXIT or agreed):  # if both agree, exit.json says more
        ended = seconds_of(end.ended)
        late = ended is not None and now - ended > MISSING_SECONDS
        answered = state in names.ENDED or (late and state != UNREACHABLE)
        # The scheduler may have preempted it, and then starts it again.
        may_continue = state == UNREACHABLE and kind in (EndingKind.CANCELLED, EndingKind.NODE)
        return Verdict.of(end, settled=kind is EndingKind.FINAL or answered, stale=ended if may_continue else None)
    if say is Say.SCHEDULER and isinstance(word, Job):
        return _by_scheduler(word, end, known, now)
    if say is Say.MISSING:
        return _by_absence(word, known, now)
    return _by_memory(known, state)


def _by_scheduler(job: Job, end: End | None, known: Observations, now: float) -> Verdict:
    if job.state not in names.ENDED:
        return Verdict(names.PENDING if job.state == names.REQUEUED else job.state)
    has_final = kind_of(end) not in (EndingKind.NONE, EndingKind.REQUEUED)
    # A job that has begun an attempt was started, however it ended.
    state = names.FAILED if job.state == names.LAUNCH_FAILED and known.claimed is not None else job.state
    cause, message = _BY_REASON.get(job.reason) or _BY_STATE.get(state, (None, ""))
    since = _missed_since(job, known, now)
    # Never 0, because the job did not succeed.
    code = 128 + job.signal if job.signal else job.exit_code or 1
    return Verdict(
        state=state,
        exit_code=names.EXIT_CODES.get(job.state, code),
        cause=cause,
        message=message,
        since=job.ended or (seconds_of(end.ended) if end else None) or since,
        settled=has_final or now - since > MISSING_SECONDS,
        missing=not has_final,
    )


def _missed_since(word: Job | str, known: Observations, now: float) -> float:
    """Since when exit.json should exist."""
    noticed = known.missing_since if known.missing_since is not None else now
    return min(noticed, word.ended) if isinstance(word, Job) and word.ended is not None else noticed


def _by_absence(word: Job | str, known: Observations, now: float) -> Verdict:
    since = _missed_since(word, known, now)
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
    if not states <= names.ENDED:
        stale = min((verdict.stale for verdict in verdicts.values() if verdict.stale is not None), default=None)
        unsure = [verdict.message for verdict in verdicts.values() if verdict.state == names.UNKNOWN or verdict.stale]
        has_begun = names.RUNNING in states or names.PENDING in states
        state = names.PENDING if states == {names.PENDING} else names.RUNNING if has_begun else names.UNKNOWN
        return Verdict(state, message=unsure[0] if unsure else "", stale=stale)
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


Answer = Mapping[tuple[str, Optional[int]], Job]
"""The result of a poll, by job and task."""

_REFRESH_SECONDS = 60.0
"""How often the time stamp alone is worth a write."""

_OLD_ANSWER_SECONDS = 120.0

_ELSEWHERE_SECONDS = 300.0
"""How long a `serried submit` on another login node is taken to live: its pid means nothing here."""

_MAY_CHANGE_AN_EXIT = frozenset(
    {
        JournalEvent.STOPPING,
        JournalEvent.ORPHANED,
        JournalEvent.SUPERSEDED,
        JournalEvent.NODE_LOST,
        JournalEvent.LAUNCH_FAILED,
        JournalEvent.LAUNCHER_FAILED,
    }
)
"""Events after which an exit status of 0 may mean something else."""


@dataclass(frozen=True)
class Seen:
    at: float | None = None
    """When the scheduler last answered."""
    jobs: tuple[Job, ...] = ()
    missing: Mapping[int | None, float] = field(default_factory=dict)
    """Since when exit.json is missing, by task (None: the run itself)."""
    ended: Mapping[int, str] = field(default_factory=dict)
    """Tasks whose end is certain; their files are not read again."""

    @functools.cached_property
    def by_task(self) -> Mapping[int | None, Job]:
        return {job.task: job for job in self.jobs}


@dataclass(frozen=True)
class Evidence:
    """A run whose end no reader has seen."""

    record: Record
    summary: Summary
    submission: Submission | None
    seen: Seen
    end: End | None = None
    """The decisive exit.json."""
    attempt: int | None = None
    claimed: float | None = None
    ends: Mapping[int, End] = field(default_factory=dict)
    """By task of an array, if its exit.json exists."""
    begun: frozenset[int] = frozenset()
    """Tasks that have a directory."""
    owners: Mapping[int, str] = field(default_factory=dict)
    """By trial that has begun, if jobs draw trials: see `layout.owner_of`."""
    indices: tuple[int, ...] = ()
    is_being_submitted: bool = False
    """The submitting command still runs."""
    links: Mapping[int | None, tuple[Submission, ...]] = field(default_factory=dict)
    """Further jobs: the run's (None), and those of single tasks."""

    def worker_of(self, task: int | None) -> int | None:
        """The task whose job runs this one: another, if jobs draw trials."""
        if task is None or task not in self.owners:
            return task
        return worker_in(self.owners[task], task)

    def jobs(self, task: int | None) -> list[str]:
        """Jobs that may belong to the run or task, in order, from the last known one."""
        own = self.links.get(task, ()) if task is not None else ()
        further = [link.job for link in (*self.links.get(None, ()), *own) if link.is_submitted and link.job]
        first = list(self.submission.jobs) if self.submission else []
        if task is not None and len(first) > 1:
            first = [first[part_of(self.record.offsets, self.worker_of(task) or 0)]]
        every, last = [*first, *further], self.seen.by_task.get(task)
        return every[every.index(last.id) :] if last is not None and last.id in every else every

    @functools.cached_property
    def questions(self) -> list[str]:
        """Job ids to look up at the scheduler; empty without a job, and if the files suffice.

        A queue forgets tasks one by one. Tasks that it may have forgotten are looked up by their own ids.
        """
        submission = self.submission
        if submission is None or not submission.is_submitted or submission.job is None:
            return []
        if not self.indices:
            return self.jobs(None) if self.open_tasks else []
        open_ = [index for index in self.open_tasks if index is not None]
        doubtful = [index for index in open_ if index in self.begun or index in self.seen.missing]
        job_of = self.record.job_of
        further = [job_of(job, index) for index in open_ if index in self.links for job in self.jobs(index)]
        wholes = [*submission.jobs, *(link.job for link in self.links.get(None, ()) if link.job)]
        ids = [*wholes, *(job_of(job, index) for index in doubtful for job in self.jobs(index)), *further]
        return list(dict.fromkeys(ids)) if open_ else []

    def own(self, answer: Answer) -> Answer:
        """A scheduler's answer, with the tasks of an array in parts under their own indices."""
        offsets = self.record.offsets if self.indices else ()
        if not offsets or self.submission is None:
            return answer
        added = dict(zip(self.submission.jobs, offsets))
        for task, links in self.links.items():
            if task is not None:
                added |= {link.job: offset_of(offsets, task) for link in links if link.job}
        mine = (
            (job, task + added[job.id]) for (_, task), job in answer.items() if task is not None and job.id in added
        )
        return {(job.id, task): job._replace(task=task) for job, task in mine}

    @functools.cached_property
    def open_tasks(self) -> list[int | None]:
        """Tasks whose end is not proven; `[None]` for a run without an array."""
        tasks = [index for index in self.indices if index not in self.seen.ended] if self.indices else [None]
        return [task for task in tasks if self.is_open(task)]

    def end_of(self, task: int | None) -> End | None:
        return self.end if task is None else self.ends.get(task)

    def is_open(self, task: int | None) -> bool:
        """Whether the files do not prove its end."""
        return kind_of(self.end_of(task)) is not EndingKind.FINAL


def gather(record: Record, now: float) -> Evidence:
    """Read the files of a run. Raises RecordUnreadable if the record is not valid."""
    memory = read_seen(record)
    links = record.links(memory.ended.keys())
    submission, is_being_submitted = next(iter(record.first_submissions), None), False
    if submission is not None and submission.state == SubmissionState.SUBMITTING:
        is_being_submitted = is_at_work(submission, now)
        if not is_being_submitted:
            # That command has ended, and may have written its result since the file was read.
            submission = next(iter(record.first_submissions), None)
    found = Evidence(record, record.summary, submission, memory, is_being_submitted=is_being_submitted, links=links)
    if record.summary.tasks is not None:
        return _with_tasks(found)
    end, attempt, claimed = _task(record.where)
    return dataclasses.replace(found, end=end, attempt=attempt, claimed=claimed)


def _task(directory: TaskDirectory) -> tuple[End | None, int | None, float | None]:
    """The decisive exit.json, the latest attempt and when it was claimed."""
    end = End.read_known(directory.exit)
    if end is not None:
        return end, end.newest_attempt, seconds_of(end.started)
    attempt = latest_attempt(directory)
    return (
        (None, None, None) if attempt is None else (End.read_known(attempt.exit), attempt.number, claimed_at(attempt))
    )


def claimed_at(attempt: AttemptDirectory) -> float | None:
    """When the attempt began, by its own file."""
    started = (read_json(attempt.claim) or {}).get("started")
    return float(started) if isinstance(started, (int, float)) else _changed(attempt.path)


def latest_attempt(directory: TaskDirectory) -> AttemptDirectory | None:
    found = attempt_numbers(directory)
    return directory.attempt(found[-1]) if found else None


def attempt_numbers(directory: TaskDirectory) -> list[int]:
    return numbers(directory.attempts)


def _proven_end(evidence: Evidence, task: int | None, word: Job | str) -> End | None:
    """The end that journals prove without an exit.json; None if they do not, or if its job may still write one."""
    if word == UNREACHABLE or (isinstance(word, Job) and word.state not in names.ENDED):
        return None
    attempt = latest_attempt(evidence.record.where.task(task))
    plan = evidence.record.plan
    ranks = {names.SCRIPT_RANK} if plan.script else set(range(plan.world_size))
    ended = None
    with contextlib.suppress(ValueError):  # a failing disk may have written anything
        ended = None if attempt is None else _all_ended_well(attempt, plan.allocation.job_nodes, ranks)
    which = "the script" if plan.script else "every rank"
    message = f"{which} exited with status 0; exit.json could not be written"
    conditions = (condition_of(names.COMPLETED, None, message),)
    end = End(evidence.record.id, task, None, None, names.COMPLETED, 0, None, conditions)
    return None if ended is None else end._replace(ended=iso(ended))


def _all_ended_well(attempt: AttemptDirectory, nodes: int, ranks: set[int]) -> float | None:
    """When the last of `ranks` ended, if all ended by themselves, with status 0, before anything ended the attempt."""
    head = read_journal(attempt.events)
    order = [event.get("event") for event in head]
    before = order[: order.index(JournalEvent.ALL_RANKS_ENDED)] if JournalEvent.ALL_RANKS_ENDED in order else order
    ends = entries(head, JournalEvent.NODE_ENDED, NodeEnded)
    if _MAY_CHANGE_AN_EXIT.intersection(before) or any(end.left for end in ends):
        return None
    exits = [exit_ for end in ends for exit_ in end.exits]
    for node in set(range(nodes)) - {end.node for end in ends}:
        journal = read_journal(attempt.node_events(node))
        exits += [Exit.from_json(event) for event in journal if event.get("event") == JournalEvent.RANK_EXIT]
    is_well = all(exit_.exit_code == 0 and not exit_.ended_by_us for exit_ in exits)
    if {exit_.rank for exit_ in exits} != ranks or not is_well:
        return None
    return max((float(event["t"]) for event in head), default=None)


def _changed(path: Path) -> float | None:
    with contextlib.suppress(OSError):
        return path.stat().st_mtime
    return None


def _with_tasks(evidence: Evidence) -> Evidence:
    """Reads one listing of tasks/, and one file of each task that began and is not known to have ended."""
    array = evidence.record.plan.array
    indices = array.indices if array else ()
    where = evidence.record.where
    begun = frozenset(numbers(where.tasks)).intersection(indices)
    open_ = sorted(begun - evidence.seen.ended.keys())
    owners = {index: owner_of(where, index) for index in open_} if evidence.record.plan.draws else {}
    found = {index: End.read_known(where.task(index).exit) for index in open_}
    ends = {index: end for index, end in found.items() if end is not None}
    return dataclasses.replace(evidence, ends=ends, begun=begun, indices=indices, owners=owners)


def _before_the_scheduler(evidence: Evidence, now: float) -> Verdict | None:
    """The verdict on a run that has no job yet, as far as is known; None if it has one."""
    submission = evidence.submission
    if submission is None:
        written = _changed(evidence.record.directory.plan)
        if written is not None and now - written < _ELSEWHERE_SECONDS:
            return Verdict(SUBMITTING)
        return _not_submitted("it was never submitted to the scheduler")
    if submission.state == SubmissionState.FAILED:
        return _not_submitted(submission.message or "the scheduler refused it", seconds_of(submission.at))
    if evidence.is_being_submitted:
        return Verdict(SUBMITTING)
    if not submission.is_submitted or submission.job is None:
        message = submission.message or "the command that submitted it got no answer from the scheduler"
        return Verdict(UNCERTAIN, cause=Reason.UNCERTAIN, message=message)
    return None


def _not_submitted(message: str, since: float | None = None) -> Verdict:
    code = names.EXIT_CODES[names.LAUNCH_FAILED]
    return Verdict(names.LAUNCH_FAILED, code, Reason.SUBMISSION, message, since=since, settled=True)


def is_at_work(submission: Submission, now: float) -> bool:
    """Whether the command that wrote `submitting` may still get an answer."""
    if submission.by_host and submission.by_host != os.uname().nodename:
        at = seconds_of(submission.at)
        return at is not None and now - at < _ELSEWHERE_SECONDS
    process = identify(submission.by_pid)
    # Without a recorded start, the pid must do.
    return process is not None and submission.by_started in ("", process.started)


def read_seen(record: Record) -> Seen:
    """Empty if the file is missing or not valid: it is only a memory."""
    document = {} if record.owner else read_json(record.directory.seen) or {}
    with contextlib.suppress(KeyError, TypeError, ValueError, AttributeError):
        if document.get("schema") == SCHEMA:
            return Seen(
                at=document["at"],
                jobs=tuple(
                    Job(**{**entry, "task": task, "nodes": tuple(entry["nodes"])})
                    for entry in document["jobs"]
                    for task in ([None] if entry["task"] is None else expand(entry["task"]))
                ),
                missing={int(key) if key else None: float(since) for key, since in document["missing"].items()},
                ended={index: state for state, text in document["ended"].items() for index in expand(text)},
            )
    return Seen()


def write_seen(record: Record, before: Seen, after: Seen) -> None:
    """Write `after`, if it says more than `before`. A listing must work with a full or read-only home."""
    same = (before.jobs, before.missing, before.ended) == (after.jobs, after.missing, after.ended)
    is_recent = after.at is None or (before.at is not None and after.at - before.at < _REFRESH_SECONDS)
    if record.owner or (same and is_recent):
        return
    by_state: dict[str, list[int]] = {}
    for index, state in after.ended.items():
        by_state.setdefault(state, []).append(index)
    # Tasks that differ only in their index share an entry: most of a thousand do.
    alike: dict[Job, list[int]] = {}
    for job in after.jobs:
        alike.setdefault(job._replace(task=None), []).extend([] if job.task is None else [job.task])
    entries = [{**job._asdict(), "task": compress(tasks) or None} for job, tasks in alike.items()]
    with contextlib.suppress(OSError):
        document = {
            "schema": SCHEMA,
            "at": after.at,
            "jobs": entries,
            "missing": {"" if key is None else str(key): since for key, since in after.missing.items()},
            "ended": {state: compress(indices) for state, indices in by_state.items()},
        }
        write_bytes(record.directory.seen, text_of(document).encode(), durable=False)


MOST_TASKS_READ = 16

_FOR_GOOD_SECONDS = 86400.0
"""A file system may be away for hours. An end without proof, LOST above all, is written down after a day."""


@dataclass(frozen=True)
class RunStatus:
    record: Record
    summary: Summary | None
    """None if the record cannot be read; the verdict's message says why."""
    verdict: Verdict
    task: int | None = None
    job: str | None = None
    """The job id; for an array in parts all of them, with commas."""
    attempt: int | None = None
    started: float | None = None
    seconds: float | None = None
    """How long it ran, once it has ended."""
    reason: str = ""
    """Why it waits, as the scheduler puts it."""
    starts: float | None = None
    """When the scheduler expects to start it."""
    node_names: tuple[str, ...] = ()
    tasks: Mapping[int, Verdict] | None = None
    """An array's tasks; None for other runs."""
    jobs: Mapping[int, Job] = field(default_factory=dict)
    """The scheduler's answers, by task."""
    warnings: tuple[Condition, ...] = ()
    """Doubts about a run that has not failed."""
    is_elsewhere: bool = False
    """The job belongs to another cluster: the scheduler that answers has a job of another name under its id."""

    @property
    def id(self) -> str:
        return self.record.id if self.task is None else f"{self.record.id}/{self.task}"

    def job_of(self, task: int | None) -> str | None:
        if task is not None and task in self.jobs:
            return self.jobs[task].id
        jobs = self.job.split(",") if self.job else []
        is_one_of = task is not None and len(jobs) > 1
        return jobs[part_of(self.record.offsets, self.record.worker_of(task or 0))] if is_one_of else self.job

    @property
    def state(self) -> str:
        return self.verdict.state

    @property
    def has_ended(self) -> bool:
        return self.verdict.has_ended

    @property
    def waits_because(self) -> Reason | None:
        """The code of `reason`; None if it does not wait, and for a word that its scheduler's room does not know."""
        if self.state != names.PENDING or not self.reason or self.summary is None:
            return None
        return _reason_code(self.summary.scheduler, self.reason)

    @property
    def scheduler_explanation(self) -> str:
        if not self.reason or self.summary is None:
            return "the scheduler gives no reason"
        try:
            return schedulers.get(self.summary.scheduler).explain(self.reason)
        except SerriedError:  # a scheduler that this version does not have
            return ""

    @functools.cached_property
    def progress(self) -> RunProgress | None:
        """What the run does now, from one file; None unless it runs, and for a whole array."""
        if self.state != names.RUNNING or self.summary is None or self.tasks is not None:
            return None
        from serried.records import live  # only for runs that run

        place = self.record.where.task(self.task)
        attempt = latest_attempt(place) if self.attempt is None else place.attempt(self.attempt)
        return live.progress_of(attempt.live, self.summary.metric, time.time()) if attempt else None

    @functools.cached_property
    def progress_of_tasks(self) -> Mapping[int, RunProgress]:
        """What the first running tasks of an array do now: at most MOST_TASKS_READ, each by a listing and a file."""
        running = [index for index, found in (self.tasks or {}).items() if found.state == names.RUNNING]
        tasks = [
            RunStatus(self.record, self.summary, Verdict(names.RUNNING), task=index)
            for index in running[:MOST_TASKS_READ]
        ]
        return {task.task: task.progress for task in tasks if task.progress is not None and task.task is not None}

    @property
    def created(self) -> float:
        return (seconds_of(self.summary.created) if self.summary else None) or 0.0

    def to_json(self) -> dict[str, Any]:
        """An entry of `runs` in the --json output of every reading command."""
        summary, verdict = self.summary, self.verdict
        of_tasks = {str(index): progress.to_json() for index, progress in self.progress_of_tasks.items()}
        return {
            "id": self.id,
            "user": self.record.owner or None,
            "name": summary and summary.name,
            "project": summary and summary.project,
            "experiment": summary and summary.experiment,
            "cluster": summary and summary.cluster,
            "scheduler": summary and summary.scheduler,
            "job": self.job,
            "state": verdict.state,
            "exit_code": verdict.exit_code,
            "cause": verdict.cause or self.waits_because,
            "message": verdict.message or None,
            "conditions": [condition.to_json() for condition in verdict.conditions],
            "reason": self.reason or None,
            "attempt": self.attempt,
            "created": summary and summary.created,
            "expected_start": iso(self.starts),
            "started": iso(self.started),
            "ended": iso(verdict.since) if verdict.has_ended else None,
            "seconds": self.seconds,
            "stale_since": iso(verdict.stale),
            "nodes": summary and summary.nodes,
            "spare_nodes": summary and summary.spare_nodes,
            "ranks_per_node": summary and summary.ranks,
            "gpus_per_node": summary and summary.gpus,
            "node_names": list(self.node_names),
            "resumed_from": summary and summary.resumed_from,
            "rerun_of": summary and summary.rerun_of,
            "after": list(summary.after) if summary else [],
            "smoke": summary and summary.smoke,
            "rehearsal": summary and summary.rehearsal,
            "directory": summary and str(self.record.where.path),
            "warnings": [warning.to_json() for warning in self.warnings],
            "progress": self.progress.to_json() if self.progress else {"tasks": of_tasks} if of_tasks else None,
            "tasks": None if self.tasks is None else ranges_by_state(self.tasks),
        }


def just_submitted(record: Record) -> RunStatus:
    """Without a look at its files or a question to its scheduler."""
    return RunStatus(record, record.summary, Verdict(names.PENDING), job=record.submissions[0].job)


@functools.cache
def _reason_code(scheduler: str, reason: str) -> Reason | None:
    """The code of the scheduler's `reason` for not starting a run. Thousands of runs wait for a few reasons."""
    with contextlib.suppress(SerriedError):  # a scheduler that this version does not have
        return schedulers.get(scheduler).classify(reason)
    return None


def keep_end(status: RunStatus, evidence: Evidence, now: float) -> RunStatus:
    """Write the end into the record once no later evidence can change it. Returns `status`."""
    verdict = status.verdict
    if status.record.owner:
        return status
    is_old = verdict.has_ended and verdict.since is not None and now - verdict.since > _FOR_GOOD_SECONDS
    if not verdict.settled and not is_old:
        return status
    known = evidence.end or End.of({})
    conditions = verdict.conditions or (condition_of(verdict.state, verdict.cause, verdict.message),)
    if status.tasks is not None and (recovered := _recovered_tasks(status)):
        conditions = (*conditions, Condition(Reason.RECOVERED, f"tasks that recovered: {compress(recovered)}"))
        verdict = dataclasses.replace(
            verdict, conditions=conditions, message="; ".join(each.message for each in conditions)
        )
        status = dataclasses.replace(status, verdict=verdict)
    end = known._replace(
        task=None,
        job=status.job,
        attempts=status.attempt,
        state=verdict.state,
        exit_code=verdict.exit_code,
        cause=verdict.cause,
        conditions=conditions,
        started=known.started or iso(status.started),
        ended=iso(verdict.since),
        seconds=status.seconds if known.seconds is None else known.seconds,
        tasks=ranges_by_state(status.tasks or {}),
    )
    record = status.record
    with contextlib.suppress(OSError):  # a full home must not hide how a run ended
        if status.tasks is None and next(record.where.attempts.glob("*/node-*/samples.jsonl"), None) is not None:
            # The samples in a few numbers: sites purge run directories.
            from serried.records import samples  # once in the life of a run

            found = samples.measured_of(samples.read(record.where))
            if found.nodes:
                from serried.records.timeline import time_spent_of

                spent = time_spent_of(record, None, now=now, ended=verdict.since)
                kept = {**found.to_json(), "time": spent and spent.to_json()}
                write_text(record.directory.usage, json.dumps(kept, separators=(",", ":")) + "\n")
        record.write_end(end)
    return status


def _recovered_tasks(status: RunStatus) -> list[int]:
    """The tasks of an array whose ranks started again. Reads a file of each task, once in the life of a run."""
    if not status.record.plan.limit.rounds:
        return []
    ends = {index: End.read_known(status.record.where.task(index).exit) for index in status.tasks or ()}
    return [
        index for index, end in ends.items() if end and any(each.code == Reason.RECOVERED for each in end.conditions)
    ]


def read_end(record: Record) -> RunStatus:
    """The status of an ended run, from one file of its record."""
    end = record.end or End.of({})
    try:
        states = {index: state for state, text in end.tasks.items() for index in expand(text)}
    except ValueError as error:
        raise RecordUnreadable(f"exit.json of run `{record.id}` is not valid ({error})") from error
    return RunStatus(
        record,
        record.summary,
        Verdict.of(end, settled=True),
        job=end.job,
        attempt=end.newest_attempt,
        started=seconds_of(end.started),
        seconds=end.seconds,
        node_names=end.nodes,
        tasks={index: Verdict(states[index], settled=True) for index in sorted(states)} or None,
        warnings=end.warnings,
    )


def _seconds(end: End, started: float | None, verdict: Verdict) -> float | None:
    """How long it ran, once it has ended. `started`: the same, known from elsewhere."""
    if end.seconds is not None or not verdict.has_ended:
        return end.seconds if verdict.has_ended else None
    began = seconds_of(end.started) or started
    return None if verdict.since is None or began is None else max(verdict.since - began, 0.0)


def warnings_of(status: RunStatus) -> tuple[Condition, ...]:
    """The doubts that agents have recorded about a run, or about an attempt that still runs."""
    if status.has_ended or status.summary is None or status.tasks is not None:
        return status.warnings
    attempt = latest_attempt(status.record.where.task(status.task))
    events = list(read_journal(attempt.events)) if attempt else []
    kinds = {entry.get("event") for entry in events}
    found: list[Condition] = []
    if JournalEvent.RANKS_CONNECTED not in kinds:
        apart = [entry for entry in events if entry.get("event") == JournalEvent.RANKS_UNCONNECTED]
        found += [Condition(Reason.RANKS_APART, str(entry["message"])) for entry in apart]
    found += [*warnings_in(events), *recovered_in(events)]
    if status.progress is not None:
        from serried.records import live  # only for runs that run

        has_recovered = any(one.code == Reason.RECOVERED for one in found)
        doubts = live.doubts(status.progress)
        found += [doubt for doubt in doubts if not (has_recovered and doubt.code == Reason.RECOVERED)]
    return tuple(found)


_DELETED = "what it waits for was deleted"
_OF_ANOTHER_NAME = (
    "the scheduler that answers here has a job of another name under its id: it was submitted to another cluster"
)
_FILES_SECONDS = 1.0
_FIRST_SECONDS, _LONGEST_SECONDS, _GROWTH = 2.0, 30.0, 1.5

Observer = Callable[[Sequence[RunStatus]], None]
Jobs = Mapping[Optional[int], Optional[Job]]
"""The current job of each task whose end the files do not prove, None for one that the scheduler does not list."""


def statuses(records: Iterable[Record], *, now: float | None = None) -> list[RunStatus]:
    """The status of each run, in the order given. Ends that are certain are written into the records."""
    now = time.time() if now is None else now
    records = list(records)
    if others := [record for record in records if record.owner]:
        own = [record for record in records if not record.owner]
        found = {id(one.record): one for some in (own, others) for one in _statuses(some, now)}
        return [found[id(record)] for record in records]
    return _statuses(records, now)


def _statuses(records: Sequence[Record], now: float) -> list[RunStatus]:
    """The status of runs that are all ours or all of other users: each kind needs another query of the scheduler."""
    looks = [_look(record, now) for record in records]
    open_ = [look for look in looks if isinstance(look, Evidence)]
    answers = _poll([look for look in open_ if not is_elsewhere(look.submission)])
    strangers = _of_another_cluster(open_, answers)
    return [look if isinstance(look, RunStatus) else _conclude(look, answers, strangers, now=now) for look in looks]


def statuses_of(selections: Sequence[Selection]) -> list[RunStatus]:
    """The status of each selected run or task, with one query for all."""
    records = {selection.record.id: selection.record for selection in selections}
    wholes = dict(zip(records, statuses(records.values())))
    return [
        wholes[each.record.id] if each.task is None else task_of(wholes[each.record.id], each.task)
        for each in selections
    ]


def status(record: Record) -> RunStatus:
    return statuses([record])[0]


def registered(name: str) -> Scheduler:
    """Its module is loaded on demand."""
    scheduler: Scheduler = schedulers.get(name)
    return scheduler


def _look(record: Record, now: float) -> RunStatus | Evidence:
    try:
        return read_end(record) if record.end is not None else gather(record, now)
    except RecordUnreadable as error:
        return RunStatus(record, None, Verdict(names.UNKNOWN, cause=Reason.UNREADABLE, message=error.message))


def _poll(open_: Sequence[Evidence]) -> dict[str, Answer | None]:
    """By scheduler; None for one that does not answer."""
    if open_ and open_[0].record.owner:
        return _poll_others(open_)
    questions: dict[str, list[str]] = {}
    oldest: dict[str, float] = {}
    for evidence in open_:
        ids, submission = evidence.questions, evidence.submission
        if ids and submission is not None:
            questions.setdefault(submission.scheduler, []).extend(ids)
            at = seconds_of(submission.at) or 0.0
            oldest[submission.scheduler] = min(oldest.get(submission.scheduler, at), at)
    answers: dict[str, Answer | None] = {}
    for name, ids in questions.items():
        answers[name] = None
        with contextlib.suppress(SchedulerUnreachable, UsageError):
            answers[name] = registered(name).poll(ids, oldest[name] or None)
    return answers


def _poll_others(open_: Sequence[Evidence]) -> dict[str, Answer | None]:
    """As `_poll`, for runs of other users. A job that has not claimed its run yet is identified by its name."""
    answers: dict[str, Answer | None] = {}
    for name in {evidence.summary.scheduler for evidence in open_}:
        answers[name] = None
        some = [evidence for evidence in open_ if evidence.summary.scheduler == name and evidence.questions]
        with contextlib.suppress(SerriedError):
            users = sorted({evidence.record.owner for evidence in some})
            listed = dict(registered(name).poll_others(users)) if users else {}
            tokens = {evidence.submission.token for evidence in some if evidence.submission}
            named = [(token, job) for token in tokens for job in listed.values() if names_token(job.name, token)]
            answers[name] = {**{(token, job.task): job for token, job in named}, **listed}
    return answers


def _conclude(
    evidence: Evidence,
    answers: Mapping[str, Answer | None],
    strangers: Collection[str],
    *,
    now: float,
    polled: frozenset[str] = frozenset(),
) -> RunStatus:
    """The status of a run by its evidence and its scheduler's answer.

    If the scheduler reports an end that the files do not show, the files are read again: they were read before, and
    the end may lie between. Further jobs that the files name by then are looked up as well. `polled` are the ids of
    the looks before this one.
    """
    ended = _before_the_scheduler(evidence, now)
    if ended is not None:
        return keep_end(RunStatus(evidence.record, evidence.summary, ended), evidence, now)
    answer = answers.get(evidence.submission.scheduler) if evidence.submission else None
    # Why the scheduler that answers here does not have the run; empty if it may have it.
    elsewhere = _OF_ANOTHER_NAME if evidence.record.id in strangers else ""
    if evidence.submission and is_elsewhere(evidence.submission):
        elsewhere = f"it was submitted to `{evidence.submission.site}`, and another scheduler answers here"
    jobs = None if elsewhere or answer is None else _current_jobs(evidence, evidence.own(answer), now)
    is_behind = any(job is None or job.state in names.ENDED for job in (jobs or {}).values())
    if is_behind and not polled.issuperset(evidence.questions):
        polled |= set(evidence.questions)
        look = _look(evidence.record, now)
        if isinstance(look, RunStatus):
            return look
        if not polled.issuperset(look.questions):
            answers = {**answers, **_poll([look])}
        return _conclude(look, answers, strangers, now=now, polled=polled)
    found = (_array if evidence.indices else _single)(evidence, jobs, now)
    if elsewhere:

        def stated(verdict: Verdict) -> Verdict:
            if verdict.has_ended:
                return verdict
            # The scheduler was not asked, which is no failure of its own.
            cause = Reason.ELSEWHERE if verdict.cause in (Reason.UNREACHABLE, None) else verdict.cause
            return dataclasses.replace(verdict, message=elsewhere, cause=cause)

        tasks = found.tasks and {index: stated(verdict) for index, verdict in found.tasks.items()}
        found = dataclasses.replace(found, verdict=stated(found.verdict), tasks=tasks, is_elsewhere=True)
    return keep_end(found, evidence, now)


def _current_jobs(evidence: Evidence, answer: Answer, now: float) -> Jobs:
    """Of the jobs of each task, in their order, the job that decides its state now.

    Each job begins when the job before it has ended: the first that has not ended is the current one. After a
    cancelled job the later ones refuse to run.
    """
    current: dict[int | None, Job | None] = {}
    for task in evidence.open_tasks:
        current[task] = None
        remembered = evidence.seen.by_task.get(task)
        for job in evidence.jobs(task):
            reported = answer.get((job, evidence.worker_of(task)))
            if remembered is not None and remembered.id == job and remembered.state in names.ENDED:
                # Its cache still says PENDING for a while after a cancellation.
                is_recent = now - (remembered.ended or 0.0) < _OLD_ANSWER_SECONDS
                is_old_answer = reported is not None and reported.state == names.PENDING and is_recent
                if reported is None or (is_old_answer and remembered.state == names.CANCELLED):
                    reported = remembered
            if reported is not None:
                current[task] = reported if reported.task == task else reported._replace(task=task)
                if reported.state not in names.ENDED or reported.state == names.CANCELLED:
                    break
    return current


def is_elsewhere(submission: Submission | None) -> bool:
    """Whether it went to a scheduler with another name than the one here: its ids mean nothing here."""
    here = _site_here(submission.scheduler) if submission and submission.site else ""
    return submission is not None and bool(here) and here != submission.site


@functools.cache
def _site_here(scheduler: str) -> str:
    """Queried once for all open runs, because a controller that is down costs a timeout each time."""
    from serried.schedulers.survey import GLANCE_SECONDS  # only for jobs that a scheduler may still have

    return schedulers.cluster(scheduler).own_name(os.environ, seconds=GLANCE_SECONDS)


def _of_another_cluster(open_: Sequence[Evidence], answers: Mapping[str, Answer | None]) -> set[str]:
    """Runs whose job ids belong here to jobs with other names: that of a job contains its run, or is its script's.

    Two clusters that share a home, or a lab after a lab, give out the same ids.
    """
    strangers = set()
    for name, answer in answers.items():
        if answer is None:
            continue
        split = registered(name).split
        names_of: dict[str, list[str]] = {}
        for (number, _), job in answer.items():
            names_of.setdefault(number, []).append(job.name)
        for evidence in open_:
            if evidence.submission is not None and evidence.submission.scheduler == name:
                run = evidence.record.id
                numbers = {split(job)[0] for job in evidence.questions}
                others = {other for number in numbers for other in names_of.get(number, ()) if other}
                if any(run not in other for other in others):
                    script = evidence.record.plan.script
                    if script is None or not script.is_singleton or others != {script.job_name}:
                        strangers.add(run)
    return strangers


def _single(evidence: Evidence, jobs: Jobs | None, now: float) -> RunStatus:
    memory, word = evidence.seen, _word(jobs, None)
    found = _judge(evidence, None, word, now)
    missing: dict[int | None, float] = {None: memory.missing.get(None, now)} if found.missing else {}
    last_jobs = (word,) if isinstance(word, Job) else memory.jobs
    write_seen(evidence.record, memory, Seen(memory.at if jobs is None else now, last_jobs, missing))
    if found.state == names.RUNNING and not found.message and evidence.summary.stages and evidence.attempt:
        from serried.records.live import staging_progress  # only while data is copied

        attempt = evidence.record.where.attempt(evidence.attempt)
        found = dataclasses.replace(found, message=staging_progress(attempt))
    end = evidence.end or End.of({})
    last = end.job or (evidence.submission.job if evidence.submission else None) or ""
    last = "" if evidence.submission and last == evidence.submission.token else last
    live = word if isinstance(word, Job) else Job(last, None, "")
    reason = live.reason if found.state == names.PENDING else ""
    return RunStatus(
        evidence.record,
        evidence.summary,
        _in_context(found, evidence, _reason_code(evidence.summary.scheduler, reason) if reason else None),
        job=live.id or None,
        attempt=evidence.attempt,
        started=evidence.claimed,
        seconds=_seconds(end, evidence.claimed, found),
        reason=reason,
        starts=live.starts if found.state == names.PENDING else None,
        node_names=live.nodes or end.nodes,
        warnings=end.warnings if found.has_ended else (),
    )


def _array(evidence: Evidence, jobs: Jobs | None, now: float) -> RunStatus:
    memory = evidence.seen
    verdicts = {
        index: Verdict(memory.ended[index], settled=True)
        if index in memory.ended
        else _judge(evidence, index, _word(jobs, index), now)
        for index in evidence.indices
    }
    if evidence.record.plan.draws:
        for trial in verdicts.keys() - memory.ended.keys():
            if not evidence.owners.get(trial, "").isdecimal():  # no job has drawn it
                verdicts[trial] = _of_undrawn(evidence, trial, verdicts[trial], now)
    ended = {index: found.state for index, found in verdicts.items() if found.settled}
    # The scheduler's present answers, and its earlier ones for tasks that it has forgotten since.
    last_jobs = {one.task: one for one in (*memory.jobs, *filter(None, (jobs or {}).values()))}
    last_jobs = {index: job for index, job in last_jobs.items() if index is not None and index not in ended}
    missing: dict[int | None, float] = {
        index: memory.missing.get(index, now) for index, found in verdicts.items() if found.missing
    }
    at = memory.at if jobs is None else now
    write_seen(evidence.record, memory, Seen(at, tuple(last_jobs.values()), missing, ended))
    current = {} if jobs is None else {index: job for index, job in last_jobs.items() if index is not None}
    waiting = next((job for job in current.values() if job.state == names.PENDING), None)
    return RunStatus(
        evidence.record,
        evidence.summary,
        of_array(verdicts),
        job=evidence.submission.job if evidence.submission else None,
        reason=waiting.reason if waiting else "",
        starts=waiting.starts if waiting else None,
        tasks=verdicts,
        jobs=current,
    )


def _of_undrawn(evidence: Evidence, trial: int, found: Verdict, now: float) -> Verdict:
    """The verdict on a trial that no job has drawn. Once its own job has ended, no other job may draw the trial."""
    record = evidence.record
    if evidence.owners.get(trial) != names.WITHDRAWN:
        if not found.has_ended or record.owner:
            return found
        try:
            if not withdraw(record.where, trial, MODES[record.plan.share].directory):
                return Verdict(names.RUNNING)  # a job has drawn it since its files were read
        except OSError:
            return dataclasses.replace(found, settled=False)
    if found.has_ended:
        return dataclasses.replace(found, settled=True)
    code = names.EXIT_CODES[names.CANCELLED]
    return Verdict(names.CANCELLED, code, Reason.USER, "stopped before it began", since=now, settled=True)


def _word(jobs: Jobs | None, task: int | None) -> Job | str:
    return UNREACHABLE if jobs is None else jobs.get(task) or ABSENT


def _judge(evidence: Evidence, task: int | None, word: Job | str, now: float) -> Verdict:
    """The verdict on the run itself (None), or on one task of an array."""
    if evidence.record.owner and isinstance(word, str) and evidence.is_open(task):
        return _unlisted(evidence.record.where.task(task), now)
    memory, end = evidence.seen, evidence.end_of(task)
    proven = None
    if kind_of(end) is EndingKind.NONE and (task is None or task in evidence.begun):
        proven = _proven_end(evidence, task, word)
    claimed = evidence.claimed
    is_alive = isinstance(word, Job) and word.state not in names.ENDED
    if task is not None and task in evidence.begun and not is_alive and evidence.is_open(task):
        # Read only if the state depends on it, because arrays are large.
        attempt = latest_attempt(evidence.record.where.task(task))
        claimed = None if attempt is None else claimed_at(attempt)
    missing_since = memory.missing.get(task)
    known = Observations(memory.by_task.get(task), memory.at, claimed, missing_since)
    found = judge(word, proven or end, known, now)
    if proven:  # exit.json, which says more, may still appear for a while
        is_late = missing_since is not None and now - missing_since > MISSING_SECONDS
        found = dataclasses.replace(found, settled=is_late, missing=True)
    return found


def _unlisted(place: TaskDirectory, now: float) -> Verdict:
    """The verdict on another user's run whose job the scheduler does not show: many show users only their own jobs."""
    attempt = latest_attempt(place)
    changed = None if attempt is None else _changed(attempt.live)
    if changed is not None and now - changed < MISSING_SECONDS:
        return Verdict(names.RUNNING)
    last = "" if changed is None else f"; its files are from {ago(now - changed)}"
    return Verdict(names.UNKNOWN, message=f"the scheduler does not show its job to you{last}")


def _in_context(found: Verdict, evidence: Evidence, reason: Reason | None) -> Verdict:
    """Add what the table cannot know: the run comes after others, is between attempts, or has no run directory.

    `reason` is the code of the scheduler's reason for not starting it.
    """
    if found.message and not found.missing:
        return found
    message = ""
    if found.state == names.PENDING and not evidence.attempt and evidence.summary.after and reason in OF_DEPENDENCIES:
        never = f", and never starts: {_DELETED}" if reason is Reason.DEPENDENCY_NEVER_SATISFIED else ""
        message = f"comes after {', '.join(evidence.summary.after)}{never}"
    elif found.state == names.PENDING and evidence.attempt:
        message = f"waits for attempt {evidence.attempt + 1}"
    elif found.state == names.RUNNING and evidence.attempt is None:
        message = "starting"
    elif found.missing and not evidence.record.where.path.is_dir():
        message = f"{found.message}; its run directory is gone"
    return dataclasses.replace(found, message=message) if message else found


def task_of(whole: RunStatus, index: int) -> RunStatus:
    """The status of one task of an array, with the facts of its own exit.json."""
    status = RunStatus(
        whole.record, whole.summary, whole.verdict, task=index, job=whole.job_of(index), is_elsewhere=whole.is_elsewhere
    )
    if whole.tasks is None or index not in whole.tasks:
        if whole.has_ended or whole.tasks is None:
            return status
        raise RunNotFoundError(f"run `{whole.record.id}` has no task {index}")
    found = whole.tasks[index]
    end = End.read_known(whole.record.where.task(index).exit) or End.of({})
    if end.state == found.state != names.REQUEUED:
        found = Verdict.of(end, settled=True)
    job = whole.jobs.get(index) or Job("", index, "")
    return dataclasses.replace(
        status,
        verdict=found,
        attempt=end.newest_attempt,
        started=seconds_of(end.started),
        seconds=_seconds(end, None, found),
        reason=job.reason if found.state == names.PENDING else "",
        starts=job.starts,
        node_names=job.nodes or end.nodes,
        warnings=end.warnings,
    )


def wait(
    selections: Sequence[Selection],
    *,
    timeout: float | None = None,
    observe: Observer | None = None,
    tick: Callable[[], None] = lambda: None,
) -> list[RunStatus]:
    """Return the statuses when each run has ended, never starts or is uncertain, or after `timeout` seconds.

    `observe` receives the statuses after each query; `tick` is called about once a second.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    pace = Pace()
    stuck: set[str] = set()
    while True:
        found = statuses_of(selections)
        if observe:
            observe(found)
        # It takes two looks to call a run stuck: between two queries a job may have ended.
        before_stuck, stuck = stuck, {status.id for status in found if never_starts(status)}
        over = [is_over(status) or status.id in stuck & before_stuck for status in found]
        open_ = [selection for selection, is_done in zip(selections, over) if not is_done]
        if not open_ or (deadline is not None and time.monotonic() >= deadline):
            return found
        _watch_files(open_, time.monotonic() + pace.after(found), deadline, tick)


class Pace:
    """The seconds until the next query: more and more while nothing changes."""

    def __init__(self) -> None:
        self._seconds, self._before = _FIRST_SECONDS, ""

    def after(self, found: Sequence[RunStatus]) -> float:
        ended = [sum(task.has_ended for task in (status.tasks or {}).values()) for status in found]
        now = repr([(status.state, status.attempt, count) for status, count in zip(found, ended)])
        self._seconds = _FIRST_SECONDS if now != self._before else min(self._seconds * _GROWTH, _LONGEST_SECONDS)
        self._before = now
        return self._seconds


def is_over(status: RunStatus) -> bool:
    """Whether waiting longer is useless."""
    return (status.has_ended and status.verdict.stale is None) or status.state == UNCERTAIN


def never_starts(status: RunStatus) -> bool:
    """Whether its job can never start: it requests too much, or its dependency can never be satisfied."""
    return status.waits_because in NEVER_STARTS


def why_never(status: RunStatus) -> str:
    """Why a run never starts, as the end of a sentence."""
    if status.waits_because is Reason.DEPENDENCY_NEVER_SATISFIED:
        return _DELETED
    return status.scheduler_explanation


def _watch_files(
    selections: Sequence[Selection], until: float, deadline: float | None, tick: Callable[[], None]
) -> None:
    """Sleep until `until`, or until a file shows the end of a selected run."""
    until = until if deadline is None else min(until, deadline)
    selections = [one for one in selections if not has_ended_by_file(one)]  # a preempted run has, and continues
    while (left := until - time.monotonic()) > 0:
        time.sleep(min(_FILES_SECONDS, left))
        tick()
        if any(has_ended_by_file(selection) for selection in selections):
            return


def has_ended_by_file(selection: Selection) -> bool:
    """Whether exit.json shows the end, by one file and no query. A whole array has no such file."""
    return kind_of(End.read_known(selection.place.exit)) not in (EndingKind.NONE, EndingKind.REQUEUED)
