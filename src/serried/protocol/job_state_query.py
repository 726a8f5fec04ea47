"""How a job asks its scheduler for the state of another job, and what the answers mean."""

from __future__ import annotations

from typing import Tuple

ENDING = ("CANCELLED", "COMPLETING", "COMPLETED", "FAILED", "PREEMPTED", "REVOKED", "TIMEOUT")
"""Words for a job that has nothing to submit any more."""
OVER = frozenset({*ENDING, "", "BOOT_FAIL", "DEADLINE", "NODE_FAIL", "OUT_OF_MEMORY"})
"""Words for one of which nothing runs any more, or will."""


def words(script: str, job: str) -> Tuple[str, ...]:
    """The command that asks about `job` with `state_query` of the plan's dialect."""
    return ("/bin/bash", "-c", script, "ask", job)
