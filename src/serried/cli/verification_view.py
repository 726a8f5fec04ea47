"""The comparison of `serried import --verify`, as text and as JSON."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path

from serried.errors import RunFailed, UsageError
from serried.import_check import FormDifference, Verification, verify
from serried.protocol.sizes import counted
from serried.ui import console
from serried.ui.text import fit, printable

_INDENT = "  "


def verify_script(script: str, tasks: str | None, *, as_json: bool) -> None:
    """Verify the import of `script`, submitted in this folder, and print what differs.

    Raises RunFailed if a difference has no reason.
    """
    here = Path.cwd()
    if script == "-":
        raise UsageError("`--verify` runs the script, so the script must be a file", hint="save it to a file")
    path = (here / script).resolve()
    if not path.is_file() or not path.is_relative_to(here.resolve()):
        raise UsageError(
            f"`{script}` is not a file below this folder", hint="run the command where you submit the script"
        )
    numbers = _numbers(tasks)
    with console.status_line(f"running both forms of {path.name}"):
        verification = verify(str(path.relative_to(here.resolve())), here, os.environ, tasks=numbers)
    faults = verification.faults
    if as_json:
        console.out_json(
            same=not faults,
            in_lab=verification.in_lab,
            programs=len(verification.original.records),
            differences=[dataclasses.asdict(difference) for difference in verification.differences],
        )
    else:
        for line in _lines(verification):
            console.out(line)
    if faults:
        raise RunFailed(f"the imported form of `{script}` differs: {counted(len(faults), 'difference')}")


def _numbers(tasks: str | None) -> list[int]:
    try:
        return [int(word) for word in tasks.split(",")] if tasks else []
    except ValueError:
        raise UsageError(f"`--array-tasks {tasks}` is not a list of tasks", hint="--array-tasks 0,3") from None


def _lines(verification: Verification) -> Iterator[str]:
    by_program = sorted(verification.faults, key=lambda each: (each.task is not None, each.task or 0, each.program))
    for (task, program), differences in groupby(by_program, lambda each: (each.task, each.program)):
        title = program or "the run"
        where = "" if task is None else f" (task {task})"
        yield fit(printable(f"{title}{where}"), console.columns())
        yield from _sides(list(differences))
        yield ""
    reasons = sorted({(each.what, each.note) for each in verification.differences if each.note})
    if reasons:
        yield "intended differences:"
        for note, group in groupby(sorted(reasons, key=lambda each: each[::-1]), lambda each: each[1]):
            names = ", ".join(what for what, _ in group)
            yield from console.behind(f"{_INDENT}{note}: ", printable(names))
        yield ""
    count = counted(len(verification.original.records), "program")
    where = "in the lab" if verification.in_lab else "on this machine"
    number = counted(len(verification.faults), "difference") if verification.faults else "no differences"
    yield f"compared {count}, run {where}: {number}"
    if not verification.original.records:
        yield "the script started no program that is recorded"


def _sides(differences: Sequence[FormDifference]) -> Iterable[str]:
    for difference in differences:
        yield f"{_INDENT}{difference.what}"
        for sign, value in (("-", difference.original), ("+", difference.imported)):
            shown = "(none)" if value is None else printable(value) or "(empty)"
            yield from console.behind(f"{_INDENT * 2}{sign} ", shown)
