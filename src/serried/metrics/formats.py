"""Rows as text: CSV, lines of JSON, and the columns of `nvidia-smi dmon`."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from serried.metrics.tables import Row

MIB = 1 << 20
_DMON = (
    ("gpu", "Idx", 5),
    ("pwr", "W", 7),
    ("gtemp", "C", 7),
    ("mtemp", "C", 7),
    ("sm", "%", 7),
    ("mem", "%", 7),
    ("enc", "%", 7),
    ("dec", "%", 7),
    ("mclk", "MHz", 7),
    ("pclk", "MHz", 7),
    ("fb", "MB", 7),
)
_HEADER_EVERY = 20
"""Lines of `nvidia-smi dmon` below a header."""


class Csv:
    """A header, and a line for each row. What is unknown is empty."""

    def __init__(self, columns: Sequence[str]) -> None:
        self._columns = columns
        self._left_out: set[str] = set()

    def header(self) -> str:
        return _csv_line(self._columns)

    def left_out(self, row: Row) -> list[str]:
        """The values of a row that have no column, each once."""
        names = [name for name in row if name not in self._columns and name not in self._left_out]
        self._left_out.update(names)
        return names

    def lines(self, rows: Iterable[Row]) -> Iterator[str]:
        for row in rows:
            yield _csv_line([_cell(row.get(name)) for name in self._columns])


class JsonLines:
    """An object for each row."""

    def header(self) -> str:
        return ""

    def lines(self, rows: Iterable[Row]) -> Iterator[str]:
        for row in rows:
            yield to_json(row)


class Dmon:
    """The columns of `nvidia-smi dmon -o DT -s pucm`, with `-` for what Serried does not measure.

    With several nodes, a comment says to which one the lines below it belong.
    """

    def __init__(self) -> None:
        self._since_header = 0
        self._node: object = None

    def header(self) -> str:
        names = "".join(name.rjust(width) for name, _, width in _DMON)
        units = "".join(unit.rjust(width) for _, unit, width in _DMON)
        return f"#Date       Time     {names}\n#YYYYMMDD   HH:MM:SS {units}"

    def lines(self, rows: Iterable[Row]) -> Iterator[str]:
        for row in rows:
            if row.get("node") != self._node:
                self._node = row.get("node")
                yield f"# node {row.get('node')}, {' '.join(str(row.get('host')).split())}"
            elif self._since_header >= _HEADER_EVERY:
                self._since_header = 0
                yield self.header()
            self._since_header += 1
            yield _dmon_line(row)


def _dmon_line(row: Row) -> str:
    values = {
        "gpu": row.get("gpu"),
        "pwr": row.get("power"),
        "gtemp": row.get("temperature"),
        "sm": row.get("busy"),
        "pclk": row.get("clock"),
        "fb": row["memory"] / MIB if "memory" in row else None,
    }
    cells = "".join(_whole(values.get(name)).rjust(width) for name, _, width in _DMON)
    at = str(row.get("time") or "")
    return f" {at[:10].replace('-', '') or '-':<11} {at[11:19] or '-':<8}{cells}"


def _whole(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.0f}"
    return "-" if value is None else str(value)


def to_json(row: Row) -> str:
    """JSON has no NaN: such a number is a text."""
    return json.dumps({name: _finite(value) for name, value in row.items()})


def _finite(value: Any) -> Any:
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _cell(value: Any) -> Any:
    if isinstance(value, list):
        return " ".join(map(str, value))
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return int(value)
    return "" if value is None else value


def _csv_line(cells: Sequence[Any]) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(cells)
    return line.getvalue()
