"""Sizes, counts and progress as text for people."""

from __future__ import annotations

from typing import Any, Iterable, List, Mapping

_MINUTE, _HOUR = 60, 3600


def spell(size: int) -> str:
    """`41.2 MB`, in decimal units, as vendors of disks use."""
    value, unit = float(size), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if value < 1000:
            break
        value, unit = value / 1000, larger
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"


def counted(number: int, noun: str) -> str:
    """`1 file`, `1,281,167 files`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def ranges(indices: Iterable[int]) -> str:
    """`0-3,7`."""
    found: List[List[int]] = []
    for index in sorted(indices):
        if found and found[-1][1] == index - 1:
            found[-1][1] = index
        else:
            found.append([index, index])
    return ",".join(f"{first}-{last}" if last > first else str(first) for first, last in found)


def progress(facts: Mapping[str, Any]) -> str:
    """`41 % of 12.0 GB at 102.1 MB/s, 2 min left`, as far as known; empty if the total is unknown.

    `facts` has `bytes`, `of`, `rate` per second, and the seconds `left`. `unpacks` is true while an archive is being
    unpacked. `waits_for` is the run whose job copies the data, empty if its name is unknown.
    """
    size, of, rate, left, waits_for = (facts.get(name) for name in ("bytes", "of", "rate", "left", "waits_for"))
    if waits_for is not None:
        far = f"{100 * min(size or 0, of) // of} % of {spell(of)}" if of else "0 %"
        return f"{far}, waiting for {maker(waits_for)}, which copies the same data to this node"
    if not of:
        return ""
    speed = f" at {spell(rate)}/s" if rate else ""
    soon = "" if left is None else f", {_in_words(left)} left"
    unpacked = " unpacked" if facts.get("unpacks") else ""
    return f"{100 * min(size or 0, of) // of} % of {spell(of)}{unpacked}{speed}{soon}"


def maker(run: str) -> str:
    """The run whose job copies the data."""
    return f"run {run}" if run else "another job of yours"


def _in_words(seconds: int) -> str:
    if seconds < _MINUTE:
        return f"{seconds} s"
    return f"{round(seconds / _MINUTE)} min" if seconds < _HOUR else f"{seconds / _HOUR:.1f} h"
