"""Reconcile interrupted submissions with the scheduler, without submitting again.

A token identifies a job: the job has claimed the run directory, or the scheduler lists a job with that name. A job that
the scheduler does not list may still be on its way. So after two looks without a job, this module takes the claim
itself, as a tombstone: a job that starts later sees the tombstone and exits. Only then has the submission failed.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence

from serried import schedulers
from serried.base.errors import SerriedError, UsageError
from serried.base.files import claim, read_bytes
from serried.base.text import seconds_of
from serried.records.record import Record, RecordUnreadable, Submission
from serried.records.status import is_at_work, is_elsewhere
from serried.schema.names import WITHDRAWN, SubmissionState

PATIENCE_SECONDS = 30.0
"""A submission younger than this may still be on its way through a busy controller."""

BETWEEN_SECONDS = 5.0
"""Between the two looks without a job."""


def find_out(record: Record) -> None:
    """Reconcile a run before its state is shown, if it has an open submission."""
    with contextlib.suppress(RecordUnreadable):
        if record.end is None and any(submission.is_open for submission in record.all_submissions()):
            reconcile(record)


def reconcile(record: Record, now: float | None = None) -> bool:
    """Reconcile the record's open submissions; return True if none is uncertain any more.

    If the scheduler does not answer, they stay open.
    """
    moment = time.time() if now is None else now
    settled = True
    open_ = [each for each in record.all_submissions() if each.is_open]
    left = {each.token for each in open_ if each.state != SubmissionState.SUBMITTING or not is_at_work(each, moment)}
    # Read again: a process that has exited by now has written all that it would write.
    for submission in record.all_submissions() if left else ():
        if not submission.is_open or submission.token not in left:
            continue
        current = _current(record, submission, moment)
        if current != submission:
            with contextlib.suppress(OSError):  # a full disk: the next command reconciles again
                record.write_submission(current)
        settled &= not current.is_open
    return settled


def uncertain(record: Record) -> list[Submission]:
    """The submissions that can be given up. Raises UsageError if there are none."""
    now = time.time()
    open_ = [each for each in record.submissions if each.is_open]
    open_ = [each for each in open_ if each.state == SubmissionState.UNCERTAIN or not is_at_work(each, now)]
    if not open_:
        hint = f"`serried stop {record.id}` ends it; `serried show {record.id}` shows its state"
        raise UsageError(f"no submission of run `{record.id}` is uncertain", hint=hint)
    return open_


def forget(record: Record) -> str | None:
    """Give up what is `uncertain`; return the job's id if the submission has a job after all."""
    for submission in uncertain(record):
        tokens = record.tokens_of(submission)
        begun = any(_owner(record, token) not in (None, WITHDRAWN) for token in tokens)
        if begun and len(submission.jobs) == len(tokens) > 1:  # an array in parts, which was released
            record.write_submission(_adopted(submission, str(submission.job)))
            return submission.job
        owners = [_withdraw(record, token) for token in tokens]
        if len(tokens) == 1 and owners[0] not in (None, WITHDRAWN):
            record.write_submission(_adopted(submission, str(owners[0])))
            return owners[0]
        held = list(submission.jobs)
        if len(held) < len(tokens) > 1:
            with contextlib.suppress(SerriedError):
                found = _unwritten(record, submission)
                held += [found] if found else []
        if held:
            schedulers.get(submission.scheduler).cancel(held)
        record.write_submission(submission._replace(state=SubmissionState.FAILED, message="forgotten by its user"))
    return None


def _current(record: Record, submission: Submission, now: float) -> Submission:
    since, tokens = seconds_of(submission.at), record.tokens_of(submission)
    accepted = dict(zip(tokens, submission.jobs))
    owners = {token: _owner(record, token) or accepted.get(token) for token in tokens}
    unknown = [token for token in tokens if owners[token] is None]
    if (unknown or len(tokens) > 1) and is_elsewhere(submission):
        return submission._replace(state=SubmissionState.UNCERTAIN, message=f"submitted on cluster `{submission.site}`")
    next_ = next((token for token in tokens if token not in accepted), None)
    # A job of an array in parts may be held although its claim is taken: the job could not be cancelled then.
    found = None
    if next_ and (owners[next_] is None or (len(tokens) > 1 and owners[next_] == WITHDRAWN)):
        try:
            found = _unwritten(record, submission)
        except SerriedError as error:  # no answer, or a login node without that scheduler's commands
            return submission._replace(state=SubmissionState.UNCERTAIN, message=error.message)
        owners[next_] = owners[next_] or found
    jobs = dict.fromkeys([*submission.jobs, found, *(owner for owner in owners.values() if owner != WITHDRAWN)])
    if None in owners.values() and submission.missed is not None and now - submission.missed >= BETWEEN_SECONDS:
        is_young = since is not None and now - since < PATIENCE_SECONDS
        owners = owners if is_young else {token: _withdraw(record, token) for token in tokens}
    if None in owners.values():
        message = "the scheduler does not list the job yet"
        return submission._replace(state=SubmissionState.UNCERTAIN, message=message, missed=submission.missed or now)
    is_given_up = WITHDRAWN in owners.values()
    if len(tokens) > 1 and (problem := _settle_parts(submission, [*jobs], is_given_up=is_given_up)):
        return submission._replace(state=SubmissionState.UNCERTAIN, message=problem)
    if is_given_up:
        message = "the job did not reach the scheduler, and can no longer start"
        return submission._replace(state=SubmissionState.FAILED, message=message)
    return _adopted(submission, ",".join(map(str, owners.values())))


def _unwritten(record: Record, submission: Submission) -> str | None:
    """A job that the scheduler has and the submission does not name.

    The jobs of an array in parts are submitted one after the other, so at most one job is missing.
    """
    token = record.tokens_of(submission)[len(submission.jobs)]
    return schedulers.get(submission.scheduler).find(token, seconds_of(submission.at))


def _settle_parts(submission: Submission, jobs: Sequence[str | None], *, is_given_up: bool) -> str | None:
    """Release all jobs of an array in parts, or cancel them all. Return the problem if that fails."""
    scheduler, ids = schedulers.get(submission.scheduler), [job for job in jobs if job]
    try:
        if is_given_up:
            scheduler.cancel(ids)
        else:
            scheduler.release(ids)
    except SerriedError as error:
        return error.message
    return None


def _owner(record: Record, token: str) -> str | None:
    """The job that has claimed `token`; None without a claim, or if it cannot be read."""
    try:
        return read_bytes(record.where.claim(token)).decode() or None
    except (OSError, UnicodeDecodeError):
        return None


def _withdraw(record: Record, token: str) -> str | None:
    """Take the claim as a tombstone; return its owner. None if the run directory does not exist now."""
    if not os.path.lexists(record.where.job_script):
        # Without job.sh no job can start: the submission ended before it, or the site has deleted the files.
        return WITHDRAWN if record.where.path.parent.parent.parent.is_dir() else None
    try:
        record.where.claims.mkdir(mode=0o700, exist_ok=True)
        return claim(record.where.claim(token), WITHDRAWN)
    except OSError:
        return None


def _adopted(submission: Submission, job: str) -> Submission:
    return submission._replace(state=SubmissionState.SUBMITTED, job=job, message=None)
