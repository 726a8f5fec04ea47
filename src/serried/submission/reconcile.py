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
from collections.abc import Sequence

from serried import schedulers
from serried.errors import SerriedError, UsageError
from serried.fs.files import claim
from serried.protocol.names import WITHDRAWN
from serried.protocol.times import seconds_of
from serried.records.evidence import is_at_work
from serried.records.record import OPEN, Record, RecordUnreadable, Submission
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
        record.write_submission(dataclasses.replace(submission, state="failed", message="forgotten by its user"))
    return None


def _find_out(record: Record, submission: Submission, now: float) -> Submission:
    """The submission as it is known to stand at `now`."""
    since, tokens = seconds_of(submission.at), record.tokens_of(submission)
    accepted = dict(zip(tokens, submission.jobs, strict=False))
    owners = {token: _owner(record, token) or accepted.get(token) for token in tokens}
    unknown = [token for token in tokens if owners[token] is None]
    if (unknown or len(tokens) > 1) and is_elsewhere(submission):
        return dataclasses.replace(submission, state="uncertain", message=f"it went to cluster `{submission.site}`")
    next_ = next((token for token in tokens if token not in accepted), None)
    # Of an array in parts, a job may be on hold although its claim is taken: whoever took that could not cancel it.
    found = None
    if next_ and (owners[next_] is None or (len(tokens) > 1 and owners[next_] == WITHDRAWN)):
        try:
            found = _unwritten(record, submission)
        except SerriedError as error:  # no answer, or a login node without that scheduler's commands
            return dataclasses.replace(submission, state="uncertain", message=error.message)
        owners[next_] = owners[next_] or found
    jobs = dict.fromkeys([*submission.jobs, found, *(owner for owner in owners.values() if owner != WITHDRAWN)])
    if None in owners.values() and submission.missed is not None and now - submission.missed >= BETWEEN_SECONDS:
        is_young = since is not None and now - since < PATIENCE_SECONDS
        owners = owners if is_young else {token: _withdraw(record, token) for token in tokens}
    if None in owners.values():
        message = "the scheduler does not know of it so far"
        return dataclasses.replace(submission, state="uncertain", message=message, missed=submission.missed or now)
    is_given_up = WITHDRAWN in owners.values()
    if len(tokens) > 1 and (problem := _settle_parts(submission, [*jobs], is_given_up=is_given_up)):
        return dataclasses.replace(submission, state="uncertain", message=problem)
    return _failed(submission) if is_given_up else _adopted(submission, ",".join(map(str, owners.values())))


def _unwritten(record: Record, submission: Submission) -> str | None:
    """A job that the scheduler has and the submission does not name.

    Of an array in parts, one job is submitted after the other: there can be one such job at most.
    """
    token = record.tokens_of(submission)[len(submission.jobs)]
    return schedulers.get(submission.scheduler).find(token, seconds_of(submission.at))


def _settle_parts(submission: Submission, jobs: Sequence[str | None], *, is_given_up: bool) -> str | None:
    """Let the jobs of an array in parts begin, or cancel them: all or none. Why that cannot be done now, if so."""
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
    """Who has claimed the job of `token`; None where nobody has, or it cannot be seen."""
    try:
        return record.where.claim(token).read_text(encoding="utf-8") or None
    except OSError:
        return None


def _withdraw(record: Record, token: str) -> str | None:
    """Take the claim for nobody; return who has it now. None: it cannot be taken, the run directory being away."""
    if not os.path.lexists(record.where.job_script):
        # Without job.sh no job can be under way: we died before we asked, or the site purged it all.
        return WITHDRAWN if record.where.path.parent.parent.parent.is_dir() else None
    try:
        record.where.claims.mkdir(mode=0o700, exist_ok=True)
        return claim(record.where.claim(token), WITHDRAWN)
    except OSError:
        return None


def _adopted(submission: Submission, job: str) -> Submission:
    return dataclasses.replace(submission, state="submitted", job=job, message=None)


def _failed(submission: Submission) -> Submission:
    return dataclasses.replace(
        submission, state="failed", message="it never reached the scheduler, and can start no more"
    )
