"""Find out what became of submissions whose end nobody saw. Never by submitting again.

A job that exists is found by its token: it has claimed the run directory, or the scheduler knows its name. That the
scheduler does not know it proves nothing yet, for a request may still be under way. So after two looks that found
nothing, the claim is taken for nobody, a tombstone: should the job start after all, it finds that and ends itself.
Only then is the submission called failed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time

from serried import schedulers
from serried.contract.files import claim
from serried.contract.names import WITHDRAWN
from serried.errors import SerriedError, UsageError
from serried.records.documents import OPEN, RecordUnreadable, Submission
from serried.records.evidence import is_at_work
from serried.records.moments import seconds_of
from serried.records.record import Record
from serried.records.status import is_elsewhere

PATIENCE_SECONDS = 30.0
"""A submission younger than this may still be on its way through a busy controller."""

BETWEEN_SECONDS = 5.0
"""Between the two looks that find nothing."""


def find_out(record: Record) -> None:
    """Before anything is said of a run: reconcile it, if there is anything to reconcile."""
    with contextlib.suppress(RecordUnreadable):
        if record.end is None and any(submission.state in OPEN for submission in record.all_submissions()):
            reconcile(record)


def reconcile(record: Record, now: float | None = None) -> bool:
    """Find out about the record's open submissions; return whether none is uncertain now.

    A scheduler that does not answer leaves them as they are.
    """
    moment = time.time() if now is None else now
    settled = True
    open_ = [each for each in record.all_submissions() if each.state in OPEN]
    left = {each.token for each in open_ if each.state != "submitting" or not is_at_work(each, moment)}
    # Read once more: who is gone by now had written all that it would write.
    for submission in record.all_submissions() if left else ():
        if submission.state not in OPEN or submission.token not in left:
            continue
        found = _find_out(record, submission, moment)
        if found != submission:
            with contextlib.suppress(OSError):  # a full disk: the next command finds the same out
                record.write_submission(found)
        settled &= found.state not in OPEN
    return settled


def forget(record: Record) -> str | None:
    """Give up the record's open submission; return the job's id if it turns out to have one after all.

    Raises UsageError where there is nothing uncertain about the run.
    """
    now = time.time()
    open_ = [each for each in record.submissions if each.state in OPEN]
    open_ = [each for each in open_ if each.state == "uncertain" or not is_at_work(each, now)]
    if not open_:
        raise UsageError(
            f"nothing about run `{record.id}` is uncertain",
            hint=f"`serried stop {record.id}` ends it; `serried show {record.id}` tells how it stands",
        )
    for submission in open_:
        owner = _withdraw(record, submission)
        if owner not in (None, WITHDRAWN):
            record.write_submission(_adopted(submission, str(owner)))
            return owner
        record.write_submission(dataclasses.replace(submission, state="failed", message="forgotten by its user"))
    return None


def _find_out(record: Record, submission: Submission, now: float) -> Submission:
    """The submission as it is known to stand at `now`."""
    since = seconds_of(submission.at)
    owner = _owner(record, submission)
    if owner is None and is_elsewhere(submission):
        return dataclasses.replace(submission, state="uncertain", message=f"it went to cluster `{submission.site}`")
    if owner is None:
        try:
            owner = schedulers.get(submission.scheduler).find(submission.token, since)
        except SerriedError as error:  # no answer, or a login node without that scheduler's commands
            return dataclasses.replace(submission, state="uncertain", message=error.message)
    if owner is None and submission.missed is not None and now - submission.missed >= BETWEEN_SECONDS:
        is_young = since is not None and now - since < PATIENCE_SECONDS
        owner = None if is_young else _withdraw(record, submission)
    if owner is None:
        message = "the scheduler does not know of it so far"
        return dataclasses.replace(submission, state="uncertain", message=message, missed=submission.missed or now)
    return _failed(submission) if owner == WITHDRAWN else _adopted(submission, owner)


def _owner(record: Record, submission: Submission) -> str | None:
    """Who has claimed the submission; None where nobody has, or it cannot be seen."""
    try:
        return record.where.claim(submission.token).read_text(encoding="utf-8") or None
    except OSError:
        return None


def _withdraw(record: Record, submission: Submission) -> str | None:
    """Take the claim for nobody; return who has it now. None: it cannot be taken, the run directory being away."""
    if not os.path.lexists(record.where.job_script):
        # Without job.sh no job can be under way: we died before we asked, or the site purged it all.
        return WITHDRAWN if record.where.path.parent.parent.parent.is_dir() else None
    try:
        record.where.claims.mkdir(mode=0o700, exist_ok=True)
        return claim(record.where.claim(submission.token), WITHDRAWN)
    except OSError:
        return None


def _adopted(submission: Submission, job: str) -> Submission:
    return dataclasses.replace(submission, state="submitted", job=job, message=None)


def _failed(submission: Submission) -> Submission:
    return dataclasses.replace(
        submission, state="failed", message="it never reached the scheduler, and can start no more"
    )
