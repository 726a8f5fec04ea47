"""The text of a job script, and files that are not job scripts."""

from __future__ import annotations

import re
from pathlib import PurePath

from serried import schedulers
from serried.errors import UsageError
from serried.schedulers.directives import form

MOST_BYTES = 4 * 1024 * 1024
"""As much as sbatch accepts."""

_BEGINS = r"(?:^|[;&|({`]|\b(?:then|do|else)\s)\s*(?:exec\s+|time\s+)?(?:[A-Za-z_]\w*=(?:\$\(\(.*?\)\)|\S)*\s+)*"
"""Where a command begins in a line."""
LAUNCHES = re.compile(
    rf"{_BEGINS}(?:\S*/)?(?:srun|torchrun|mpirun|mpiexec|horovodrun|deepspeed|accelerate\s+launch"
    r"|python[\d.]*\s+(?!-m\s+(?:pip|venv)\b))"
)
"""A line that starts a program."""
SUBMITS = re.compile(rf"{_BEGINS}(?:sbatch|qsub)\b(?P<rest>[^\n;&|]*)")
"""A line that gives a job to the scheduler."""
_SCRIPT = re.compile(r"[\w./-]+\.(?:sh|bash|sbatch|slurm|job|pbs)(?![\w.])")
_LOOP = re.compile(r"^\s*(?:for|while|until)\b", re.MULTILINE)


def text(content: bytes, file: str) -> str:
    """The text of a script; bytes that are not UTF-8 become surrogates. Raises UsageError for other files."""
    if len(content) > MOST_BYTES:
        raise UsageError(f"`{file}` is not a job script: it has more than {MOST_BYTES // 1024**2} MiB")
    if b"\0" in content:
        raise UsageError(f"`{file}` is not a job script: it contains NUL characters")
    read = content.decode("utf-8", errors="surrogateescape").removeprefix("\ufeff")
    scheduler = schedulers.of_script(read)
    if not form(read).interpreter and scheduler is None:
        raise UsageError(
            f"`{file}` is not a job script: it begins without `#!` and has neither `#SBATCH` nor `#PBS` lines",
            hint=f"submit a program as a command: serried submit -- python {file}" if file.endswith(".py") else None,
        )
    if scheduler is None:
        _check_is_job(read, file)
    return read


def logical_lines(text: str) -> list[tuple[int, str]]:
    """Lines with their numbers: continued lines as one, without comments and blank lines."""
    found: list[tuple[int, str]] = []
    pending = ""
    first = 0
    for number, line in enumerate(text.replace("\r\n", "\n").split("\n"), 1):
        if not pending:
            first = number
            if not line.strip() or line.lstrip().startswith("#"):
                continue
        pending += line
        if pending.endswith("\\"):
            pending = pending[:-1] + " "
            continue
        found.append((first, pending))
        pending = ""
    return [*found, *([(first, pending)] if pending else [])]


def is_itself(words: str, file: str) -> bool:
    """Do the words after `sbatch` name the script that they stand in?"""
    name = re.escape(PurePath(file).name)
    return re.search(rf"\$\{{?(?:0|BASH_SOURCE)\b|(?:^|[\s/\"']){name}(?:$|[\s\"'])", words) is not None


def _check_is_job(text: str, file: str) -> None:
    """Refuse a script that only submits other scripts."""
    calls = [(number, call) for number, line in logical_lines(text) for call in SUBMITS.finditer(line)]
    calls = [(number, call) for number, call in calls if not is_itself(call["rest"], file)]
    if not calls or any(LAUNCHES.search(line) for _, line in logical_lines(text)):
        return
    given = _SCRIPT.search(calls[0][1]["rest"]) if len(calls) == 1 else None
    hint = f"import the script that it submits: serried import {given[0] if given else 'SCRIPT'}"
    if _LOOP.search(text):
        hint += "\nfor a job per value: `serried submit --commands FILE` or `--array 0-9`"
    raise UsageError(
        f"`{file}` submits jobs and is not a job script: line {calls[0][0]} calls the scheduler", hint=hint
    )
