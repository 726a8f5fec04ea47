"""Rows as text: CSV and lines of JSON."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from serried.records.tables import Row


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
