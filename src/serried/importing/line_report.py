"""What became of assignments and blocks, once it is known what reads them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from serried.importing.environment import Environment
from serried.importing.report import NEEDLESS, TAKEN, Experiment, Line, line

_UNREAD = "nothing that is taken over reads it"


def assignments(made: Environment, experiments: Sequence[Experiment]) -> Iterator[Line]:
    said = _bare(" ".join(str(value) for each in experiments for value in each.settings.values()))
    for name, (number, text) in made.assigned.items():
        values = [_bare("".join(piece.text for piece in word)) for word in made.variables.values.get(name, ())]
        is_used = name in made.variables.used and not made.is_standing(name)
        if is_used and all(value in said for value in values):
            yield line(number, text, TAKEN, "filled in where it is used")
        else:
            yield line(number, text, NEEDLESS, _UNREAD)
    for each in made.steps:
        if each.is_block:
            where = made.taken.get(each)
            yield line(each.line, each.said, TAKEN if where else NEEDLESS, where or _UNREAD)


def with_steps(lines: Sequence[Line], made: Environment) -> Iterator[Line]:
    """An assignment that stands in a command is taken, whatever else becomes of its variable."""
    taken = {(each.line, line(each.line, each.said, TAKEN, "").text): where for each, where in made.taken.items()}
    for each in lines:
        where = taken.get((each.number, each.text)) if each.fate == NEEDLESS else None
        yield replace(each, fate=TAKEN, why=where) if where else each


def _bare(text: str) -> str:
    return re.sub(r"['\"\\\s]", "", text)
