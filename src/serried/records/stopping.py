"""Stop runs: send a stop request through a file, take the claims of jobs that have not begun, cancel the rest."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import cast

from serried.base import processes
from serried.base.errors import SchedulerUnreachable, SerriedError
from serried.base.files import MODES, Journal, claim, make_directory
from serried.base.text import iso
from serried.records.index import Selection, records
from serried.records.record import Record, RecordUnreadable
from serried.records.status import (
    RunStatus,
    has_ended_by_file,
    latest_attempt,
    read_seen,
    registered,
    statuses,
    write_seen,
)
from serried.schedulers.interface import Job
from serried.schema import layout, names
from serried.schema.endings import Condition, End
from serried.schema.events import ToAttempt
from serried.schema.names import SubmissionState
from serried.schema.reasons import Reason

PATIENCE_SECONDS = 15
"""Time to end, in addition to the ranks' grace period."""


def who() -> str:
    """`ada@login1`: the user of this process."""
    return f"{processes.user()}@{os.uname().nodename}"


def request(status: RunStatus, *, save: bool) -> list[Selection]:
    """Request that running tasks end, or first `save`; return the tasks that received the request."""
    requested = [Selection(status.record, task) for task in _open(status)]
    return [selection for selection in requested if send_request(selection, save=save)]


def left(status: RunStatus, requested: Iterable[Selection]) -> list[int | None]:
    """The tasks that have not ended and received no request; None for a run without tasks."""
    done = {str(selection) for selection in requested}
    return [task for task in _open(status) if str(Selection(status.record, task)) not in done]


def waiting(status: RunStatus, tasks: Iterable[int | None]) -> list[int | None]:
    if status.tasks is None:
        return list(tasks) if status.state == names.PENDING else []
    return [one for one in tasks if one is not None and status.tasks[one].state == names.PENDING]


def _open(status: RunStatus) -> list[int | None]:
    if status.tasks is None:
        return [status.task]
    return [index for index, verdict in status.tasks.items() if not verdict.has_ended]


def send_request(selection: Selection, *, save: bool, reason: Reason = Reason.USER) -> bool:
    """Request that a run or task ends, or first saves. False if it does not run."""
    attempt = latest_attempt(selection.place)
    if attempt is None or attempt.exit.exists():
        return False
    try:
        journal = Journal(attempt.control)
    except OSError as error:
        hint = f"serried stop --now {selection} cancels the job without a request"
        raise SerriedError(f"`{attempt.control}` cannot be written ({error.strerror})", hint=hint) from error
    more = {"save": True} if save else {}
    journal.append({"t": time.time(), "request": ToAttempt.STOP, "reason": reason, "by": who(), **more})
    journal.close()
    return True


def wait_for(requested: list[Selection], seconds: float) -> list[Selection]:
    deadline = time.monotonic() + seconds
    while requested and time.monotonic() < deadline:
        time.sleep(min(1.0, max(deadline - time.monotonic(), 0.0)))
        requested = [selection for selection in requested if not has_ended_by_file(selection)]
    return requested


def withdraw(record: Record) -> bool:
    """Take the claims of a run that has not begun, so that no job can begin it. False if a job has a claim."""
    submissions = [submission for submission in record.submissions if submission.state != SubmissionState.FAILED]
    too_early = {submission.number - 1 for submission in submissions if submission.moved}
    for submission in submissions:
        if submission.number in too_early:
            continue  # that job has exited with its claim
        for token in record.tokens_of(submission):
            path: Path = record.where.claim(token)
            try:
                make_directory(path.parent)
                owner = claim(path, names.WITHDRAWN)
            except OSError:
                return False
            if owner != names.WITHDRAWN:
                return False
    job = submissions[-1].job if submissions else None
    why = Condition(Reason.USER, f"stopped by {who()} before it began")
    code = names.EXIT_CODES[names.CANCELLED]
    end = End(record.id, None, None, job, names.CANCELLED, code, why.code, (why,), ended=iso(time.time()))
    record.write_end(end)
    return True


def cancel(status: RunStatus, left: Sequence[int | None], *, now: bool, stopped: Collection[str] = ()) -> str | None:
    """Cancel the tasks `left` of a run through its scheduler: with `now` at once, else those that got no request.

    `stopped` are all runs that are being stopped. Returns why the job stays in the queue, if it does. That does no
    harm: its claim is taken, so the job ends itself.

    Raises SchedulerUnreachable if a job continues to run.
    """
    record, job, summary = status.record, status.job, status.summary
    if job is None or summary is None or not left:
        return None
    jobs = job.split(",")
    is_whole = status.task is None and (now or status.tasks is None)
    if record.plan.draws and not is_whole:
        for trial in waiting(status, left):
            with contextlib.suppress(OSError):
                layout.withdraw(record.where, cast("int", trial), MODES[record.plan.share].directory)
    further = _withdraw_further(status, [None] if is_whole else left)
    if status.task is None and withdraw(record):
        if not now and (other := _stranded(record, stopped)):
            return f"{other} waits for it, and would never start if it were deleted"
        try:
            _cancel(status, list(dict.fromkeys([*jobs, *further])))
        except SchedulerUnreachable:
            return "the scheduler does not answer"
        return None
    ids = jobs if is_whole else [record.job_of(status.job_of(index) or job, index) for index in left]
    _cancel(status, [*ids, *(each for each in further if each not in ids)])
    # A scheduler without accounting forgets within minutes that these tasks never began.
    before = read_seen(record)
    cancelled = {
        task: Job(status.job_of(task) or "", task, names.CANCELLED, ended=time.time()) for task in waiting(status, left)
    }
    others = tuple(job for job in before.jobs if job.task not in cancelled)
    write_seen(record, before, dataclasses.replace(before, jobs=(*others, *cancelled.values())))
    return None


def _stranded(record: Record, stopped: Collection[str]) -> str | None:
    """A run, not itself `stopped`, that would never start if the job of `record` were deleted before it begins."""
    scheduler = registered(record.summary.scheduler)
    if not record.where.followed.exists() or not scheduler.commands(record.plan, {}).strands:
        return None
    behind = []
    for other in records():
        with contextlib.suppress(RecordUnreadable):
            if other.id not in stopped and any(after.run == record.id for after in other.plan.after):
                behind.append(other)
    return next((status.id for status in statuses(behind) if not status.has_ended), None)


def end_job(status: RunStatus, job: str) -> None:
    """Have the scheduler end a job of the run. Raises SchedulerUnreachable."""
    _cancel(status, [job])


def _cancel(status: RunStatus, jobs: Sequence[str]) -> None:
    if status.summary is None:
        return
    if status.is_elsewhere:
        message = f"the scheduler that answers here does not have job {jobs[0]}; nothing was cancelled"
        hint = f"run `{status.id}` was submitted to another cluster: stop it from there"
        raise SchedulerUnreachable(message, hint=hint)
    registered(status.summary.scheduler).cancel(jobs)


def _withdraw_further(status: RunStatus, left: Sequence[int | None]) -> list[str]:
    """Take the claims of all further jobs of the tasks in `left`; return the queued jobs.

    A job for several tasks, of which some continue, keeps its claim.
    """
    links, queued = status.record.links(), []
    for task in dict.fromkeys([None, *left, *(links if left == [None] else ())]):
        for link in links.get(task, ()):
            if task is not None or status.task is None:
                with contextlib.suppress(OSError):
                    if claim(status.record.where.claim(link.token), names.WITHDRAWN) != names.WITHDRAWN:
                        continue  # it has begun, and may be the job that runs now
            if link.job:
                several = left if task is None else [task]
                queued += [status.record.job_of(link.job, index) for index in several]
    return queued
