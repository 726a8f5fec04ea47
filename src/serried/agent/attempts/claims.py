"""A job claims its submission and then the next attempt, each by an operation that succeeds only once."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, Dict, Optional

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


def begin(work: Attempt, token: str, job: str, *, is_over: bool = False) -> Attempt:
    """Claim submission `token` for `job` and create the next attempt.

    With `is_over` the job is already ending, and the attempt only records its end.

    Raises Refused when the token belongs to another job, was withdrawn, or the run has ended.
    """
    files.make_directory(work.run.claims, work.directory_mode)
    owner = files.claim(work.run.claim(token), job)
    if owner != job:
        what = "was withdrawn" if owner == names.WITHDRAWN else f"belongs to job {owner}"
        raise Refused(f"submission {token} {what}")
    _check_unfinished(work, job)
    _check_others(work, token, is_over=is_over)
    _check_turn(work, token)
    files.make_directory(work.directory.attempts, work.directory_mode)
    position = (
        checkpoint_progress.position(work.directory.checkpoints, work.plan.watch_patterns)._asdict()
        if work.plan.limit.restarts
        else None
    )
    begun = Attempt(work.run, work.plan, work.task, _make_next(work.directory.attempts, work.directory_mode))
    _describe(begun, token, job, position)
    return begun


def _check_unfinished(work: Attempt, job: str) -> None:
    """Refuse after a final end; an end is not final if the scheduler has restarted the same job."""
    end = End.read(work.directory.exit)
    if end is not None:
        from serried.agent.outcome import reconcile  # an attempt that is the first needs none of this

        if end.job != job or end.cause not in reconcile.RESTARTABLE:
            raise Refused(f"the run has ended already: {end.state}")
    _check_unstopped(work, job)
    _check_allowed(work, job)
    if end is not None:
        work.directory.exit.unlink()


def _check_unstopped(work: Attempt, job: str) -> None:
    """Refuse after a user's request to stop that arrived when no agent was left to receive it."""
    number = max(files.numbers(work.directory.attempts), default=0)
    last = work.directory.attempt(number)
    stop = history.stop_by_user(last.control) if number else None
    if stop is None:
        return
    from serried.agent.outcome import reconcile

    unknown = End(work.plan.run, work.task, number, job, names.CANCELLED, None, None, ())
    end = reconcile.stopped(End.read(last.exit) or unknown, stop.by)
    end._replace(attempts=number).write(work.directory.exit, work.file_mode)
    raise Refused(f"the run was {end.message}")


def _check_allowed(work: Attempt, job: str) -> None:
    """Refuse when no attempt is left: the scheduler restarts a job as often as it preempts it."""
    last = history.last(work)
    if last is None or history.claim_of(last)["job"] != job:
        return
    from serried.agent.attempts import continuing, finalize
    from serried.agent.outcome import reconcile

    end = End.read(work.directory.attempt(last.number).exit) or finalize.assess(last, is_unrecorded=True)
    if end.state == names.REQUEUED or end.cause not in reconcile.RESTARTABLE:
        return
    obstacle = continuing.obstacle(last, end.cause, progressed=bool(end.progress), next_is_here=True)
    if obstacle is None:
        return
    result = finalize.publish(last, continuing.continued(reconcile.finalise(end, Reason.PREEMPT), obstacle))
    raise Refused(f"the run has ended already: {result.message}")


def _check_others(work: Attempt, token: str, *, is_over: bool) -> None:
    """Before the first attempt of a run that depends on others, check how those ended."""
    if work.plan.after and history.last(work) is None:
        from serried.agent.attempts import dependency

        refusal = dependency.has_moved(work, token) if is_over else dependency.refusal(work, token)
        if refusal:
            raise Refused(refusal)


def _is_first(work: Attempt, token: str) -> bool:
    """Whether the job of `token` may begin the first attempt."""
    if successor_commands.number_of(token) == 1:
        return True
    from serried.agent.attempts import dependency

    return dependency.was_moved(work, token)


def _check_turn(work: Attempt, token: str) -> None:
    """Refuse a further job unless the preceding attempt ended in a way that lets the run continue.

    Writes the preceding end if no agent could.
    """
    before = history.last(work)
    claim = history.claim_of(before) if before else {}
    if claim.get("token") == token or (before is None and _is_first(work, token)):
        return
    if before is None or successor_commands.number_of(str(claim["token"])) != successor_commands.number_of(token) - 1:
        raise Refused("the preceding job never began")
    end = End.read(work.directory.attempt(before.number).exit)
    word = successor_jobs.how_it_stands(work, work.job_of(str(claim["job"])), successor_jobs.AWAY_SECONDS)
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


def _describe(work: Attempt, token: str, job: str, position: Optional[Dict[str, Any]]) -> None:
    attempt = work.directory.attempt(work.number)
    os.close(os.open(attempt.control, os.O_WRONLY | os.O_CREAT | os.O_APPEND, work.file_mode))
    claim = {
        "schema": SCHEMA,
        "job": job,
        "task": work.task,
        "token": token,
        "host": os.uname().nodename,
        "started": round(time.time(), 3),
        "monotonic": round(time.monotonic(), 3),
        "boot": boot(),
        "attempt": work.number,
        "position": position,
    }
    work.write_parameters()
    files.write_json(attempt.claim, claim, work.file_mode)
    files.write_reserve(attempt.reserve, work.file_mode)
