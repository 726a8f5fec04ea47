"""A job claims its submission and then the next attempt, each by an operation that succeeds only once."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Optional

from serried.agent.attempt import Attempt
from serried.agent.attempts import history, successor_jobs
from serried.agent.node_disk.folder import boot
from serried.agent.outcome import checkpoint_progress
from serried.base import files
from serried.schema import SCHEMA, names, successor_commands
from serried.schema.endings import End
from serried.schema.reasons import Reason


class Refused(Exception):  # noqa: N818 - not an error
    """The job may not begin an attempt."""


def begin(attempt: Attempt, token: str, job: str, *, is_over: bool = False) -> Attempt:
    """Claim submission `token` for `job` and create the next attempt.

    With `is_over` the job is already ending, and the attempt only records its end.

    Raises Refused when the token belongs to another job, was withdrawn, or the run has ended.
    """
    files.make_directory(attempt.run.claims, attempt.directory_mode)
    owner = files.claim(attempt.run.claim(token), job)
    if owner != job:
        what = "was withdrawn" if owner == names.WITHDRAWN else f"belongs to job {owner}"
        raise Refused(f"submission {token} {what}")
    _check_unfinished(attempt, job)
    before = history.last(attempt)
    if attempt.plan.after and before is None:
        from serried.agent.attempts import dependency

        refusal = dependency.has_moved(attempt, token) if is_over else dependency.refusal(attempt, token)
        if refusal:
            raise Refused(refusal)
    _check_turn(attempt, before, token)
    files.make_directory(attempt.directory.attempts, attempt.directory_mode)
    position = None
    if attempt.plan.limit.restarts:
        position = checkpoint_progress.position(attempt.directory.checkpoints, attempt.plan.watch_patterns)._asdict()
    begun = Attempt(
        attempt.run, attempt.plan, attempt.task, _make_next(attempt.directory.attempts, attempt.directory_mode)
    )
    os.close(os.open(begun.files.control, os.O_WRONLY | os.O_CREAT | os.O_APPEND, begun.file_mode))
    claim = {
        "schema": SCHEMA,
        "job": job,
        "task": begun.task,
        "token": token,
        "host": os.uname().nodename,
        "started": round(time.time(), 3),
        "monotonic": round(time.monotonic(), 3),
        "boot": boot(),
        "attempt": begun.number,
        "position": position,
    }
    begun.write_parameters()
    files.write_json(begun.files.claim, claim, begun.file_mode)
    files.write_reserve(begun.files.reserve, begun.file_mode)
    return begun


def _check_unfinished(attempt: Attempt, job: str) -> None:
    """Refuse after a final end; an end is not final if the scheduler has restarted the same job."""
    end = End.read(attempt.directory.exit)
    if end is not None:
        from serried.agent.outcome import reconcile  # an attempt that is the first needs none of this

        if end.job != job or end.cause not in reconcile.RESTARTABLE:
            raise Refused(f"the run has ended already: {end.state}")
    _check_unstopped(attempt, job)
    _check_allowed(attempt, job)
    if end is not None:
        attempt.directory.exit.unlink()


def _check_unstopped(attempt: Attempt, job: str) -> None:
    """Refuse after a user's request to stop that arrived when no agent was left to receive it."""
    number = max(files.numbers(attempt.directory.attempts), default=0)
    last = attempt.directory.attempt(number)
    stop = history.stop_by_user(last.control) if number else None
    if stop is None:
        return
    from serried.agent.outcome import reconcile

    unknown = End(attempt.plan.run, attempt.task, number, job, names.CANCELLED, None, None, ())
    end = reconcile.stopped(End.read(last.exit) or unknown, stop.by)
    end._replace(attempts=number).write(attempt.directory.exit, attempt.file_mode)
    raise Refused(f"the run was {end.message}")


def _check_allowed(attempt: Attempt, job: str) -> None:
    """Refuse when no attempt is left: the scheduler restarts a job as often as it preempts it."""
    last = history.last(attempt)
    if last is None or history.claim_of(last)["job"] != job:
        return
    from serried.agent.attempts import continuing, finalize
    from serried.agent.outcome import reconcile

    end = End.read(attempt.directory.attempt(last.number).exit) or finalize.assess(last, is_unrecorded=True)
    if end.state == names.REQUEUED or end.cause not in reconcile.RESTARTABLE:
        return
    obstacle = continuing.obstacle(last, end.cause, progressed=bool(end.progress), next_is_here=True)
    if obstacle is None:
        return
    result = finalize.publish(last, continuing.continued(reconcile.finalise(end, Reason.PREEMPT), obstacle))
    raise Refused(f"the run has ended already: {result.message}")


def _check_turn(attempt: Attempt, before: Optional[Attempt], token: str) -> None:
    """Refuse a further job unless the preceding attempt ended in a way that lets the run continue.

    Writes the preceding end if no agent could.
    """
    number = successor_commands.number_of(token)
    if before is None and number > 1:
        from serried.agent.attempts import dependency

        if not dependency.was_moved(attempt, token):
            raise Refused("the preceding job never began")
    if before is None:
        return
    claim = history.claim_of(before)
    if claim["token"] == token:
        return
    if successor_commands.number_of(str(claim["token"])) != number - 1:
        raise Refused("the preceding job never began")
    end = End.read(attempt.directory.attempt(before.number).exit)
    word = successor_jobs.how_it_stands(attempt, attempt.job_of(str(claim["job"])), successor_jobs.AWAY_SECONDS)
    from serried.agent.attempts import finalize
    from serried.agent.outcome import reconcile

    known = end or finalize.assess(before, is_unrecorded=True)
    revised = reconcile.by_the_scheduler(known, word, is_unrecorded=end is None)
    result = finalize.publish(before, finalize.reconsider(before, revised, "", next_is_here=True), token)
    if result.state != names.REQUEUED:
        raise Refused(f"the run has ended already: {result.message}")


def _make_next(folder: Path, mode: int) -> int:
    number = max(files.numbers(folder), default=0) + 1
    while True:
        try:
            (folder / str(number)).mkdir(mode=mode)
        except FileExistsError:
            number += 1
        else:
            return number
