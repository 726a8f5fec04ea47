"""Which lines of a script the scheduler reads, and where they stop."""

from __future__ import annotations

from collections.abc import Callable

from serried.importing import pbs, slurm
from serried.importing.report import LEFT, NEEDLESS, Header, Line, line


def header(text: str) -> Header:
    """What the directives of `text` say: Slurm's, or those of PBS where it has none of Slurm's."""
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


Numbered = list[tuple[int, str]]


def _of_slurm(lines: list[str]) -> tuple[Numbered, Numbered]:
    """`#SBATCH` at the very beginning of a line, up to the first that is neither comment nor blank; and those after."""
    return _parted(lines, slurm.PREFIX, lambda text: text)


def _of_pbs(lines: list[str]) -> tuple[Numbered, Numbered]:
    """`#PBS`, blanks before it or not; lines that begin with `:` do not end the header either."""
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
