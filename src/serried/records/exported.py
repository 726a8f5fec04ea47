"""What a run logged and what its nodes measured, as rows: complete, or as they come."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from serried.records import tables
from serried.records.tables import RANKS, NewRows, Row, moment
from serried.schema import series
from serried.schema.layout import TaskDirectory
from serried.schema.series import LoggedStep

STEPS = "steps"
"""What a row is about, beside those of `serried.records.tables`: a logged step of one rank."""
_KEYS = ("time", "attempt", "rank", "step")


class MeasuredRows:
    """The rows of one kind. Only steps have a rank of their own: by default the first that logged any."""

    def __init__(self, place: TaskDirectory, what: str, *, node: int | None = None, rank: int | None = None) -> None:
        self.what = what
        self._place, self._node, self._rank = place, node, rank
        self._new_rows = NewRows(place, what, node)
        self._new_steps = series.Follower(place, self.rank_of_steps) if what == STEPS else None

    @property
    def rank_of_steps(self) -> int:
        known = series.ranks(self._place) if self._rank is None else []
        return self._rank if self._rank is not None else next(iter(known), 0)

    def rows(self) -> Iterator[Row]:
        """All. Steps that a later attempt repeats replace those of earlier ones."""
        if self.what != STEPS:
            yield from filter(self._is_chosen, tables.rows(self._place, self.what, self._node))
            return
        rank = self.rank_of_steps  # once: it lists folders
        for point in series.points(self._place, rank):
            yield _step(point, rank)

    def new_rows(self) -> Iterator[Row]:
        """Those since the last call, at first all. Steps that a later attempt repeats come again."""
        if self._new_steps is None:
            return filter(self._is_chosen, self._new_rows.look())
        new, rank = self._new_steps.look(), self._new_steps.rank
        return (
            _step(LoggedStep(attempt, entry.t, entry.step, entry.values), rank)
            for _, attempt, entry in new
            if entry.step is not None
        )

    def columns(self, rows: Iterable[Row]) -> list[str]:
        """The columns that all rows have, and those that only `rows` have."""
        known = list(_KEYS) if self.what == STEPS else tables.columns(self.what)
        further = {name: None for row in rows for name in row if name not in known}
        return [*known, *further]

    def _is_chosen(self, row: Row) -> bool:
        return self.what != RANKS or self._rank in (None, row["rank"])


def _step(point: LoggedStep, rank: int) -> Row:
    named = {f"metrics.{name}" if name in _KEYS else name: value for name, value in point.values.items()}
    return {"time": moment(point.t), "attempt": point.attempt, "rank": rank, "step": point.step, **named}
