"""The map of ranks: one quantity of each rank as a cell, several ranks in a row. Pure."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence

from serried.ui.watch.drawing import Canvas, Line, Span, block, line, titled
from serried.ui.watch.live_view import LiveView, Quantity, RankView, known_quantities

_FEW_RANKS = 16
"""Up to here each rank has its value in figures."""
_CELL = 9


def draw(live: LiveView, chosen: int, canvas: Canvas) -> list[Line]:
    """Each rank as a cell, several of them in a row."""
    quantities = known_quantities(live.ranks)
    if not quantities or live.live.ranks < 2:
        return []
    quantity = quantities[chosen % len(quantities)]
    values = [value for rank in live.ranks if (value := quantity.value(rank)) is not None]
    median = statistics.median(values)
    lowest = min(live.ranks, key=lambda rank: _or(quantity.value(rank), max(values)))
    highest = max(live.ranks, key=lambda rank: _or(quantity.value(rank), min(values)))
    ends = {
        word: f"{word} {quantity.text(_or(quantity.value(rank), median))} at rank {rank.now.rank}"
        for word, rank in (("min", lowest), ("max", highest))
    }
    which = f"{len(live.ranks)} of {live.live.ranks}" if len(live.ranks) < live.live.ranks else str(live.live.ranks)
    name, middle = f"{which} ranks: {quantity.title}", f"median {quantity.text(median)}"
    note = ", ".join((middle, *ends.values()))
    if len(name) + len(note) + 2 >= canvas.columns:
        note = f"{middle}, {ends[quantity.worst]}"
    title = titled(name, canvas.columns, canvas, note=note)
    if len(live.ranks) <= _FEW_RANKS:
        return [title, *_figures(live.ranks, quantity, median, canvas)]
    return [title, *_cells(live.ranks, quantity, median, max(values), canvas)]


def _or(value: float | None, other: float) -> float:
    return other if value is None else value


def _figures(ranks: Sequence[RankView], quantity: Quantity, median: float, canvas: Canvas) -> list[Line]:
    per_row = max((canvas.columns - 1) // _CELL, 1)
    lines = []
    for start in range(0, len(ranks), per_row):
        spans: list[Span | str] = [" "]
        for rank in ranks[start : start + per_row]:
            value = quantity.value(rank)
            text = "?" if value is None else quantity.text(value)
            style = "quiet" if value is None else quantity.judge(value, median)
            spans += [Span(f"{rank.now.rank:>2} ", "quiet"), Span(f"{text:<{_CELL - 3}}", style)]
        lines.append(line(*spans))
    return lines


def _cells(ranks: Sequence[RankView], quantity: Quantity, median: float, most: float, canvas: Canvas) -> list[Line]:
    per_row = max((canvas.columns - 6) // 16 * 16, 16)
    top = quantity.top or most or 1.0
    lines = []
    for start in range(0, len(ranks), per_row):
        spans = [Span(f"{ranks[start].now.rank:>5} ", "quiet")]
        for rank in ranks[start : start + per_row]:
            value = quantity.value(rank)
            style = "quiet" if value is None else quantity.judge(value, median)
            spans.append(Span(block(None if value is None else value / top, canvas), style))
        runs = itertools.groupby(spans, key=lambda span: span.style)
        lines.append(line(*(Span("".join(span.text for span in its), style) for style, its in runs)))
    return lines
