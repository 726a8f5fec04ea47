"""Submit a prepared run at most once, also if this process is killed.

The order of the writes guarantees that. The record says `submitting`, durably, before the scheduler is called.
Afterwards the record says `submitted` or `uncertain`, or is deleted, because the scheduler has no job. If this process
is killed in between, the next command reconciles the record (reconcile.py). No run is submitted twice.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Callable
from pathlib import Path

from serried import schedulers, snapshot
from serried.errors import SerriedError, SubmissionRefused, SubmissionUncertain
from serried.fs.files import MODES, PRIVATE_FILE
from serried.plan import Plan, whom_to_ask
from serried.processes import myself
from serried.protocol.layout import RunDirectory
from serried.protocol.names import PREQUEUED
from serried.protocol.successor_commands import token_of
from serried.protocol.times import iso
from serried.records import status, stopping
from serried.records.index import Selection
from serried.records.record import Record, RecordUnreadable, Submission, records_directory
from serried.records.run_status import RunStatus
from serried.snapshot import Archive
from serried.submission.prepared import (
    Prepared,
    handover_of,
    make_run_directory,
    plain_errors,
    probe,
    remove,
    write_source,
)

FIND_OUT = "do not submit it again: the next `serried ps` checks the job; `serried forget {run}` gives the run up"


def deliver(prepared: Prepared) -> Record:
    """Submit; return the run's record.

    Raises:
        UsageError: the run cannot be written, or the scheduler refused the job; no files remain.
        SchedulerUnreachable: the scheduler has no job; no files remain.
        SubmissionUncertain: a job may exist; the record stays.
    """
    record, plan = establish(prepared)
    submission = record.submissions[0]
    for after in plan.after:  # their agents keep the outcome for jobs that wait for them
        with contextlib.suppress(OSError):
            RunDirectory(Path(after.directory)).followed.touch(mode=PRIVATE_FILE)
    try:
        job = _submit(record, prepared, plan)
    except SubmissionUncertain as error:
        _note_uncertain(record, error.message)
        error.hint = FIND_OUT.format(run=record.id)
        raise
    except SerriedError as error:
        remove(record, plan)
        if isinstance(error, SubmissionRefused):
            error.hint = error.hint or whom_to_ask(plan.site.contact, plan.site.docs)
        raise
    except BaseException as error:
        message = f"interrupted during `{prepared.handover.argv[0]}`: the scheduler may have accepted the job"
        _note_uncertain(record, message)
        raise SubmissionUncertain(message, hint=FIND_OUT.format(run=record.id)) from error
    with plain_errors(record.directory.path):
        record.write_submission(dataclasses.replace(submission, state="submitted", job=job))
    if plan.has_links and plan.limit.form == PREQUEUED:
        prequeue(record, prepared, plan, job)
    return record


def _submit(record: Record, prepared: Prepared, plan: Plan) -> str:
    """Submit the job, or the jobs of an array in parts; return the ids, joined by commas.

    Either all jobs of an array in parts start, or none: the scheduler holds them until it has accepted the last. The
    record lists the accepted jobs before the next one is submitted.

    Raises SubmissionUncertain if a job may exist, and any other SerriedError if none does.
    """
    scheduler = schedulers.get(plan.site.scheduler)
    jobs: list[str] = []
    try:
        for part in range(len(plan.tokens)):
            handover = handover_of(plan, prepared.environment, prepared.jobs, part, jobs[-1]) if jobs else None
            jobs.append(scheduler.submit(handover or prepared.handover))
            if plan.is_in_parts:
                with plain_errors(record.directory.path):
                    # With the time of this job: other login nodes trust a submission only for minutes.
                    so_far = dataclasses.replace(record.first_submissions[0], job=",".join(jobs), at=iso(time.time()))
                    record.write_submission(so_far)
    except SubmissionUncertain:
        raise
    except SerriedError as error:
        if jobs:
            try:
                scheduler.cancel(jobs)
            except SerriedError as problem:
                message = f"{error.message}, and the held jobs of the array cannot be cancelled now"
                raise SubmissionUncertain(message) from problem
            error.message += f" (job {len(jobs) + 1} of {len(plan.tokens)} of the array)"
        raise
    if plan.is_in_parts:
        try:
            scheduler.release(jobs)
        except SerriedError as error:
            raise SubmissionUncertain(error.message, details=error.details) from error
    return ",".join(jobs)


def see_through(
    prepared: Prepared, tick: Callable[[], None], submitted: Callable[[Record], None] = lambda _: None
) -> RunStatus:
    """Submit a run and wait for its end; call `submitted` with its record. An exception (Ctrl-C) stops the run."""
    try:
        record = deliver(prepared)
        submitted(record)
        return status.wait([Selection(record)], tick=tick)[0]
    except BaseException:
        with contextlib.suppress(RecordUnreadable):  # a run without a job has no record
            current = status.status(Record.load(prepared.plan.run))
            if not current.has_ended:
                stopping.cancel(current, stopping.left(current, ()), now=True)
        raise


def establish(prepared: Prepared) -> tuple[Record, Plan]:
    """Create the record, in state `submitting`, and the run directory; return the record and the complete plan.

    After a failure only the archive remains, which several runs may share.
    """
    plan = prepared.plan
    modes = MODES[plan.share]
    root = Path(plan.site.root)
    probe(root, prepared.survey.bytes if prepared.survey else 0, modes.directory)
    archive: Archive | None = None
    if prepared.survey is not None:
        with plain_errors(root):
            archive = snapshot.store(prepared.survey, sources_directory(plan), modes)
        plan = dataclasses.replace(plan, source=plan.source._replace(archive=str(archive.path)))
    with plain_errors(records_directory()):
        record = Record.create(plan, intent(prepared.token, plan))
    try:
        with plain_errors(record.directory.path):
            write_source(record, prepared, plan, archive)
        with plain_errors(root):
            make_run_directory(prepared, plan)
    except BaseException:
        remove(record, plan)
        raise
    return record, plan


def sources_directory(plan: Plan) -> Path:
    """The folder of the project's archives."""
    return Path(plan.directory).parents[1] / "sources"


def intent(token: str, plan: Plan) -> Submission:
    """The submission in the record before the scheduler is called."""
    me = myself()
    return Submission(
        token=token,
        state="submitting",
        cluster=plan.site.name,
        scheduler=plan.site.scheduler,
        at=iso(time.time()),
        by_pid=me.pid,
        by_host=os.uname().nodename,
        by_started=me.started,
        site=schedulers.site(plan.site.scheduler).own_name(os.environ),
    )


def prequeue(record: Record, prepared: Prepared, plan: Plan, job: str) -> None:
    """Queue the later jobs of a run, each behind any end of the job before, until the scheduler refuses a job.

    Each job is in the record before the scheduler is called. After an interruption, the submitted jobs stay queued.
    """
    scheduler = schedulers.get(plan.site.scheduler)
    for number in range(2, plan.limit.restarts + 2):
        link = intent(token_of(plan.run, None, number), plan)
        handover = scheduler.submission(plan, link.token, prepared.environment, after=job)
        with plain_errors(record.where.path):
            record.write_submission(link)
        try:
            job = scheduler.submit(handover)
        except SerriedError as error:
            state = "uncertain" if isinstance(error, SubmissionUncertain) else "failed"
            message = " ".join(filter(None, (error.message, error.details)))
            record.write_submission(dataclasses.replace(link, state=state, message=message))
            return
        except KeyboardInterrupt:
            record.write_submission(dataclasses.replace(link, state="uncertain", message="interrupted"))
            raise
        record.write_submission(dataclasses.replace(link, state="submitted", job=job))


def unqueued(record: Record) -> list[str]:
    """A message if the scheduler refused a later job of the run."""
    links = [link for link in record.submissions[1:] if link.state != "submitted"]
    return [f"only {link.number - 2} later jobs are queued: {link.message}" for link in links]


def _note_uncertain(record: Record, message: str) -> None:
    with plain_errors(record.directory.path):
        submission = record.first_submissions[0]
        record.write_submission(dataclasses.replace(submission, state="uncertain", message=message))
