"""What the files show of a run: its submissions, its attempts, its end. Reads few files and calls no scheduler.

`seen.json` in the record has the last answers of a scheduler that forgets jobs, and when a file was first missing.
Several readers may write it. The last one wins, which costs at most a longer wait.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from serried.base.files import numbers, read_journal, read_json, text_of, write_bytes
from serried.base.processes import identify
from serried.base.text import compress, expand, seconds_of
from serried.records.record import Record, Submission, Summary, read_exit
from serried.records.verdict import AMBIGUOUS, SUBMITTING, UNCERTAIN, UNREACHABLE, Ending, EndingKind, Verdict
from serried.schedulers.interface import Job
from serried.schema import SCHEMA, names
from serried.schema.events import JournalEvent
from serried.schema.layout import AttemptDirectory, TaskDirectory
from serried.schema.names import SubmissionState
from serried.schema.reasons import Reason
from serried.schema.successor_commands import offset_of, part_of

Answer = Mapping[tuple[str, int | None], Job]
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

    def job(self, task: int | None) -> Job | None:
        return self._by_task.get(task)

    @functools.cached_property
    def _by_task(self) -> Mapping[int | None, Job]:
        return {job.task: job for job in self.jobs}


@dataclass(frozen=True)
class Evidence:
    """A run whose end no reader has seen."""

    record: Record
    summary: Summary
    submission: Submission | None
    seen: Seen
    document: Mapping[str, Any] = field(default_factory=dict)
    """The exit.json that `ending` was parsed from."""
    ending: Ending | None = None
    attempt: int | None = None
    claimed: float | None = None
    endings: Mapping[int, Ending] = field(default_factory=dict)
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
        from serried.schema import layout  # only where jobs draw trials

        return layout.worker_in(self.owners[task], task)

    def is_undrawn(self, trial: int) -> bool:
        """Whether no job has drawn it, in a run whose jobs draw trials."""
        return not self.owners.get(trial, "").isdecimal()

    def jobs(self, task: int | None) -> list[str]:
        """Jobs that may belong to the run or task, in order, from the last known one."""
        own = self.links.get(task, ()) if task is not None else ()
        further = [link.job for link in (*self.links.get(None, ()), *own) if link.is_submitted and link.job]
        first = list(self.submission.jobs) if self.submission else []
        if task is not None and len(first) > 1:
            first = [first[part_of(self.record.offsets, self.worker_of(task) or 0)]]
        every, last = [*first, *further], self.seen.job(task)
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
        added = dict(zip(self.submission.jobs, offsets, strict=False))
        for task, links in self.links.items():
            if task is not None:
                added |= {link.job: offset_of(offsets, task) for link in links if link.job}
        mine = (
            (job, task + added[job.id]) for (_, task), job in answer.items() if task is not None and job.id in added
        )
        return {(job.id, task): dataclasses.replace(job, task=task) for job, task in mine}

    @functools.cached_property
    def open_tasks(self) -> list[int | None]:
        """Tasks whose end is not proven; `[None]` for a run without an array."""
        tasks = [index for index in self.indices if index not in self.seen.ended] if self.indices else [None]
        return [task for task in tasks if self.is_open(task)]

    def ending_of(self, task: int | None) -> Ending | None:
        return self.ending if task is None else self.endings.get(task)

    def is_open(self, task: int | None) -> bool:
        """Whether the files do not prove its end."""
        ending = self.ending_of(task)
        return ending is None or ending.kind is EndingKind.REQUEUED or ending.kind in AMBIGUOUS


def gather(record: Record, now: float) -> Evidence:
    """Read the files of a run. Raises RecordUnreadable if the record is not valid."""
    memory = read_seen(record)
    links = record.links(memory.ended.keys())
    submission, is_being_submitted = _submission(record, now)
    begun = functools.partial(
        Evidence, record, record.summary, submission, memory, is_being_submitted=is_being_submitted, links=links
    )
    if record.summary.tasks is not None:
        return _with_tasks(begun())
    document, attempt, claimed = _task(record.where)
    ending = Ending.parse(document) if document else None
    return begun(document=document or {}, ending=ending, attempt=attempt, claimed=claimed)


def _submission(record: Record, now: float) -> tuple[Submission | None, bool]:
    """The run's first submission, and whether a command is submitting it now."""
    submission = next(iter(record.first_submissions), None)
    if submission is None or submission.state != SubmissionState.SUBMITTING:
        return submission, False
    if is_at_work(submission, now):
        return submission, True
    # That command has ended, and may have written its result since the file was read.
    return next(iter(record.first_submissions), None), False


def _task(directory: TaskDirectory) -> tuple[dict[str, Any] | None, int | None, float | None]:
    """The decisive exit.json, the latest attempt and when it was claimed."""
    document = read_exit(directory.exit)
    if document is not None:
        number = document.get("attempts", document.get("attempt"))
        return document, number if isinstance(number, int) else None, seconds_of(document.get("started"))
    attempt = latest_attempt(directory)
    return (None, None, None) if attempt is None else (read_exit(attempt.exit), attempt.number, claimed_at(attempt))


def claimed_at(attempt: AttemptDirectory) -> float | None:
    """When the attempt began, by its own file."""
    started = (read_json(attempt.claim) or {}).get("started")
    return float(started) if isinstance(started, int | float) else _changed(attempt.path)


def latest_attempt(directory: TaskDirectory) -> AttemptDirectory | None:
    found = attempt_numbers(directory)
    return directory.attempt(found[-1]) if found else None


def attempt_numbers(directory: TaskDirectory) -> list[int]:
    return numbers(directory.attempts)


def proven_end(evidence: Evidence, task: int | None, word: Job | str) -> Ending | None:
    """The end that journals prove without an exit.json; None if they do not, or if its job may still write one."""
    if word == UNREACHABLE or (isinstance(word, Job) and word.state not in names.ENDED):
        return None
    attempt = latest_attempt(evidence.record.where.task(task))
    plan = evidence.record.plan
    ranks = {names.SCRIPT_RANK} if plan.script else set(range(plan.world_size))
    ended = None if attempt is None else _all_ended_well(attempt, plan.allocation.nodes, ranks)
    which = "the script" if plan.script else "every rank"
    message = f"{which} exited with status 0; exit.json could not be written"
    return None if ended is None else Ending(names.COMPLETED, 0, None, message, ended, EndingKind.FINAL)


def _all_ended_well(attempt: AttemptDirectory, nodes: int, ranks: set[int]) -> float | None:
    """When the last of `ranks` ended, if all ended by themselves, with status 0, before anything ended the attempt."""
    head = read_journal(attempt.events)
    order = [event.get("event") for event in head]
    before = order[: order.index(JournalEvent.ALL_RANKS_ENDED)] if JournalEvent.ALL_RANKS_ENDED in order else order
    ends = [event for event in head if event.get("event") == JournalEvent.NODE_ENDED]
    if _MAY_CHANGE_AN_EXIT.intersection(before) or any(event.get("left") for event in ends):
        return None
    exits: list[dict[str, Any]] = [exit_ for event in ends for exit_ in event["exits"]]
    for node in set(range(nodes)) - {event.get("node") for event in ends}:
        exits += [
            event for event in read_journal(attempt.node_events(node)) if event.get("event") == JournalEvent.RANK_EXIT
        ]
    is_well = all(exit_["exit_code"] == 0 and not (exit_["signal"] or exit_["ended_by_us"]) for exit_ in exits)
    if {exit_["rank"] for exit_ in exits} != ranks or not is_well:
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
    endings: dict[int, Ending] = {}
    open_ = sorted(begun - evidence.seen.ended.keys())
    owners = {}
    if evidence.record.plan.draws:
        from serried.schema import layout  # only where jobs draw trials

        owners = {index: layout.owner_of(where, index) for index in open_}
    for index in open_:
        document = read_exit(where.task(index).exit)
        ending = Ending.parse(document) if document else None
        if ending is not None:
            endings[index] = ending
    return dataclasses.replace(evidence, endings=endings, begun=begun, indices=indices, owners=owners)


def before_the_scheduler(evidence: Evidence, now: float) -> Verdict | None:
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


def current_job(
    chain: Sequence[str], task: int | None, answer: Answer, remembered: Job | None, now: float
) -> Job | None:
    """Of the jobs of a run or task, in their order, the job that decides its state now.

    Each job begins when the job before it has ended: the first that has not ended is the current one. After a
    cancelled job the later ones refuse to run.
    """
    found: Job | None = None
    for job in chain:
        last = remembered if remembered is not None and remembered.id == job else None
        reported = answer.get((job, task))
        if last is not None and last.state in names.ENDED:
            # Its cache still says PENDING for a while after a cancellation.
            was_cancelled = last.state == names.CANCELLED and now - (last.ended or 0.0) < _OLD_ANSWER_SECONDS
            if reported is None or (reported.state == names.PENDING and was_cancelled):
                reported = last
        found = reported or found
        if reported is not None and (reported.state not in names.ENDED or reported.state == names.CANCELLED):
            break
    return found


def read_seen(record: Record) -> Seen:
    """Empty if the file is missing or not valid: it is only a memory."""
    document = read_json(record.directory.seen) or {}
    with contextlib.suppress(KeyError, TypeError, ValueError, AttributeError):
        if document.get("schema") == SCHEMA:
            return Seen(
                at=document["at"],
                jobs=tuple(_ungroup(document["jobs"])),
                missing={int(key) if key else None: float(since) for key, since in document["missing"].items()},
                ended={index: state for state, text in document["ended"].items() for index in expand(text)},
            )
    return Seen()


def write_seen(record: Record, before: Seen, after: Seen) -> None:
    """Write `after`, if it says more than `before`. A listing must work with a full or read-only home."""
    same = (before.jobs, before.missing, before.ended) == (after.jobs, after.missing, after.ended)
    if same and (after.at is None or (before.at is not None and after.at - before.at < _REFRESH_SECONDS)):
        return
    by_state: dict[str, list[int]] = {}
    for index, state in after.ended.items():
        by_state.setdefault(state, []).append(index)
    with contextlib.suppress(OSError):
        document = {
            "schema": SCHEMA,
            "at": after.at,
            "jobs": _group(after.jobs),
            "missing": {"" if key is None else str(key): since for key, since in after.missing.items()},
            "ended": {state: compress(indices) for state, indices in by_state.items()},
        }
        write_bytes(record.directory.seen, text_of(document).encode(), durable=False)


def _group(jobs: Iterable[Job]) -> list[dict[str, Any]]:
    """Tasks that differ only in their index share an entry: most of a thousand do."""
    groups: dict[Job, list[int]] = {}
    for job in jobs:
        indices = groups.setdefault(dataclasses.replace(job, task=None), [])
        if job.task is not None:
            indices.append(job.task)
    return [
        {**dataclasses.asdict(job), "task": compress(indices) if indices else None} for job, indices in groups.items()
    ]


def _ungroup(lines: Iterable[dict[str, Any]]) -> Iterable[Job]:
    for line in lines:
        indices = line["task"]
        for task in [None] if indices is None else expand(indices):
            yield Job(**{**line, "task": task, "nodes": tuple(line["nodes"])})
