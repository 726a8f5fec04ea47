"""What to do about a job of which nothing says how it ended, or that may not exist: part of `advice`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from serried.protocol.reasons import Reason


@dataclass(frozen=True)
class Advice:
    meaning: str
    """One sentence: what this kind of end is."""
    steps: tuple[str, ...]
    """What to do. Filled in are `{run}`, `{rank}`, `{host}`, `{attempt}`, `{verb}` (`submit`, or `run`), and, for the
    next try, `{time}`, `{restarts}` and `{here}`, the same command for `serried run`."""


ON_JOBS: Mapping[Reason, Advice] = {
    Reason.UNRECORDED: Advice(
        "the job's script could not write why: it was killed, a disk is full, or its folder is gone",
        (
            "see what is known, and what is left: serried show {run}",
            "look at the disk and at your quotas, then submit it again",
        ),
    ),
    Reason.SUBMISSION: Advice(
        "no job exists: `serried submit` ended, or was given up, before the scheduler had it",
        ("submit it again: serried rerun {run}",),
    ),
    Reason.LOST: Advice(
        "the job is over and nothing says how: a file system or a node may have failed, or the folder was purged",
        ("ask the scheduler: sacct -j JOB", "look at what is left: serried show {run}"),
    ),
    Reason.UNCERTAIN: Advice(
        "whether the scheduler has the job is not known; do not submit it again yet",
        (
            "the next serried command that reaches the scheduler finds out by the job's name",
            "serried forget {run} gives it up",
        ),
    ),
    Reason.UNREACHABLE: Advice(
        "the scheduler does not answer", ("try again in a minute; the run does not need this command",)
    ),
    Reason.UNREADABLE: Advice("its record cannot be read", ("upgrade Serried, or look at the file that is named",)),
}
