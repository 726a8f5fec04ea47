"""Slurm's compact host lists: `gpu-a[1-2]-n[001-004],login` names nine hosts."""

from __future__ import annotations

import itertools
import re
from typing import List, Sequence

_NUMBERED = re.compile(r"([^.]*?)(\d{1,9})((?:\..*)?)")
"""A host's name up to its number, the number, and the domain."""
_GROUP = re.compile(r"\[([^\]]*)\]")


def expand(text: str) -> List[str]:
    """The hosts that `text` names, in its order, zero padding kept."""
    return [host for part in _split(text) for host in _expand_one(part)]


def fold(hosts: Sequence[str]) -> str:
    """A short list of `hosts`, in their order: neighbours with consecutive numbers become one range."""
    runs: List[List[str]] = []
    for host in hosts:
        match = _NUMBERED.fullmatch(host)
        prefix, number, suffix = match.groups() if match else (host, "", "")
        last = runs[-1] if runs else ["", "", "", ""]
        follows = number and last[2] and number == str(int(last[2]) + 1).zfill(len(last[1]))
        if follows and (prefix, suffix) == (last[0], last[3]):
            last[2] = number
        else:
            runs.append([prefix, number, number, suffix])
    return ",".join(
        f"{prefix}{first}{suffix}" if first == last else f"{prefix}[{first}-{last}]{suffix}"
        for prefix, first, last, suffix in runs
    )


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
