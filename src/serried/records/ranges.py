"""Indices of array elements, spelled as schedulers spell them: `0-7,9` is eight elements and one more."""

from __future__ import annotations

from collections.abc import Iterable


def compress(indices: Iterable[int]) -> str:
    """`[0, 1, 2, 5]` is `0-2,5`; order and repetitions do not matter."""
    spans: list[list[int]] = []
    for index in sorted(set(indices)):
        if spans and spans[-1][1] == index - 1:
            spans[-1][1] = index
        else:
            spans.append([index, index])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)


def expand(text: str) -> list[int]:
    """The indices that `compress` wrote. Raises ValueError on anything else."""
    indices: list[int] = []
    for span in filter(None, text.split(",")):
        first, dash, last = span.partition("-")
        indices += range(int(first), int(last) + 1) if dash else [int(first)]
    return indices
