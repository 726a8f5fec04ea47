"""The list of runs, or of the tasks of an array. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from serried.ui.console import Cell, state_style
from serried.ui.text import fit, pad, printable, width
from serried.ui.watch.drawing import Canvas, Line, Span, columns_of, cut, footer, line, plain, whole

KEYS = (("enter", "open"), ("/", "filter"), ("S", "stop"), ("t", "theme"), ("?", "help"), ("q", "quit"))
_BACK = (("esc", "back"),)
_TYPING_KEYS = (("enter", "keep the filter"), ("esc", "drop it"))
_HEADS = ("ID", "NAME", "STATE", "SIZE", "TIME")
_WIDEST_ID = 14
_NO_NOTE = Cell("")


@dataclass(frozen=True)
class RunRow:
    id: str
    name: str
    state: str
    size: str = ""
    time: str = ""
    note: Cell = _NO_NOTE
    project: str = ""

    def matches(self, word: str) -> bool:
        return all(
            part in f"{self.id} {self.name} {self.state} {self.project}".lower() for part in word.lower().split()
        )


@dataclass(frozen=True)
class ListPage:
    title: str
    rows: tuple[RunRow, ...]
    selected: str = ""
    """The id of the selected row."""
    word: str = ""
    """Only rows with these words are shown."""
    is_typing: bool = False
    notice: str = ""
    """What a user must know, such as a scheduler that does not answer."""
    is_read: bool = True
    """False until the runs were read for the first time."""
    is_inner: bool = False
    """Whether `esc` leads back to another list."""

    @property
    def shown(self) -> list[RunRow]:
        return [row for row in self.rows if row.matches(self.word)]


def moved(page: ListPage, by: int) -> ListPage:
    """With the row selected that is `by` rows below."""
    ids = [row.id for row in page.shown]
    if not ids:
        return page
    at = ids.index(page.selected) + by if page.selected in ids else 0
    return replace(page, selected=ids[min(max(at, 0), len(ids) - 1)])


def filtered(page: ListPage, word: str) -> ListPage:
    return _with_selection(replace(page, word=word), 0)


def refreshed(page: ListPage, rows: tuple[RunRow, ...]) -> ListPage:
    """With the same run selected wherever it is now; if it is not shown any more, the row that took its place."""
    at = next((at for at, row in enumerate(page.shown) if row.id == page.selected), 0)
    return _with_selection(replace(page, rows=rows), at)


def _with_selection(page: ListPage, otherwise: int) -> ListPage:
    ids = [row.id for row in page.shown]
    return page if page.selected in ids or not ids else replace(page, selected=ids[min(otherwise, len(ids) - 1)])


def draw(page: ListPage, canvas: Canvas) -> list[Line]:
    """As many lines as the terminal has rows."""
    shown = page.shown
    count = f"{len(shown)} of {len(page.rows)}" if page.word else str(len(page.rows))
    head = line(Span(page.title, "head"), Span(f"  {count}", "quiet"), *_filter(page, canvas))
    notice = [line(Span(f"! {page.notice}", "warning"))] if page.notice else []
    widths = _widths(shown, canvas.columns)
    body = max(canvas.rows - 3 - len(notice), 1)
    at = next((place for place, row in enumerate(shown) if row.id == page.selected), 0)
    first = min(max(at - body // 2, 0), max(len(shown) - body, 0))
    rows = [_row(row, widths, canvas, is_selected=row.id == page.selected) for row in shown[first : first + body]]
    heads = line(Span(" " + "  ".join(map(pad, (*_HEADS, "NOTE"), (*widths, 4))), "head"))
    keys = _TYPING_KEYS if page.is_typing else (*_BACK, *KEYS) if page.is_inner else KEYS
    return whole([head, *notice, heads, *(rows or [_empty(page)])], footer(keys, canvas), canvas)


def _filter(page: ListPage, canvas: Canvas) -> tuple[Span, ...]:
    if not (page.word or page.is_typing):
        return ()
    cursor = Span("_" if canvas.ascii else "▏", "busy") if page.is_typing else Span("")
    return (Span("  /"), Span(page.word, "head"), cursor)


def _widths(rows: Sequence[RunRow], columns: int) -> list[int]:
    """Of all columns but the note."""
    cells = zip(_HEADS, *map(_cells, rows), strict=True)
    id_, name, state, size, time = (max(map(width, texts)) for texts in cells)
    return [min(id_, _WIDEST_ID), min(name, max(columns // 4, 8)), state, size, time]


def _cells(row: RunRow) -> tuple[str, ...]:
    return tuple(map(printable, (row.id, row.name, row.state, row.size, row.time)))


def _row(row: RunRow, widths: Sequence[int], canvas: Canvas, *, is_selected: bool) -> Line:
    *before, state, size, time = (pad(fit(text, room), room) for text, room in zip(_cells(row), widths, strict=True))
    begin = (">" if is_selected else " ") + "  ".join(before) + "  "
    cells = line(begin, Span(state, state_style(row.state)), f"  {size}  {time}  ")
    note = row.note.fitted(max(canvas.columns - columns_of(cells), 0))
    cells += line(Span(note, row.note.style or ""))
    return (Span(plain(cut(cells, canvas.columns)), "selected"),) if is_selected else cells


def _empty(page: ListPage) -> Line:
    if not page.is_read:
        return line(Span(" reading the records and asking the scheduler", "quiet"))
    if page.word:
        return line(Span(f" no run matches `{page.word}`; esc drops the filter", "quiet"))
    return line(Span(" no runs yet: serried submit -- python train.py", "quiet"))
