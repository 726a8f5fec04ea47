"""Hand a prepared run to its scheduler, at most once whatever happens meanwhile.

The order is the promise. The record says `submitting`, durably, before the scheduler is called; afterwards it says
`submitted`, or `uncertain`, or there is no record at all, because nothing was delivered. Killed in between, it goes on
saying `submitting`, and the next command finds out (reconcile.py). Nothing is ever submitted a second time.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Callable, Sequence
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

FIND_OUT = "do not submit it again: the next `serried ps` finds out; `serried forget {run}` gives it up"


def deliver(prepared: Prepared) -> Record:
    """Submit; return the run's record.

    Raises:
        UsageError: it cannot be written, or the scheduler refused it; nothing is left.
        SchedulerUnreachable: it was not delivered; nothing is left.
        SubmissionUncertain: a job may exist; the record stays.
    """
    record, plan = establish(prepared)
    submission = record.submissions[0]
    _mark_followed(plan)
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
        # Interrupted while the scheduler was asked: it may have heard us.
        message = f"interrupted while `{prepared.handover.argv[0]}` was asked; the job may have been accepted"
        _note_uncertain(record, message)
        raise SubmissionUncertain(message, hint=FIND_OUT.format(run=record.id)) from error
    with plain_errors(record.directory.path):
        record.write_submission(dataclasses.replace(submission, state="submitted", job=job))
    if plan.has_links and plan.limit.form == PREQUEUED:
        prequeue(record, prepared, plan, job)
    return record


def _submit(record: Record, prepared: Prepared, plan: Plan) -> str:
    """Hand over its job, or the jobs of an array in parts; return the id, or all of them with commas.

    Of an array in parts all begin or none: the jobs are held until the last was accepted. Those that were accepted
    are in the record before the next one is submitted.

    Raises SubmissionUncertain where a job may exist, and any other SerriedError where none does.
    """
    scheduler = schedulers.get(plan.site.scheduler)
    jobs: list[str] = []
    try:
        for part in range(len(plan.tokens)):
            handover = handover_of(plan, prepared.environment, prepared.jobs, part, jobs[-1]) if jobs else None
            jobs.append(scheduler.submit(handover or prepared.handover))
            if plan.is_in_parts:
                with plain_errors(record.directory.path):
                    # With the time of this job: another login node believes in a submission for minutes only.
                    so_far = dataclasses.replace(record.first_submissions[0], job=",".join(jobs), at=iso(time.time()))
                    record.write_submission(so_far)
    except SubmissionUncertain:
        raise
    except SerriedError as error:
        if jobs:
            _take_back(jobs, plan, error)
            error.message += f" (job {len(jobs) + 1} of the {len(plan.tokens)} of the array)"
        raise
    if plan.is_in_parts:
        try:
            scheduler.release(jobs)
        except SerriedError as error:
            raise SubmissionUncertain(error.message, details=error.details) from error
    return ",".join(jobs)


def _take_back(jobs: Sequence[str], plan: Plan, error: SerriedError) -> None:
    """Cancel jobs that are held. Raises SubmissionUncertain where they stay."""
    try:
        schedulers.get(plan.site.scheduler).cancel(jobs)
    except SerriedError as problem:
        raise SubmissionUncertain(f"{error.message}, and its other parts cannot be cancelled now") from problem


def see_through(
    prepared: Prepared, tick: Callable[[], None], submitted: Callable[[Record], None] = lambda _: None
) -> RunStatus:
    """Submit it and wait for its end; `submitted` hears of its record. What interrupts that, Ctrl-C say, stops it."""
    try:
        record = deliver(prepared)
        submitted(record)
        return status.wait([Selection(record)], tick=tick)[0]
    except BaseException:
        with contextlib.suppress(RecordUnreadable):  # it has no record where it was not delivered
            found = status.status(Record.load(prepared.plan.run))
            if not found.has_ended:
                stopping.cancel(found, stopping.left(found, ()), now=True)
        raise


def establish(prepared: Prepared) -> tuple[Record, Plan]:
    """Make record and run directory, the record saying `submitting`; return it and the plan, now whole.

    A failure leaves nothing behind but the archive, which is nobody's in particular.
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
    """Where a project's archives are kept."""
    return Path(plan.directory).parents[1] / "sources"


def intent(token: str, plan: Plan) -> Submission:
    """What the record says before the scheduler is called."""
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
    """Submit the further jobs of a run, each to come after any end of the one before, until the scheduler refuses one.

    What became of each is in the run directory, as intent first. An interruption leaves those that were submitted.
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
    """In words, the further jobs that were to be queued with its first and are not."""
    links = [link for link in record.submissions[1:] if link.state != "submitted"]
    return [f"only {link.number - 2} further jobs are queued: {link.message}" for link in links]


def _mark_followed(plan: Plan) -> None:
    """Let the runs that it comes after know that somebody waits for their jobs."""
    for after in plan.after:
        with contextlib.suppress(OSError):
            RunDirectory(Path(after.directory)).followed.touch(mode=PRIVATE_FILE)


def _note_uncertain(record: Record, message: str) -> None:
    with plain_errors(record.directory.path):
        submission = record.first_submissions[0]
        record.write_submission(dataclasses.replace(submission, state="uncertain", message=message))
