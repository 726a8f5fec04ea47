"""Bars, curves and cells as text with styles. Pure, and fit for any terminal: a page is a list of lines.

A style is a word: the names of `serried.ui.console`, and `selected`. The text alone says all, without colour.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from serried.ui.text import fit, printable, width

Point = tuple[float, float]

_BLOCKS, _BLOCKS_ASCII = "▁▂▃▄▅▆▇█", ".:-=+*#@"
_MISSING, _MISSING_ASCII = "·", "?"
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""Bits of a braille character by row and column."""
_BRAILLE = 0x2800
_LABEL = 8
_KEPT_KEYS = 2


class Span(NamedTuple):
    text: str
    style: str = ""


Line = tuple[Span, ...]


class Canvas(NamedTuple):
    """The size of the terminal, and the characters that it has."""

    columns: int = 80
    rows: int = 24
    ascii: bool = False


def line(*parts: str | Span) -> Line:
    """A line of strings and spans. Whatever could move a cursor is spelled out."""
    spans = [part if isinstance(part, Span) else Span(part) for part in parts]
    return tuple(one if _is_plain(one.text) else Span(printable(one.text), one.style) for one in spans if one.text)


def _is_plain(text: str) -> bool:
    """As most texts are, of which a page has hundreds."""
    return text.isascii() and text.isprintable()


def plain(drawn: Line) -> str:
    return "".join(span.text for span in drawn)


def columns_of(drawn: Line) -> int:
    return sum(width(span.text) for span in drawn)


def cut(drawn: Line, columns: int) -> Line:
    """The line, exactly `columns` wide."""
    spans: list[Span] = []
    left = columns
    for span in drawn:
        text = fit(span.text, left)
        spans.append(Span(text, span.style))
        left -= width(text)
        if text != span.text:
            break
    return (*spans, Span(" " * left)) if left > 0 else tuple(spans)


def whole(lines: Sequence[Line], last: Line, canvas: Canvas) -> list[Line]:
    """The page: lines cut to the terminal's size, and one more at its bottom."""
    shown = [*lines[: max(canvas.rows - 1, 0)], *[()] * (canvas.rows - 1 - len(lines)), last]
    fitted = [cut(drawn, canvas.columns) for drawn in shown]
    return [_in_ascii(drawn) for drawn in fitted] if canvas.ascii else fitted


def _in_ascii(drawn: Line) -> Line:
    """For terminals that have no other characters."""
    return tuple(
        Span("".join(one if one.isascii() else "?" * width(one) for one in text), style) for text, style in drawn
    )


def beside(left: Sequence[Line], right: Sequence[Line], columns: int, gap: int = 2) -> list[Line]:
    """Two blocks in one, the left one `columns` wide."""
    rows = max(len(left), len(right))
    blocks = [[*block, *[()] * (rows - len(block))] for block in (left, right)]
    return [(*cut(one, columns), Span(" " * gap), *other) for one, other in zip(*blocks, strict=True)]


def titled(title: str, columns: int, canvas: Canvas, *, note: str = "") -> Line:
    """The heading of a block, with a rule to the right edge."""
    rule = "-" if canvas.ascii else "─"
    words = fit(f"{printable(title)} ", columns)
    behind = f" {note}" if note and width(words) + width(note) + 1 < columns else ""
    return (
        Span(words, "head"),
        Span(rule * max(columns - width(words) - width(behind), 0), "quiet"),
        Span(behind, "quiet"),
    )


def bar(share: float | None, columns: int, canvas: Canvas, style: str = "busy") -> Line:
    """A bar of `columns`, filled to `share` of 1."""
    full, empty = ("#", ".") if canvas.ascii else ("█", "░")
    filled = 0 if share is None or math.isnan(share) else round(min(max(share, 0.0), 1.0) * columns)
    return (Span(full * filled, style), Span(empty * (columns - filled), "quiet"))


def block(share: float | None, canvas: Canvas) -> str:
    """One character for a share of 1."""
    if share is None or math.isnan(share):
        return _MISSING_ASCII if canvas.ascii else _MISSING
    blocks = _BLOCKS_ASCII if canvas.ascii else _BLOCKS
    return blocks[min(int(min(max(share, 0.0), 1.0) * len(blocks)), len(blocks) - 1)]


def sparkline(values: Sequence[float | None], columns: int, canvas: Canvas, top: float = 100.0) -> str:
    """The last `columns` values, each as one character."""
    shown = values[-columns:] if columns > 0 else ()
    return "".join(block(None if value is None else value / top, canvas) for value in shown).rjust(columns)


def footer(keys: Sequence[tuple[str, str]], canvas: Canvas) -> Line:
    """The keys at the bottom of a page, and what they do. On few columns the last two stay: help, and the end."""
    while len(keys) > _KEPT_KEYS and sum(len(key) + len(what) + 3 for key, what in keys) - 2 > canvas.columns:
        keys = (*keys[: -_KEPT_KEYS - 1], *keys[-_KEPT_KEYS:])
    return tuple(span for key, what in keys for span in (Span(key, "hint"), Span(f" {what}  ")))


def curve(points: Iterable[Point], columns: int, rows: int, canvas: Canvas) -> list[Line]:
    """A plot of the points in `rows` lines, with its largest and smallest value, and its first and last x below.

    In braille a character has 2x4 dots; in ASCII it is one. Values that are not finite are left out.
    """
    finite = sorted(point for point in points if all(map(math.isfinite, point)))
    plot_columns, plot_rows = columns - _LABEL - 1, rows - 1
    if len(finite) < 2 or plot_columns < 4 or plot_rows < 1:
        return []
    across, down = (1, 1) if canvas.ascii else (2, 4)
    heights = _binned(finite, plot_columns * across)
    low, high = min(heights.values()), max(heights.values())
    cells = _cells(heights, plot_rows, across, down)
    labels = {0: _label(high), plot_rows - 1: _label(low)} if high > low else {plot_rows // 2: _label(high)}
    edge = "|" if canvas.ascii else "│"
    drawn = [
        (
            Span(f"{labels.get(row, ''):>{_LABEL}}{edge}", "quiet"),
            Span("".join(_mark(cells.get((row, at), 0), canvas) for at in range(plot_columns)), "busy"),
        )
        for row in range(plot_rows)
    ]
    first, last = number(finite[0][0]), number(finite[-1][0])
    below = " " * (_LABEL + 1) + first + last.rjust(max(plot_columns - len(first), len(last) + 1))
    return [*drawn, (Span(below, "quiet"),)]


def _label(value: float) -> str:
    text = number(value)
    return text if len(text) <= _LABEL else f"{value:.0e}"


def _binned(points: Sequence[Point], bins: int) -> dict[int, float]:
    """The mean value in each of `bins` equal parts of the x axis; between two of them, the line that joins them."""
    first, last = points[0][0], points[-1][0]
    parts: dict[int, list[float]] = {}
    for x, y in points:
        parts.setdefault(int(_share(x, first, last) * (bins - 1)), []).append(y)
    means = {place: sum(value / len(values) for value in values) for place, values in parts.items()}
    for left, right in itertools.pairwise(sorted(means)):
        shares = {place: (place - left) / (right - left) for place in range(left + 1, right)}
        means |= {place: means[left] * (1 - share) + means[right] * share for place, share in shares.items()}
    return means


def _cells(heights: dict[int, float], rows: int, across: int, down: int) -> dict[tuple[int, int], int]:
    """The dots of each character by row and column, with steps between neighbours filled."""
    low, high = min(heights.values()), max(heights.values())
    most = rows * down - 1
    cells: dict[tuple[int, int], int] = {}
    before: int | None = None
    for x in sorted(heights):
        y = most - round(_share(heights[x], low, high) * most) if high > low else most // 2
        step = 0 if before is None or before == y else (1 if before < y else -1)
        for dot in range(before + step, y, step) if step and before is not None else ():
            _put(cells, x, dot, across, down)
        _put(cells, x, y, across, down)
        before = y
    return cells


def _share(value: float, low: float, high: float) -> float:
    """Where `value` lies between two numbers, from 0 to 1. Halves, because the difference of two floats may be none."""
    width = high / 2 - low / 2
    return min(max((value / 2 - low / 2) / width, 0.0), 1.0) if width > 0 else 0.0


def _put(cells: dict[tuple[int, int], int], x: int, y: int, across: int, down: int) -> None:
    cell = y // down, x // across
    cells[cell] = cells.get(cell, 0) | _DOTS[y % down][x % across]


def _mark(dots: int, canvas: Canvas) -> str:
    if canvas.ascii:
        return "*" if dots else " "
    return chr(_BRAILLE + dots) if dots else " "


def number(value: float | None) -> str:
    """A number in at most seven characters: `0.312`, `12.5`, `120k`, `1.2e-05`."""
    if value is None:
        return "-"
    if not math.isfinite(value):
        return str(value)
    if value and not 1e-3 <= abs(value) < 1e9:
        return f"{value:.1e}"
    for size, letter in ((1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e6 if letter == 'M' else 1e3):.4g}{letter}"
    return f"{value:.4g}" if value != int(value) else str(int(value))
