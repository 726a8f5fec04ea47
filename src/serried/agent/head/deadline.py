"""When ranks are warned and ended so that the scheduler's own limit is never what ends them."""

from __future__ import annotations

import time
from typing import NamedTuple, Optional

from serried.agent.attempt import Attempt
from serried.protocol import names

MARGIN_SECONDS = 15.0


class Deadline(NamedTuple):
    at: float
    """When the scheduler ends the job, seconds since the epoch."""
    warning: float
    """When ranks are asked to save."""
    end: float
    """When they get TERM."""
    grace: float
    """How long after that they get KILL, in seconds: it leaves a third of the margin to tidy up."""

    @property
    def over(self) -> float:
        """When nodes have to be done, so that it can still be written down."""
        return self.at - (self.at - self.end) / 6


def decide(began: float, limit: Optional[float], scheduler_end: float, lead: float, grace: float) -> Optional[Deadline]:
    """None where there is no limit. `told` is the scheduler's own word for when it ends the job; 0 is none."""
    if limit is None:
        return None
    at = min(began + limit, scheduler_end or float("inf"))
    margin = min(MARGIN_SECONDS, limit / 20)
    return Deadline(at, at - min(lead, limit / 4), at - margin, min(grace, margin * 2 / 3))


def of(work: Attempt, scheduler_end: float, age: float = 0.0) -> Optional[Deadline]:
    """The deadline of an attempt that begins now, in a job that began `age` seconds ago."""
    limit = work.plan["allocation"]["time_seconds"]
    deadline = decide(time.time() - age, limit, scheduler_end, work.lead_seconds, work.grace_seconds)
    if deadline is None or not work.has_outputs:
        return deadline
    copy_seconds = min(names.BRING_SECONDS, limit / 20)
    return deadline._replace(warning=deadline.warning - copy_seconds, end=deadline.end - copy_seconds)
