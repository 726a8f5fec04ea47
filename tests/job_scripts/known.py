"""The differences between the two forms of a script that are intended, each with its reason."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

OF_PROCESS = ("_", "SHLVL", "OLDPWD", "BASH_ENV")
"""Variables that describe how a process was reached. They are not compared."""
LOGS = re.compile(r"(.*/)?slurm-\d+(_\d+)?\.(out|err)|serried\.toml")
"""Files that the scheduler or Serried writes, and not the script."""


@dataclass(frozen=True)
class Known:
    pattern: str
    """Of what differs: the name of a variable."""
    reason: str
    original: str | None = r".*"
    """A pattern of the original's value; None if the original has none."""
    submitted: str | None = r".*"
    """The same with Serried."""
    is_alike: bool = False
    """The values have the same shape."""
    is_optional: bool = False
    """Either form may lack the variable."""

    def explains(self, what: str, original: str | None, submitted: str | None) -> bool:
        if self.is_alike and shape(original or "") != shape(submitted or ""):
            return False
        values = ((self.original, original), (self.submitted, submitted))
        is_like = all((self.is_optional and value is None) or _is_like(pattern, value) for pattern, value in values)
        return is_like and re.fullmatch(self.pattern, what) is not None


IGNORED_FAILURE = "the run fails with a launch whose failure the script did not handle"
LINES_OF_RANKS = "programs that run at the same time write their lines in any order"
RUN = "{run}"
"""The run directory, in normalised values."""
SERRIED = "{serried}"
"""The environment in which Serried is installed, in normalised values."""
SANDBOX = "{sandbox}"
"""The folder of the recorded programs, in normalised values."""

DIFFERENCES = (
    Known(r"SERRIED_\w+", "Serried describes the run to its programs", original=None),
    Known(r"SERRIED_\w+", "Serried's variables of the submitting shell are not for the job", submitted=None),
    Known(r"SLURM_(JOB_?ID|ARRAY_JOB_ID)", "each job has its own id", is_alike=True),
    Known(
        r"SLURM_(TASK_PID|SRUN_COMM_PORT|STEP_LAUNCHER_PORT|JOB_START_TIME|JOB_END_TIME)",
        "each job has its own processes, ports and times",
    ),
    Known(
        r"(CUDA|ROCR)_VISIBLE_DEVICES|GPU_DEVICE_ORDINAL|ZE_AFFINITY_MASK|SLURM_(JOB|STEP)_GPUS",
        "the scheduler chooses the GPUs of each job",
        is_alike=True,
    ),
    Known(r"SLURM_STEP_?ID", "the agents are a step of their own, before those of the script"),
    Known(r"OMPI_(COMMAND|ARGV)", "Open MPI starts the rank program, which starts the program"),
    Known(r"SLURM_OPEN_MODE", "the log of a requeued job is kept", original=None, submitted="a"),
    Known(r"SLURM_JOB_NAME", "Serried names the job"),
    Known(
        r"argv",
        "a job that was cancelled is not requeued",
        original=r"scontrol requeue [\d_]+",
        submitted=r"scontrol requeue incomplete [\d_]+",
    ),
    Known(r"CUDA_VISIBLE_DEVICES", "a run on this machine gets the GPUs that it requests", original=None, submitted=""),
    Known(r"PBS_NODEFILE", "each job has its own list of nodes"),
    Known(r"SLURM_EXPORT_ENV", "steps get the whole environment of the script", submitted=None),
    Known(r"SLURM_GET_USER_ENV", "a login shell in the job sets up the user's environment", submitted=None),
    Known(
        r"LANG|LC_\w+|TERM|MAIL",
        "with `--export`, language and terminal are those of the submitting shell",
        is_optional=True,
    ),
    Known(r"PYTHONUNBUFFERED", "output arrives in the log at once", original=None, submitted="1"),
    Known(r"PYTHONFAULTHANDLER", "Python prints where it crashed", original=None, submitted="1"),
    Known(
        r"PYTHONPATH", "programs can import the training library", original=None, submitted=rf"{re.escape(RUN)}[^:]*"
    ),
)

OWN_PARTS = {
    "PATH": "Serried's launchers stand before those of the system",
    "PYTHONPATH": "programs can import the training library",
}
"""Lists to which Serried adds folders of the run."""


def note(what: str, original: str | None, submitted: str | None) -> str:
    """The reason for a known difference, or empty."""
    if (
        what in OWN_PARTS
        and original is not None
        and submitted is not None
        and _without_own(submitted) == _without_own(original)
    ):
        return OWN_PARTS[what]
    return next((known.reason for known in DIFFERENCES if known.explains(what, original, submitted)), "")


def _is_like(pattern: str | None, value: str | None) -> bool:
    if pattern is None or value is None:
        return pattern is value
    return re.fullmatch(pattern, value, re.DOTALL) is not None


def _without_own(path: str) -> str:
    """Without the folders of the run and of the recorded programs, which the latter keep first."""
    return ":".join(part for part in path.split(":") if not part.startswith((RUN, SANDBOX)))


def shape(text: str) -> str:
    """The text without its particular letters and digits: values that each run has of its own look alike."""
    return re.sub(r"[A-Za-z0-9]+", "x", text)


def without_rank_program(argv: Sequence[str], shims: str) -> list[str]:
    """A launcher's argv as the script wrote it: Serried puts its rank program before the program.

    `shims` is the folder of that program; empty if Serried did not start the launcher. A launcher of Python programs
    then gets `--no-python`, and the interpreter.
    """
    words = ["-m" if word == "--module" else word for word in argv]
    program = f"{shims}/rank"
    if not shims or program not in words:
        return words
    index = words.index(program)
    before, after = words[:index], words[index + 2 :]
    if before[-1] in ("--no-python", "--no_python") and after[1:2] == ["-u"]:
        return [*before[:-1], *after[2:]]
    return [*before, *after]
