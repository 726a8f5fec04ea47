"""The text of a job script, and the directives that the scheduler reads."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import PurePath

from serried.errors import UsageError
from serried.importing import pbs, slurm
from serried.importing.body import submitted
from serried.importing.report import LEFT, NEEDLESS, Header, Line, line

MOST_BYTES = 256 * 1024
Numbered = list[tuple[int, str]]
_DIRECTIVE = re.compile(r"^\s*#(?:SBATCH|PBS)\b", re.MULTILINE)
_SCRIPT = re.compile(r"[\w./-]+\.(?:sh|bash|sbatch|slurm|job|pbs)(?![\w.])")


def text(content: bytes, file: str) -> str:
    """The text of a script. Raises UsageError for a file that is not bash or text, or only submits other scripts."""
    if len(content) > MOST_BYTES:
        raise UsageError(f"`{file}` is not a job script: it has more than {MOST_BYTES // 1024} KiB")
    try:
        found = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise UsageError(f"`{file}` is not a job script: it is not UTF-8 text") from None
    if "\0" in found:
        raise UsageError(f"`{file}` is not a job script: it contains NUL characters")
    found = found.replace("\r\n", "\n").replace("\r", "\n")
    first = found.split("\n", 1)[0]
    if first.startswith("#!") and not re.search(r"\b(ba|z|k|da)?sh\b", first):
        raise UsageError(
            f"`{file}` is a script of `{first[2:].strip()}`, and only scripts of a shell such as bash can be imported",
            hint=f"run the script as the command: serried submit -- ./{PurePath(file).name}",
        )
    _check_is_job(found, file)
    return found


def _check_is_job(text: str, file: str) -> None:
    """Refuse a script that only submits jobs."""
    calls = [] if _DIRECTIVE.search(text) else submitted(text)
    if not calls:
        return
    first = calls[0].text
    given = _SCRIPT.search(first.partition("sbatch")[2] or first.partition("qsub")[2]) if len(calls) == 1 else None
    raise UsageError(
        f"`{file}` submits jobs and is not a job script: line {calls[0].line} calls the scheduler",
        hint=f"import the submitted script: `serried import {given[0] if given else 'SCRIPT'}`",
    )


def header(text: str) -> Header:
    """The directives of a script: Slurm's, or those of PBS if it has none of Slurm's."""
    lines = text.split("\n")
    of_slurm, late = _of_slurm(lines)
    if of_slurm or late:
        made = slurm.header(of_slurm)
        made.lines += [_ignored(number, slurm.PREFIX + rest) for number, rest in late]
        others = [(number, rest) for found in _of_pbs(lines) for number, rest in found]
        made.lines += [line(number, pbs.PREFIX + rest, NEEDLESS, "Slurm's lines hold") for number, rest in others]
        return made
    of_pbs, late = _of_pbs(lines)
    made = pbs.header(of_pbs)
    made.lines += [_ignored(number, pbs.PREFIX + rest) for number, rest in late]
    return made


def _ignored(number: int, text: str) -> Line:
    return line(number, text, LEFT, "the scheduler did not read it: it stands after the first command")


def _of_slurm(lines: list[str]) -> tuple[Numbered, Numbered]:
    """`#SBATCH` at the beginning of lines: those before the first command, and those after it."""
    return _parted(lines, slurm.PREFIX, lambda text: text)


def _of_pbs(lines: list[str]) -> tuple[Numbered, Numbered]:
    """As `_of_slurm`. Blanks may stand before `#PBS`, and lines that begin with `:` are comments."""
    return _parted(lines, pbs.PREFIX, lambda text: "" if text.lstrip().startswith(":") else text.lstrip())


def _parted(lines: list[str], prefix: str, seen: Callable[[str], str]) -> tuple[Numbered, Numbered]:
    read: Numbered = []
    late: Numbered = []
    is_header = True
    for number, raw in enumerate(lines, 1):
        text = seen(raw)
        rest = text.removeprefix(prefix)
        if rest != text and (not rest or rest[0].isspace() or rest[0] == "-"):
            (read if is_header else late).append((number, rest))
        elif text.strip() and not text.startswith("#"):
            is_header = False
    return read, late
