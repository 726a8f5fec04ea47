"""When ranks receive the stop notice, and when they are ended, before the scheduler ends the job."""

from __future__ import annotations

import time
from typing import Optional

from serried.agent.attempt import Attempt
from serried.base import NamedTuple
from serried.schema import names

MARGIN_SECONDS = 15.0
"""Before the limit, for ending ranks and recording the end."""


class Deadline(NamedTuple):
    at: float
    """When the scheduler ends the job, in seconds since the epoch."""
    warning: float
    """When ranks receive the stop notice."""
    end: float
    """When ranks receive TERM."""
    grace: float
    """Seconds from TERM to KILL; a third of the margin is left for cleaning up."""

    @property
    def over(self) -> float:
        """When nodes must be done, so that the head can still record the end."""
        return self.at - (self.at - self.end) / 6


def decide_deadline(
    began: float, limit: Optional[float], scheduler_end: float, lead: float, grace: float
) -> Optional[Deadline]:
    """None without a limit. `scheduler_end` is when the scheduler says that it ends the job; 0 if it does not say."""
    if limit is None:
        return None
    at = min(began + limit, scheduler_end or float("inf"))
    margin = min(MARGIN_SECONDS, limit / 20)
    return Deadline(at, at - min(lead, limit / 4), at - margin, min(grace, margin * 2 / 3))


def deadline_of(attempt: Attempt, scheduler_end: float, age: float = 0.0) -> Optional[Deadline]:
    """The deadline of an attempt that begins now, in a job that began `age` seconds ago."""
    began = time.time() - age
    limit: Optional[float] = attempt.plan.allocation.time_seconds
    script = attempt.plan.script
    if script and limit is None and scheduler_end:  # a script without a limit has its partition's
        limit = scheduler_end - began
    deadline = decide_deadline(began, limit, scheduler_end, attempt.warn_before_seconds, attempt.grace_seconds)
    if script and script.notice_to and deadline:  # its own directive says when it gets the signal
        deadline = deadline._replace(warning=min(deadline.end, max(began, deadline.at - attempt.warn_before_seconds)))
    if limit is None or deadline is None or not attempt.plan.copies_back:
        return deadline
    copy_seconds = min(names.COPY_BACK_SECONDS, limit / 20)
    return deadline._replace(warning=deadline.warning - copy_seconds, end=deadline.end - copy_seconds)
