"""The list of runs, or of the tasks of an array: the running ones first. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from serried.protocol import names
from serried.records.verdict import SUBMITTING, UNCERTAIN
from serried.ui.text import fit, pad, width
from serried.ui.watch.drawing import Canvas, Line, Span, cut, footer, line, plain, whole

STYLES = {
    names.COMPLETED: "good",
    names.RUNNING: "busy",
    names.PENDING: "waiting",
    SUBMITTING: "waiting",
    names.CANCELLED: "quiet",
    names.PREEMPTED: "warning",
    names.UNKNOWN: "warning",
    UNCERTAIN: "warning",
}
"""Of states; every other state is a failure."""
KEYS = (("enter", "open"), ("/", "filter"), ("S", "stop"), ("t", "light"), ("?", "help"), ("q", "quit"))
_TYPING_KEYS = (("enter", "keep the filter"), ("esc", "drop it"))
_ORDER = {names.RUNNING: 0, names.PENDING: 1, SUBMITTING: 1, names.UNKNOWN: 2, UNCERTAIN: 2}
_LAST = 3
_ID, _TIME, _SIZE, _WIDEST_ID = 6, 6, 9, 14


@dataclass(frozen=True)
class RunRow:
    id: str
    name: str
    state: str
    size: str = ""
    time: str = ""
    note: str = ""
    project: str = ""
    at: float = 0.0
    """When it was created, or has ended: later ones come first."""

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

    @property
    def shown(self) -> list[RunRow]:
        return [row for row in self.rows if row.matches(self.word)]


def in_order(rows: Sequence[RunRow]) -> tuple[RunRow, ...]:
    """The running ones first, then those that wait, then the others, the latest first."""
    return tuple(sorted(rows, key=lambda row: (_ORDER.get(row.state, _LAST), -row.at, row.id)))


def moved(page: ListPage, by: int) -> str:
    """The id of the row that is `by` rows below the selected one."""
    ids = [row.id for row in page.shown]
    if not ids:
        return page.selected
    at = ids.index(page.selected) if page.selected in ids else (0 if by else -1)
    return ids[min(max(at + by, 0), len(ids) - 1)]


def kept(before: Sequence[RunRow], rows: Sequence[RunRow], selected: str) -> str:
    """The selection after a refresh: the same run wherever it is now; without it, the row that took its place."""
    ids = [row.id for row in rows]
    if selected in ids or not ids:
        return selected
    old = [row.id for row in before]
    at = old.index(selected) if selected in old else 0
    return ids[min(at, len(ids) - 1)]


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
    keys = footer(_TYPING_KEYS if page.is_typing else KEYS)
    return whole([head, *notice, _heads(widths), *(rows or [_empty(page)])], keys, canvas)


def _filter(page: ListPage, canvas: Canvas) -> tuple[Span, ...]:
    if not (page.word or page.is_typing):
        return ()
    cursor = Span("_" if canvas.ascii else "▏", "busy") if page.is_typing else Span("")
    return (Span("  /"), Span(page.word, "head"), cursor)


def _widths(rows: Sequence[RunRow], columns: int) -> tuple[int, int, int]:
    """Of ids, names and states."""
    ids = min(max([_ID, *(width(row.id) for row in rows)]), _WIDEST_ID)
    state = max([7, *(width(row.state) for row in rows)])
    longest = max([4, *(width(row.name) for row in rows)])
    return ids, min(longest, max(columns // 4, 8)), state


def _heads(widths: tuple[int, int, int]) -> Line:
    ids, name, state = widths
    words = f" {pad('ID', ids)}  {pad('NAME', name)}  {pad('STATE', state)}  {'SIZE':<{_SIZE}}{'TIME':>{_TIME}}  NOTE"
    return line(Span(words, "head"))


def _row(row: RunRow, widths: tuple[int, int, int], canvas: Canvas, *, is_selected: bool) -> Line:
    ids, name, state = widths
    marker = ">" if is_selected else " "
    cells = line(
        f"{marker}{_cell(row.id, ids)}  {_cell(row.name, name)}  ",
        Span(_cell(row.state, state), STYLES.get(row.state, "bad")),
        f"  {_cell(row.size, _SIZE)}{row.time:>{_TIME}}  ",
        Span(row.note, "quiet"),
    )
    cells = cut(cells, canvas.columns)
    return (Span(plain(cells), "selected"),) if is_selected else cells


def _cell(text: str, columns: int) -> str:
    shown = plain(line(text))
    return pad(fit(shown, columns), columns)


def _empty(page: ListPage) -> Line:
    if not page.is_read:
        return line(Span(" reading the records", "quiet"))
    if page.word:
        return line(Span(f" no run matches `{page.word}`; esc drops the filter", "quiet"))
    return line(Span(" no runs yet: serried submit -- python train.py", "quiet"))
