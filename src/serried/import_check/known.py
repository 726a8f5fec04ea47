"""The differences between the two forms of a script that are intended, each with its reason."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

OF_PROCESS = ("_", "SHLVL", "OLDPWD", "BASH_ENV")
"""Variables that describe how a process was reached. They are not compared."""
LOGS = re.compile(r"(.*/)?slurm-\d+(_\d+)?\.(out|err)|serried\.toml")
"""Files that the scheduler or the import writes, and not the script."""


@dataclass(frozen=True)
class Known:
    pattern: str
    """Of what differs: the name of a variable."""
    reason: str
    is_new: bool = False
    """Only a value that the original lacks is known."""


DIFFERENCES = (
    Known(r"SERRIED_\w+", "Serried describes the run to its programs", is_new=True),
    Known(r"SLURM_(JOB_?ID|ARRAY_JOB_ID)", "each job has its own id"),
    Known(r"SLURM_(TASK_PID|SRUN_COMM_PORT|STEP_LAUNCHER_PORT|JOB_START_TIME|JOB_END_TIME)", "each job has its own"),
    Known(r"SLURM_JOB_NAME", "Serried names the job"),
)


def note(what: str, original: str | None, imported: str | None) -> str:
    """The reason for a known difference, or empty."""
    for known in DIFFERENCES:
        if re.fullmatch(known.pattern, what) and imported is not None and (original is None) == known.is_new:
            return known.reason
    return ""


def without_rank_program(argv: Sequence[str]) -> Sequence[str]:
    """A launcher's argv as the script wrote it, without the rank program before the program."""
    return argv
