"""What keeps a run from going on after an attempt: no attempt left, nothing reached, or no job to go on in."""

from __future__ import annotations

from typing import Optional

from serried.agent.attempt import Attempt
from serried.agent.attempts import history, successor_jobs
from serried.agent.outcome.evidence import NO_ATTEMPT_LEFT, Obstacle
from serried.fs import files
from serried.protocol import names
from serried.protocol.reasons import Reason


def obstacle(
    work: Attempt, reason: Optional[str], *, progressed: bool, next_is_here: bool = False
) -> Optional[Obstacle]:
    """What keeps this attempt from having a next one; None where nothing does.

    `reason` is why it was asked to stop; with `next_is_here` the job that asks is the one to make the next.
    """
    if work.number > work.restarts:
        return NO_ATTEMPT_LEFT
    if not progressed and (reason == Reason.LIMIT or _stood_still(work, work.number - 1)):
        began = history.where_it_began(history.claim_of(work))
        where = "its beginning" if began.step is None else f"step {began.step}, where this attempt began"
        return Obstacle(Reason.NO_PROGRESS, f"no checkpoint is further than {where}")
    if work.continue_form == names.REQUEUE or next_is_here:
        return None
    absent = successor_jobs.missing(work, str(history.claim_of(work).get("token", "")))
    return Obstacle(Reason.NO_NEXT_JOB, absent) if absent else None


def _stood_still(work: Attempt, number: int) -> bool:
    """Whether attempt `number` got no further than it began."""
    return number > 0 and (files.read_json(work.directory.attempt(number).exit) or {}).get("progress") is False
