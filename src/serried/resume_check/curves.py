"""Two runs' metrics side by side. Pure: rows in, differences out."""

from __future__ import annotations

import fnmatch
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from serried.records.logs import Row

Curves = Mapping[int, Sequence[Row]]
"""Each rank's rows."""

OURS = ("attempt", "step", "t")
OWN_PREFIX = "serried/"
TIMING = frozenset(
    {"time", "seconds", "second", "secs", "sec", "ms", "duration", "elapsed", "eta", "wait", "timestamp", "date"}
    | {"throughput", "speed", "fps", "memory", "mem"}
)
"""Words of names whose values say how fast a training was, and not what it has learned."""


@dataclass(frozen=True)
class Difference:
    step: int
    rank: int
    name: str
    """What was logged; empty where one of the runs has not logged the step at all."""
    whole: Any
    """What the uninterrupted run has logged; None where it has nothing."""
    stopped: Any


@dataclass(frozen=True)
class Comparison:
    ranks: int
    steps: int
    """Steps of all ranks' curves that were compared."""
    values: int
    left_out: tuple[str, ...]
    """Names that were not compared."""
    differences: tuple[Difference, ...]
    """In the order of their steps."""


def compare(whole: Curves, stopped: Curves, *, tolerance: float = 0.0, ignore: Sequence[str] = ()) -> Comparison:
    """Every value of every rank and step. `tolerance` is relative; 0 is bit by bit. `ignore`: patterns of names."""
    found: list[Difference] = []
    steps: set[int] = set()
    values = 0
    left_out: set[str] = set()
    ranks = sorted(whole.keys() | stopped.keys())
    for rank in ranks:
        left, right = _by_step(whole.get(rank, ())), _by_step(stopped.get(rank, ()))
        for step in sorted(left.keys() | right.keys()):
            names = left.get(step, {}).keys() | right.get(step, {}).keys()
            skipped = {name for name in names if is_left_out(name, ignore)}
            left_out |= skipped
            steps.add(step)
            if step not in left or step not in right:
                found.append(Difference(step, rank, "", left.get(step), right.get(step)))
                continue
            for name in sorted(names - skipped):
                values += 1
                one, other = left[step].get(name), right[step].get(name)
                if not _are_equal(one, other, tolerance):
                    found.append(Difference(step, rank, name, one, other))
    found.sort(key=lambda difference: (difference.step, difference.rank, difference.name))
    return Comparison(len(ranks), len(steps), values, tuple(sorted(left_out)), tuple(found))


def is_left_out(name: str, ignore: Sequence[str] = ()) -> bool:
    """Whether `name` says how fast it went: `images_per_second`, `step_time`, `gpu/memory`."""
    if any(fnmatch.fnmatchcase(name, pattern) for pattern in ignore):
        return True
    words = set(re.split(r"[^a-z0-9]+", name.lower()))
    return bool(words & TIMING) or name.lower().endswith("/s")


def _by_step(rows: Sequence[Row]) -> dict[int, dict[str, Any]]:
    return {row["step"]: {name: value for name, value in row.items() if _is_logged(name)} for row in rows}


def _is_logged(name: str) -> bool:
    return name not in OURS and not name.startswith(OWN_PREFIX)


def _are_equal(one: Any, other: Any, tolerance: float) -> bool:
    if not (isinstance(one, int | float) and isinstance(other, int | float)):
        return bool(one == other)
    if math.isnan(one) or math.isnan(other):
        return math.isnan(one) and math.isnan(other)
    if one == other:
        # 0.0 and -0.0 are other bits, and the difference shows in what is divided by them.
        return tolerance > 0 or math.copysign(1, one) == math.copysign(1, other)
    return tolerance > 0 and math.isclose(one, other, rel_tol=tolerance)
