"""What a run logged and what its nodes measured, as rows: complete, or as they come."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from serried.fs.files import json_object
from serried.metrics import tables
from serried.metrics.tables import RANKS, NewRows, Row, moment
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
        self._new = NewRows(place, what, node) if what != STEPS else NewSteps(place, self.rank_of_steps)

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
        for entry in logs.metrics(self._place, rank):
            yield _step(entry, entry["attempt"], rank)

    def new_rows(self) -> Iterator[Row]:
        """Those since the last call, at first all. Steps that a later attempt repeats come again."""
        return filter(self._is_chosen, self._new.look())

    def columns(self, rows: Iterable[Row]) -> list[str]:
        """The columns that all rows have, and those that only `rows` have."""
        known = list(_KEYS) if self.what == STEPS else tables.columns(self.what)
        further = {name: None for row in rows for name in row if name not in known}
        return [*known, *further]

    def _is_chosen(self, row: Row) -> bool:
        return self.what != RANKS or self._rank in (None, row["rank"])


class NewSteps:
    """The entries that files of metrics have got since the last look."""

    def __init__(self, place: TaskDirectory, rank: int) -> None:
        self._place, self._rank = place, rank
        self._tails: dict[Path, tuple[int, Tail, LineBuffer]] = {}

    def look(self) -> Iterator[Row]:
        for number in attempt_numbers(self._place):
            for path in self._place.attempt(number).path.glob(f"node-*/metrics-{self._rank}.jsonl"):
                self._tails.setdefault(path, (number, Tail(path), LineBuffer()))
        for attempt, tail, lines in self._tails.values():
            yield from self._read(attempt, tail, lines)

    def _read(self, attempt: int, tail: Tail, lines: LineBuffer) -> Iterator[Row]:
        while added := tail.read():
            for line in lines.lines(added):
                entry = json_object(line) or {}
                if isinstance(entry.get("step"), int):
                    yield _step(entry, attempt, self._rank)


def _step(entry: Mapping[str, Any], attempt: int, rank: int) -> Row:
    values = {name: value for name, value in entry.items() if name not in ("t", "step", "attempt")}
    named = {f"metrics.{name}" if name in _KEYS else name: value for name, value in values.items()}
    return {"time": moment(entry.get("t")), "attempt": attempt, "rank": rank, "step": entry["step"], **named}
