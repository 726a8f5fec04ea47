"""The status of all runs and their curves, kept up to date while a browser asks.

However many browsers ask, the schedulers get a query when something changed, then less and less often, as from
`serried wait`. In between, files show new runs and the ends of others.

A curve of any length takes little memory and few points of a plot: beyond MOST stretches, neighbours become one, with
their mean, their lowest and their highest value. So no spike is lost, and smoothing works on means.
"""

from __future__ import annotations

import bisect
import dataclasses
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from serried.records import index, run_status, samples
from serried.records.index import Selection
from serried.records.live import main_metric
from serried.records.record import Record
from serried.records.run_status import RunStatus
from serried.records.status import Pace, has_ended_by_file, statuses, task_of
from serried.schema import names, series
from serried.schema.layout import TaskDirectory
from serried.schema.series import Entry, Resumes

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
            self._stretches = [_joined(self._stretches[pair]) for pair in pairs]
            self._size *= 2

    def cut(self, last: int) -> None:
        """Leave out what came after step `last`, from which an attempt has resumed."""
        kept = bisect.bisect_right(self._steps, last)
        del self._steps[kept:], self._stretches[kept:]

    def to_json(self) -> dict[str, list[Any]]:
        """`low` and `high` only where a point is the mean of several values."""
        values = [total / count for count, total, _, _ in self._stretches]
        found: dict[str, list[Any]] = {"steps": list(self._steps), "values": values}
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


def _joined(stretches: Sequence[Sequence[float]]) -> list[float]:
    counts, totals, lows, highs = zip(*stretches, strict=True)
    return [sum(counts), sum(totals), min(lows), max(highs)]


class RankCurves:
    """What one rank has logged in all attempts."""

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
            for path, attempt, entry in self._new.look():
                self._read(path, attempt, entry)
            known, begins = self._curves, self._begins
            if not known:
                known, begins = _measured(self._place, self._rank)
            main = main_metric(known, metric)
            return {
                "names": sorted(known, key=lambda name: (name != main, name.startswith(series.OWN))),
                "curves": {name: curve.to_json() for name, curve in known.items() if wanted is None or name in wanted},
                "begins": [[attempt, step] for attempt, step in begins.items() if attempt > 1],
            }

    def _read(self, path: Path, attempt: int, entry: Entry) -> None:
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
            found = period.ranks.get(str(rank), {})
            step, values = found.get("step"), found.get("metrics")
            if type(step) is int and isinstance(values, dict):
                if node.attempt not in begins:
                    _begin(begins, node.attempt, step - 1)
                _add(curves, step, values)
    return curves, begins


class KeptCurves:
    """The curves that browsers have asked for last."""

    def __init__(self, most: int = 16) -> None:
        self._most = most
        self._kept: dict[tuple[Path, int], RankCurves] = {}
        self._lock = threading.Lock()

    def look(
        self, place: TaskDirectory, rank: int, wanted: Collection[str] | None = None, metric: str = ""
    ) -> dict[str, Any]:
        with self._lock:
            found = self._kept.pop((place.path, rank), None) or RankCurves(place, rank)
            self._kept[place.path, rank] = found
            while len(self._kept) > self._most:
                del self._kept[next(iter(self._kept))]
        return found.look(wanted, metric)


_FILES_SECONDS = 1.0
_MOST_FOLLOWED = 20
"""Running runs whose files are read every second."""
IDLE_SECONDS = 60.0
"""The thread rests when no browser has asked for so long."""
FIRST_LOOK_SECONDS = 15.0
"""How long the first request waits for the first look: a scheduler may be slow."""

Look = Callable[[Iterable[Record]], Sequence[RunStatus]]


class Runs:
    """`look` finds the statuses of runs; `known` lists their records."""

    def __init__(self, look: Look = statuses, known: Callable[[], list[Record]] = index.records) -> None:
        self._look, self._known = look, known
        self._ended: dict[str, RunStatus] = {}
        """Those whose end is in the record, so that no later look changes it."""
        self._found: tuple[RunStatus, ...] = ()
        self.problem = ""
        """Why the last look failed, so that the statuses are those of an earlier one."""
        self.curves = KeptCurves()
        self._lock = threading.Lock()
        self._has_looked, self._is_wanted, self._is_closed = (threading.Event() for _ in range(3))
        self._asked_at = time.monotonic()
        self._thread = threading.Thread(target=self._refresh, name="serried-ui-runs", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._is_closed.set()
        self._is_wanted.set()

    def all(self) -> tuple[RunStatus, ...]:
        """The newest first. Waits for the first look, and for the first one after a rest."""
        self._asked_at = time.monotonic()
        self._is_wanted.set()
        self._has_looked.wait(FIRST_LOOK_SECONDS)
        # Copies: a status keeps the progress that it has read once.
        return tuple(status if status.has_ended else dataclasses.replace(status) for status in self._found)

    def one(self, selection: Selection) -> RunStatus:
        """The status of a run or a task: as of the last look, or from files if the run has ended."""
        if selection.record.end is not None:
            whole = run_status.read_end(selection.record)
        else:
            whole = self._known_status(selection.record) or self._look_again(selection.record)
        return whole if selection.task is None else task_of(whole, selection.task)

    def _known_status(self, record: Record) -> RunStatus | None:
        return next((status for status in self.all() if status.record.id == record.id), None)

    def _look_again(self, record: Record) -> RunStatus:
        """A new run costs one look, however many requests wait for it."""
        with self._lock:
            known = self._known_status(record)
            if known is None:
                self._update()
        return known or self._known_status(record) or self._look([record])[0]

    def _refresh(self) -> None:
        pace = Pace()
        while not self._is_closed.is_set():
            self._is_wanted.wait()
            try:
                self.refresh()
                self.problem = ""
            except Exception as error:  # noqa: BLE001 - a home that is away, say: the page tells, and the next look may work
                self.problem = f"the runs cannot be read: {error}"
            self._has_looked.set()
            self._wait_for_change(time.monotonic() + pace.after(self._found))
            if self._is_idle():
                self._has_looked.clear()
                self._is_wanted.clear()
                if not self._is_idle():  # a request came just now
                    self._is_wanted.set()

    def _is_idle(self) -> bool:
        return time.monotonic() - self._asked_at > IDLE_SECONDS

    def _wait_for_change(self, until: float) -> None:
        """Sleep until `until`, or until files show a new run or the end of another."""
        runs = self._ids()
        followed = [Selection(one.record) for one in self._found if one.state == names.RUNNING and one.tasks is None]
        followed = [one for one in followed[:_MOST_FOLLOWED] if not has_ended_by_file(one)]  # a preempted run has
        while (left := until - time.monotonic()) > 0 and not self._is_closed.wait(min(_FILES_SECONDS, left)):
            if self._ids() != runs or any(map(has_ended_by_file, followed)):
                return

    def _ids(self) -> set[str]:
        try:
            return {record.id for record in self._known()}
        except OSError:
            return set()

    def refresh(self) -> None:
        """Look at the runs that have not ended, and at new ones."""
        with self._lock:
            self._update()

    def _update(self) -> None:
        records = {record.id: record for record in self._known()}
        self._ended = {run: status for run, status in self._ended.items() if run in records}
        looked = self._look([record for run, record in records.items() if run not in self._ended])
        self._ended.update({status.record.id: status for status in looked if status.record.end is not None})
        open_ = [status for status in looked if status.record.id not in self._ended]
        self._found = tuple(sorted((*open_, *self._ended.values()), key=lambda status: -status.created))
        self._has_looked.set()
