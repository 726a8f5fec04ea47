"""The schedulers' words for the state of a job, and the command by which a node queries the state.

Each scheduler's `state_query` prints one of these words, or nothing for a job that it does not list.
"""

from __future__ import annotations

from typing import Optional, Tuple

from serried.schema import names

COMPLETING = "COMPLETING"
"""The job has ended. Some of its processes or nodes may still be busy, and its end is not yet known."""

STATES = {
    word: state
    for state, words in {
        # REQUEUE_HOLD: until an administrator releases it.
        names.PENDING: "PENDING CONFIGURING EXPEDITING POWER_UP_NODE REQUEUED REQUEUE_FED REQUEUE_HOLD RESV_DEL_HOLD "
        "SPECIAL_EXIT",
        names.RUNNING: f"RUNNING {COMPLETING} RESIZING SIGNALING STAGE_OUT STOPPED SUSPENDED",
        names.COMPLETED: "COMPLETED",
        names.FAILED: "FAILED",
        names.CANCELLED: "CANCELLED REVOKED",
        names.TIMEOUT: "TIMEOUT DEADLINE",
        names.OUT_OF_MEMORY: "OUT_OF_MEMORY",
        names.NODE_FAIL: "NODE_FAIL BOOT_FAIL",
        names.PREEMPTED: "PREEMPTED",
        names.LAUNCH_FAILED: "LAUNCH_FAILED RECONFIG_FAIL",
    }.items()
    for word in words.split()
}
"""Serried's state for each word."""


def state_of(word: Optional[str]) -> str:
    return STATES.get(word or "", names.UNKNOWN)


def has_ended(word: str) -> bool:
    """Whether the job's end is known, or the scheduler no longer lists the job."""
    return not word or state_of(word) in names.ENDED


def is_ending(word: str) -> bool:
    """Whether the job has ended or is ending: it submits nothing more, and its agents have exited or will soon."""
    return has_ended(word) or word == COMPLETING


def query(script: str, job: str) -> Tuple[str, ...]:
    """The command that prints the state of `job`, from `state_query` of the plan's dialect."""
    return ("/bin/bash", "-c", script, "ask", job)
