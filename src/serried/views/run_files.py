"""What the live views read from the files of running runs, between two queries of the schedulers.

A curve of any length takes little memory and few points of a plot: beyond MOST stretches, neighbours become one, with
their mean, their lowest and their highest value. So no spike is lost, and smoothing works on means.
"""

from __future__ import annotations

import bisect
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from serried.records import samples
from serried.records.index import Selection
from serried.records.live import main_metric
from serried.records.status import RunStatus, has_ended_by_file
from serried.schema import names, series
from serried.schema.layout import TaskDirectory
from serried.schema.series import Resumes

Point = tuple[float, float]
"""A step and a value."""
_MOST_FOLLOWED = 20
"""Running runs whose ends are looked for."""
MOST = 1000
"""Stretches of a curve: about as many as a plot has columns."""
MOST_NAMES = 500


class Curve:
    """The values of one name. Each stretch has its last step, and the count, sum, minimum and maximum of its values."""

    def __init__(self) -> None:
        self._steps: list[int] = []
        self._stretches: list[list[float]] = []
        self._size = 1
        """Values in a full stretch."""

    def add(self, step: int, value: float) -> None:
        """A second value for a step replaces the first, as in `series.points`, while a stretch is one step."""
        if not self._steps or step > self._steps[-1]:
            if self._steps and self._stretches[-1][0] < self._size:
                self._steps[-1] = step
                _include(self._stretches[-1], value)
            else:
                self._insert(len(self._steps), step, value)
            return
        at = bisect.bisect_left(self._steps, step)
        if self._size > 1:
            _include(self._stretches[at], value)
        elif self._steps[at] == step:
            self._stretches[at] = [1, value, value, value]
        else:
            self._insert(at, step, value)

    def _insert(self, at: int, step: int, value: float) -> None:
        self._steps.insert(at, step)
        self._stretches.insert(at, [1, value, value, value])
        if len(self._steps) > MOST:
            pairs = [slice(at, at + 2) for at in range(0, len(self._steps), 2)]
            self._steps = [self._steps[pair][-1] for pair in pairs]
            joined = (zip(*self._stretches[pair]) for pair in pairs)
            self._stretches = [[sum(counts), sum(sums), min(lows), max(highs)] for counts, sums, lows, highs in joined]
            self._size *= 2

    def cut(self, last: int) -> None:
        """Leave out what came after step `last`, from which an attempt has resumed."""
        kept = bisect.bisect_right(self._steps, last)
        del self._steps[kept:], self._stretches[kept:]

    def to_json(self) -> dict[str, list[Any]]:
        """`low` and `high` only where a point is the mean of several values."""
        found: dict[str, list[Any]] = {
            "steps": list(self._steps),
            "values": [total / count for count, total, _, _ in self._stretches],
        }
        if self._size > 1:
            found["low"] = [low for _, _, low, _ in self._stretches]
            found["high"] = [high for _, _, _, high in self._stretches]
        return found


def _include(stretch: list[float], value: float) -> None:
    stretch[0] += 1
    stretch[1] += value
    if value < stretch[2]:
        stretch[2] = value
    elif value > stretch[3]:
        stretch[3] = value


class RankCurves:
    def __init__(self, place: TaskDirectory, rank: int) -> None:
        self._place, self._rank = place, rank
        self._new = series.Follower(place, rank)
        self._resumes = Resumes()
        self._begins: dict[int, int] = {}
        """The step from which on the values are those of an attempt, by the attempt's number."""
        self._curves: dict[str, Curve] = {}
        self._lock = threading.Lock()

    def look(self, wanted: Collection[str] | None = None, metric: str = "") -> dict[str, Any]:
        """The names of all curves, and the points of those in `wanted`; None for all.

        The name to show first is that of `metric`, else the loss; the library's own names come last.
        """
        with self._lock:
            self._read_on()
            known, begins = self._curves, self._begins
            if not known:
                known, begins = _measured(self._place, self._rank)
            return {
                "names": shown_first(known, metric),
                "curves": {name: curve.to_json() for name, curve in known.items() if wanted is None or name in wanted},
                "begins": [[attempt, step] for attempt, step in begins.items() if attempt > 1],
            }

    def _read_on(self) -> None:
        for path, attempt, entry in self._new.look():
            last = self._resumes.last_kept(path, entry)
            if last is not None:
                for curve in self._curves.values():
                    curve.cut(last)
                _begin(self._begins, attempt, last)
            if entry.step is not None:
                _add(self._curves, entry.step, entry.values)


def _begin(begins: dict[int, int], attempt: int, step: int) -> None:
    """Attempts of which a later one repeats every step are no part of a curve."""
    for earlier in [number for number, begin in begins.items() if begin >= step]:
        del begins[earlier]
    begins[attempt] = step


def _add(curves: dict[str, Curve], step: int, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        if series.number(value) is None:
            continue
        curve = curves.get(name)
        if curve is None:
            if len(curves) == MOST_NAMES:
                continue
            curve = curves[name] = Curve()
        curve.add(step, float(value))


def _measured(place: TaskDirectory, rank: int) -> tuple[dict[str, Curve], dict[int, int]]:
    """What the agent has read by `metric.from`, from the samples, and where attempts begin."""
    curves: dict[str, Curve] = {}
    begins: dict[int, int] = {}
    for node in samples.read(place).nodes:
        for period in node.periods:
            for step, name, value in sampled_values(period, str(rank)):
                if node.attempt not in begins:
                    _begin(begins, node.attempt, step - 1)
                _add(curves, step, {name: value})
    return curves, begins


def sampled_values(period: samples.Period, rank: str) -> Iterator[tuple[int, str, Any]]:
    """The step, name and value of each metric that the agent read of a rank. The step itself is none."""
    found = period.ranks.get(rank, {})
    step, values = found.get("step"), found.get("metrics")
    if type(step) is int and isinstance(values, dict):
        yield from ((step, name, value) for name, value in values.items() if name != "step")


def shown_first(curves: Iterable[str], metric: str) -> list[str]:
    """The names of curves: that of `metric`, else the loss, comes first, and those that Serried adds come last."""
    listed = list(curves)
    main = main_metric(listed, metric)
    return sorted(listed, key=lambda name: (name != main, name.startswith(series.OWN)))


class EndFiles:
    """Tells when a file shows the end of a running run, which the next query of its scheduler then confirms."""

    def __init__(self) -> None:
        self._told: set[str] = set()
        """A run that was preempted has the file of its last attempt, and runs again."""

    def has_new(self, found: Iterable[RunStatus]) -> bool:
        """Whether there is a file that was not there at the call before.

        So an end that was written while `found` was being read is noticed too.
        """
        running = [Selection(one.record) for one in found if one.state == names.RUNNING and one.tasks is None]
        ended = {str(one) for one in running[:_MOST_FOLLOWED] if has_ended_by_file(one)}
        is_new = not ended <= self._told
        self._told = ended
        return is_new
