"""A page once, as text: for `--once`."""

from __future__ import annotations

from serried.records.index import Selection
from serried.ui.watch import list_page, run_page, waiting_page
from serried.ui.watch.drawing import Canvas, Line, line
from serried.ui.watch.list_page import ListPage
from serried.ui.watch.reader import Pages, Reader, Shown
from serried.ui.watch.run_page import Choice, RunPage


def lines(selection: Selection | None, canvas: Canvas) -> list[Line]:
    """The page without its keys and without empty lines at its end."""
    pages = Reader().read_once(Shown(selection))
    *drawn, _ = _draw(selection, pages, canvas)
    while drawn and not any(span.text.strip() for span in drawn[-1]):
        drawn.pop()
    return drawn


def _draw(selection: Selection | None, pages: Pages, canvas: Canvas) -> list[Line]:
    if selection is None or pages.tasks is not None:
        rows = pages.rows if pages.tasks is None else pages.tasks
        title = "runs" if selection is None else f"tasks of {selection}"
        return list_page.draw(ListPage(title, rows, notice=pages.notice), canvas._replace(rows=len(rows) + 5))
    if isinstance(pages.page, RunPage):
        return run_page.draw(pages.page, Choice(), canvas)
    if pages.page is not None:
        return waiting_page.draw(pages.page, canvas)
    return [line(pages.notice or f"the record of {selection} cannot be read"), ()]
