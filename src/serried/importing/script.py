"""The text of a job script, and files that are not job scripts."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import PurePath
from typing import NamedTuple

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
_ASSIGNS = re.compile(r"^\s*(?:(?:export|readonly|declare|local)\s+)?([A-Za-z_]\w*)=(\"[^\"]*\"|'[^']*'|\$\(.*\)|\S+)")
_OF_A_JOB = re.compile(r"\$\{?(?:SLURM_(?!SUBMIT)|PBS_(?!O_))\w")
"""A variable that only jobs have."""
_DOCUMENT = re.compile(r"(?<!<)<<-?\s*[\"'\\]?([A-Za-z_]\w*)")
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


class Line(NamedTuple):
    """Continued lines as one, with the here-document that they begin."""

    number: int
    last: int
    text: str
    """Without the here-document."""


def logical_lines(text: str) -> list[Line]:
    """The lines of a script without comments and blank lines."""
    lines = text.replace("\r\n", "\n").split("\n")
    found: list[Line] = []
    number = 0
    while number < len(lines):
        first, line = number + 1, lines[number]
        number += 1
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        while line.endswith("\\") and number < len(lines):
            line = f"{line[:-1]} {lines[number]}"
            number += 1
        if document := _DOCUMENT.search(line):
            number = next((at + 1 for at in range(number, len(lines)) if lines[at].strip() == document[1]), number)
        found.append(Line(first, number, line))
    return found


def assigned(texts: Iterable[str]) -> dict[str, str]:
    """The variables of a script, with the words of their last assignments, without quotes around them."""
    matches = filter(None, map(_ASSIGNS.match, texts))
    return {match[1]: match[2].strip("\"'") for match in matches}


def expanded(words: str, values: dict[str, str]) -> str:
    """The words with the script's own variables replaced, three times over at most."""
    for _ in range(3):
        words = re.sub(r"\$(?:(\w+)|\{(\w+)\})", lambda name: values.get(name[1] or name[2], name[0]), words)
    return words


def is_itself(words: str, file: str) -> bool:
    """Do the words after `sbatch`, with the script's variables replaced, name the script that they stand in?"""
    name = re.escape(PurePath(file).name)
    return re.search(rf"\$\{{?(?:0|BASH_SOURCE)\b|\bCommand=|(?:^|[\s/\"']){name}(?:$|[\s\"'])", words) is not None


def _check_is_job(text: str, file: str) -> None:
    """Refuse a script that only submits other scripts."""
    lines = logical_lines(text)
    values = assigned(line.text for line in lines)
    calls = [(line.number, call) for line in lines for call in SUBMITS.finditer(line.text)]
    calls = [(number, call) for number, call in calls if not is_itself(expanded(call["rest"], values), file)]
    if not calls or any(LAUNCHES.search(line.text) or _OF_A_JOB.search(line.text) for line in lines):
        return
    given = _SCRIPT.search(calls[0][1]["rest"]) if len(calls) == 1 else None
    hint = f"import the script that it submits: serried import {given[0] if given else 'SCRIPT'}"
    if _LOOP.search(text):
        hint += "\nfor a job per value: `serried submit --commands FILE` or `--array 0-9`"
    raise UsageError(
        f"`{file}` submits jobs and is not a job script: line {calls[0][0]} calls the scheduler", hint=hint
    )
