"""Logged values by step, kept while a browser shows them: a look reads only what the files have got since.

A curve of any length takes little memory and few points of a plot: beyond MOST stretches, neighbours become one, with
their mean, their lowest and their highest value. So no spike is lost, and smoothing works on means.
"""

from __future__ import annotations

import bisect
import contextlib
import math
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from serried.fs.files import json_object
from serried.metrics import samples
from serried.protocol.json_lines import LineBuffer
from serried.protocol.layout import TaskDirectory
from serried.records.evidence import attempt_numbers
from serried.records.logs import Tail

MOST = 1000
"""Stretches of a curve: about as many as a plot has columns."""
MOST_NAMES = 500
_KEYS = ("t", "step", "attempt", "resumed")


class Curve:
    """The values of one name. Each stretch has its last step, and the count, sum, minimum and maximum of its values."""

    def __init__(self) -> None:
        self._steps: list[int] = []
        self._stretches: list[tuple[int, float, float, float]] = []
        self._size = 1
        """Values in a full stretch."""

    def add(self, step: int, value: float) -> None:
        """A second value for a step replaces the first, as in `logs.metrics`, while a stretch is one step."""
        at = bisect.bisect_left(self._steps, step)
        is_same = at < len(self._steps) and self._steps[at] == step
        if is_same and self._size == 1:
            self._stretches[at] = 1, value, value, value
        elif is_same or at < len(self._steps):
            if self._size == 1:
                self._insert(at, step, value)
            else:
                self._stretches[at] = _joined(self._stretches[at], (1, value, value, value))
        elif self._steps and self._stretches[-1][0] < self._size:
            self._steps[-1] = step
            self._stretches[-1] = _joined(self._stretches[-1], (1, value, value, value))
        else:
            self._insert(at, step, value)

    def _insert(self, at: int, step: int, value: float) -> None:
        self._steps.insert(at, step)
        self._stretches.insert(at, (1, value, value, value))
        if len(self._steps) > MOST:
            pairs = [slice(at, at + 2) for at in range(0, len(self._steps), 2)]
            self._steps = [self._steps[pair][-1] for pair in pairs]
            self._stretches = [_joined(*self._stretches[pair]) for pair in pairs]
            self._size *= 2

    def cut(self, last: int) -> None:
        """Leave out what came after step `last`, from which an attempt has resumed."""
        kept = bisect.bisect_right(self._steps, last)
        del self._steps[kept:], self._stretches[kept:]

    def to_json(self) -> dict[str, list[Any]]:
        """`low` and `high` only where a point is the mean of several values."""
        found: dict[str, list[Any]] = {
            "steps": self._steps,
            "values": [total / count for count, total, _, _ in self._stretches],
        }
        if self._size > 1:
            found["low"] = [low for _, _, low, _ in self._stretches]
            found["high"] = [high for _, _, _, high in self._stretches]
        return found


def _joined(*stretches: tuple[int, float, float, float]) -> tuple[int, float, float, float]:
    counts, totals, lows, highs = zip(*stretches, strict=True)
    return sum(counts), sum(totals), min(lows), max(highs)


class RankCurves:
    """What one rank has logged in all attempts."""

    def __init__(self, place: TaskDirectory, rank: int) -> None:
        self._place, self._rank = place, rank
        self._files: dict[Path, tuple[Tail, LineBuffer]] = {}
        self._begun: set[Path] = set()
        """Files whose first step was read."""
        self._curves: dict[str, Curve] = {}
        self._lock = threading.Lock()

    def look(self) -> Mapping[str, Curve]:
        """By name."""
        with self._lock:
            for number in attempt_numbers(self._place):
                for path in self._place.attempt(number).path.glob(f"node-*/metrics-{self._rank}.jsonl"):
                    self._read(path)
            return dict(self._curves) or _measured(self._place, self._rank)

    def _read(self, path: Path) -> None:
        if not path.is_file():  # a pipe, say, would never end
            return
        tail, lines = self._files.setdefault(path, (Tail(path), LineBuffer()))
        while added := tail.read():
            for line in lines.lines(added):
                entry = json_object(line) or {}
                step, resumed = entry.get("step"), entry.get("resumed")
                if type(resumed) is int:
                    self._cut(resumed)
                    self._begun.add(path)
                if type(step) is int:
                    if path not in self._begun:
                        self._cut(step - 1)
                        self._begun.add(path)
                    _add(self._curves, step, entry)

    def _cut(self, last: int) -> None:
        for curve in self._curves.values():
            curve.cut(last)


def _add(curves: dict[str, Curve], step: int, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        if name in _KEYS or type(value) not in (int, float) or (name not in curves and len(curves) >= MOST_NAMES):
            continue
        with contextlib.suppress(OverflowError):  # an integer that no float can hold
            if math.isfinite(value):
                curves.setdefault(name, Curve()).add(step, float(value))


def _measured(place: TaskDirectory, rank: int) -> dict[str, Curve]:
    """What the agent has read by `metric.from`, from the samples."""
    curves: dict[str, Curve] = {}
    for node in samples.read(place).nodes:
        for period in node.periods:
            found = period.ranks.get(str(rank), {})
            step, values = found.get("step"), found.get("metrics")
            if type(step) is int and isinstance(values, dict):
                _add(curves, step, values)
    return curves


class KeptCurves:
    """The curves that browsers have asked for last."""

    def __init__(self, most: int = 16) -> None:
        self._most = most
        self._kept: dict[tuple[Path, int], RankCurves] = {}
        self._lock = threading.Lock()

    def look(self, place: TaskDirectory, rank: int) -> Mapping[str, Curve]:
        with self._lock:
            found = self._kept.pop((place.path, rank), None) or RankCurves(place, rank)
            self._kept[place.path, rank] = found
            while len(self._kept) > self._most:
                del self._kept[next(iter(self._kept))]
        return found.look()
