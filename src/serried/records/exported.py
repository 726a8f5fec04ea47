"""What a run logged and what its nodes measured, as rows: complete, or as they come."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from serried.fs.files import json_object
from serried.metrics import tables
from serried.metrics.tables import RANKS, NewRows, Row, moment
from serried.protocol import logged_metrics
from serried.protocol.json_lines import LineBuffer
from serried.protocol.layout import TaskDirectory
from serried.records import logs
from serried.records.evidence import attempt_numbers
from serried.records.logs import Tail

STEPS = "steps"
"""What a row is about, beside those of `serried.metrics.tables`: a logged step of one rank."""
_KEYS = ("time", "attempt", "rank", "step")


class MeasuredRows:
    """The rows of one kind. Only steps have a rank of their own: by default the first that logged any."""

    def __init__(self, place: TaskDirectory, what: str, *, node: int | None = None, rank: int | None = None) -> None:
        self.what = what
        self._place, self._node, self._rank = place, node, rank
        self._new_rows = NewRows(place, what, node)
        self._new_steps = NewEntries(place, self.rank_of_steps) if what == STEPS else None

    @property
    def rank_of_steps(self) -> int:
        known = logs.ranks_with_metrics(self._place) if self._rank is None else []
        return self._rank if self._rank is not None else next(iter(known), 0)

    def rows(self) -> Iterator[Row]:
        """All. Steps that a later attempt repeats replace those of earlier ones."""
        if self.what != STEPS:
            yield from filter(self._is_chosen, tables.rows(self._place, self.what, self._node))
            return
        rank = self.rank_of_steps  # once: it lists folders
        for entry in logged_metrics.metrics(self._place, rank):
            yield _step(entry, entry["attempt"], rank)

    def new_rows(self) -> Iterator[Row]:
        """Those since the last call, at first all. Steps that a later attempt repeats come again."""
        if self._new_steps is None:
            return filter(self._is_chosen, self._new_rows.look())
        new, rank = self._new_steps.look(), self._new_steps.rank
        return (_step(entry, attempt, rank) for _, attempt, entry in new if isinstance(entry.get("step"), int))

    def columns(self, rows: Iterable[Row]) -> list[str]:
        """The columns that all rows have, and those that only `rows` have."""
        known = list(_KEYS) if self.what == STEPS else tables.columns(self.what)
        further = {name: None for row in rows for name in row if name not in known}
        return [*known, *further]

    def _is_chosen(self, row: Row) -> bool:
        return self.what != RANKS or self._rank in (None, row["rank"])


class NewEntries:
    """The entries that the files of metrics of a rank have got since the last look, each with its file and attempt."""

    def __init__(self, place: TaskDirectory, rank: int) -> None:
        self.rank = rank
        self._place = place
        self._tails: dict[Path, tuple[int, Tail, LineBuffer]] = {}

    def look(self) -> Iterator[tuple[Path, int, dict[str, Any]]]:
        for number in attempt_numbers(self._place):
            for path in self._place.attempt(number).path.glob(f"node-*/metrics-{self.rank}.jsonl"):
                if path.is_file():  # a pipe, say, would never end
                    self._tails.setdefault(path, (number, Tail(path), LineBuffer()))
        for path, (attempt, tail, lines) in self._tails.items():
            while added := tail.read():
                yield from ((path, attempt, json_object(line) or {}) for line in lines.lines(added))


def _step(entry: Mapping[str, Any], attempt: int, rank: int) -> Row:
    values = {name: value for name, value in entry.items() if name not in ("t", "step", "attempt")}
    named = {f"metrics.{name}" if name in _KEYS else name: value for name, value in values.items()}
    return {"time": moment(entry.get("t")), "attempt": attempt, "rank": rank, "step": entry["step"], **named}
