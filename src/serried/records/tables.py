"""Samples as rows with a column for each value, for programs that read tables."""

from __future__ import annotations

import datetime as dt
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from serried.base.files import numbers
from serried.records import samples
from serried.records.samples import Period, Quantities, range_in
from serried.schema.layout import AttemptDirectory, TaskDirectory

Row = dict[str, Any]

GPUS, NODES, RANKS = "gpus", "nodes", "ranks"
"""What a row is about."""
_RANGES = {
    GPUS: ("busy", "sm_active", "memory", "power", "temperature", "clock"),
    NODES: ("cpu", "memory", "disk_read", "disk_write", "net_in", "net_out"),
    RANKS: ("steps_per_second", "samples_per_second", "data_wait", "cpu", "memory", "read", "write"),
}
_VALUES = {GPUS: ("throttled", "ecc_errors", "xid"), NODES: ("disk_free",), RANKS: ("step", "total_steps")}
_NEWEST = 16
"""A reader that looks every second or so misses none of so many periods, which take half a minute each."""


def columns(what: str) -> list[str]:
    """The columns of all such rows. Ranks may have further ones, one for each metric."""
    keys = {GPUS: ["gpu"], RANKS: ["rank"]}.get(what, [])
    ranges = [f"{name}{end}" for name in _RANGES[what] for end in ("", "_min", "_max")]
    values = list(_VALUES[what])
    found = [*values, *ranges] if what == RANKS else [*ranges, *values]
    return ["time", "seconds", "attempt", "node", "host", *keys, *found]


def rows(place: TaskDirectory, what: str, node: int | None = None) -> Iterator[Row]:
    """The rows of all attempts, one node after the other. `node` restricts them to one."""
    for path, attempt, number in files(place, node):
        for about, period in samples.stream(path):
            yield from _rows_of(period, what, _key(attempt, number, about))


def files(place: TaskDirectory, node: int | None) -> Iterator[tuple[Path, int, int]]:
    """The path, attempt and node of each file of samples."""
    for number in numbers(place.attempts):
        attempt: AttemptDirectory = place.attempt(number)
        for found in samples.nodes_of(attempt):
            if node in (None, found):
                yield attempt.samples(found), number, found


class NewRows:
    """The rows that files have got since the last look; at first all."""

    def __init__(self, place: TaskDirectory, what: str, node: int | None = None) -> None:
        self._place, self._what, self._node = place, what, node
        self._seen: dict[Path, tuple[Quantities, deque[float]]] = {}
        """By file: the description of its node, and the times of its last periods."""

    def look(self) -> Iterator[Row]:
        fresh: list[tuple[float, list[Row]]] = []
        for path, attempt, node in files(self._place, self._node):
            if path not in self._seen:
                yield from self._history(path, attempt, node)
                continue
            about, times = self._seen[path]
            for period in samples.newest(path, _NEWEST):
                if period.t not in times:
                    times.append(period.t)
                    fresh.append((period.t, list(_rows_of(period, self._what, _key(attempt, node, about)))))
        for _, rows_of_period in sorted(fresh, key=lambda entry: entry[0]):
            yield from rows_of_period

    def _history(self, path: Path, attempt: int, node: int) -> Iterator[Row]:
        """All of a file, which may be long."""
        times: deque[float] = deque(maxlen=4 * _NEWEST)
        for about, period in samples.stream(path):
            times.append(period.t)
            self._seen[path] = about, times
            yield from _rows_of(period, self._what, _key(attempt, node, about))


def _key(attempt: int, node: int, about: Quantities) -> Row:
    return {"attempt": attempt, "node": node, "host": str(about.get("host") or f"node {node}")}


def _rows_of(period: Period, what: str, key: Row) -> Iterator[Row]:
    begin = {"time": moment(period.t), "seconds": period.seconds, **key}
    if what == NODES:
        yield {**begin, **_values(period.node, what)}
        return
    name, entries = ("gpu", period.gpus) if what == GPUS else ("rank", period.ranks)
    for number in sorted(entries, key=samples.by_number):
        index = int(number) if number.isdecimal() else number
        yield {**begin, name: index, **_values(entries[number], what), **_metrics(entries[number])}


def _values(quantities: Quantities, what: str) -> Row:
    row: Row = {}
    for name in _RANGES[what]:
        found = range_in(quantities, name)
        if found is not None:
            row.update({name: found.mean, f"{name}_min": found.minimum, f"{name}_max": found.maximum})
    for name in _VALUES[what]:
        value = quantities.get(name)
        if isinstance(value, int | float | list) and not isinstance(value, bool):
            row[name] = value
    return row


def _metrics(quantities: Quantities) -> Row:
    metrics = quantities.get("metrics")
    if not isinstance(metrics, Mapping):
        return {}
    return {f"metrics.{name}": value for name, value in metrics.items() if isinstance(value, int | float | str)}


def moment(t: object) -> str | None:
    """`2026-11-20T04:00:12.345Z`; None for a time that no calendar has."""
    if not isinstance(t, int | float):
        return None
    try:
        at = dt.datetime.fromtimestamp(t, dt.UTC)
    except (ValueError, OverflowError, OSError):
        return None
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
