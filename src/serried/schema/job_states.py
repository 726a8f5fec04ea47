"""The schedulers' words for the state of a job, and the command by which a node queries the state.

Each scheduler's `state_query` prints one of these words, or nothing for a job that it does not list.
"""

from __future__ import annotations

from typing import Optional, Tuple

from serried.schema import names

COMPLETING = "COMPLETING"
"""The job has ended. Some of its processes or nodes may still be busy, and its end is not yet known."""

STATES = {
    "PENDING": names.PENDING,
    "CONFIGURING": names.PENDING,
    "EXPEDITING": names.PENDING,
    "POWER_UP_NODE": names.PENDING,
    "REQUEUED": names.PENDING,
    "REQUEUE_FED": names.PENDING,
    "REQUEUE_HOLD": names.PENDING,  # until an administrator releases it
    "RESV_DEL_HOLD": names.PENDING,
    "SPECIAL_EXIT": names.PENDING,
    "RUNNING": names.RUNNING,
    COMPLETING: names.RUNNING,
    "RESIZING": names.RUNNING,
    "SIGNALING": names.RUNNING,
    "STAGE_OUT": names.RUNNING,
    "STOPPED": names.RUNNING,
    "SUSPENDED": names.RUNNING,
    "COMPLETED": names.COMPLETED,
    "FAILED": names.FAILED,
    "CANCELLED": names.CANCELLED,
    "REVOKED": names.CANCELLED,
    "TIMEOUT": names.TIMEOUT,
    "DEADLINE": names.TIMEOUT,
    "OUT_OF_MEMORY": names.OUT_OF_MEMORY,
    "NODE_FAIL": names.NODE_FAIL,
    "BOOT_FAIL": names.NODE_FAIL,
    "PREEMPTED": names.PREEMPTED,
    "LAUNCH_FAILED": names.LAUNCH_FAILED,
    "RECONFIG_FAIL": names.LAUNCH_FAILED,
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
