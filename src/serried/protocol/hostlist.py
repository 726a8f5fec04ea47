"""Slurm's compact host lists: `gpu-a[1-2]-n[001-004],login` names nine hosts."""

from __future__ import annotations

import itertools
import re
from typing import List

_GROUP = re.compile(r"\[([^\]]*)\]")


def expand(text: str) -> List[str]:
    """The hosts that `text` names, in its order, zero padding kept."""
    return [host for part in _split(text) for host in _expand_one(part)]


def _split(text: str) -> List[str]:
    """Split at commas that are not inside brackets."""
    parts, depth, start = [], 0, 0
    for position, character in enumerate(text):
        depth += (character == "[") - (character == "]")
        if character == "," and depth == 0:
            parts.append(text[start:position])
            start = position + 1
    parts.append(text[start:])
    return [part.strip() for part in parts if part.strip()]


def _expand_one(part: str) -> List[str]:
    pieces = _GROUP.split(part)
    choices = [_ranges(piece) if index % 2 else [piece] for index, piece in enumerate(pieces)]
    return ["".join(combination) for combination in itertools.product(*choices)]


def _ranges(group: str) -> List[str]:
    numbers: List[str] = []
    for item in group.split(","):
        first, dash, last = item.partition("-")
        if dash:
            numbers += [str(n).zfill(len(first)) for n in range(int(first), int(last) + 1)]
        else:
            numbers.append(item)
    return numbers
