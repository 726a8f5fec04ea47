"""Indices of array tasks in Slurm's shorthand: `0-9,12,20-100:10%4`."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

SHORTEST_PROGRESSION = 3
"""Two numbers are written `4,8`; from three on a range with a step is shorter."""


def compress(indices: Iterable[int]) -> str:
    """The shortest-reading list that `expand` turns back into these indices, sorted."""
    return ",".join(_spell(*progression) for progression in _progressions(sorted(set(indices))))


def expand(text: str) -> list[int]:
    """The indices that `text` names, in its order; the limit after `%` is ignored.

    Raises ValueError where it is no such list (`[1-3,...` cut short, say).
    """
    items = text.strip("[]").partition("%")[0].split(",")
    return list(itertools.chain.from_iterable(map(_range, items)))


def _range(item: str) -> range:
    span, _, step = item.partition(":")
    first, dash, last = span.partition("-")
    return range(int(first), int(last if dash else first) + 1, int(step or 1))


def _progressions(numbers: list[int]) -> Iterator[tuple[int, int, int]]:
    """Cut into (first, last, step), greedily; a lone number has step 0."""
    position = 0
    while position < len(numbers):
        end, step = position, 0
        if position + 1 < len(numbers):
            step = numbers[position + 1] - numbers[position]
            end = position + 1
            while end + 1 < len(numbers) and numbers[end + 1] - numbers[end] == step:
                end += 1
        long_enough = end - position + 1 >= SHORTEST_PROGRESSION or step == 1
        if not long_enough:
            end, step = position, 0
        yield numbers[position], numbers[end], step
        position = end + 1


def _spell(first: int, last: int, step: int) -> str:
    if first == last:
        return str(first)
    return f"{first}-{last}" if step == 1 else f"{first}-{last}:{step}"
