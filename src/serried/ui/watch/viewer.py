"""What the user looks at, and what each key does. Without a terminal, so that tests need none."""

from __future__ import annotations

import dataclasses
import time
from enum import Enum, auto
from typing import NamedTuple

from serried.errors import SerriedError
from serried.protocol import names
from serried.records import index
from serried.records.index import Selection
from serried.ui.text import fit
from serried.ui.watch import list_page, run_page, waiting_page
from serried.ui.watch.drawing import Canvas, Line, footer, line, whole
from serried.ui.watch.list_page import ListPage
from serried.ui.watch.reader import Pages, Reader, Shown
from serried.ui.watch.run_page import Choice, RunPage
from serried.ui.watch.waiting_page import WaitingPage

NOTICE_SECONDS = 8.0
_FEW_KEYS = (("esc", "back"), ("q", "quit"))
_FAR = 1 << 30
_STEPS = {"up": -1, "k": -1, "down": 1, "j": 1, "pageup": -10, "pagedown": 10, "home": -_FAR, "end": _FAR}
HELP = (
    ("up down", "select a run, or scroll the GPUs"),
    ("enter", "open the selected run"),
    ("esc", "back; drop the filter"),
    ("/", "filter the list: words of id, name, state or project"),
    ("left right", "output of the previous or the next rank"),
    ("m", "next metric in the curve"),
    ("h", "next quantity in the map of ranks"),
    ("l", "only the output, and back"),
    ("t", "light or dark"),
    ("S", "stop the run, as `serried stop`; asks first"),
    ("q", "quit; runs continue"),
)

Page = ListPage | RunPage | WaitingPage | None


class KeyAction(Enum):
    """What only the terminal can do."""

    QUIT = auto()
    HELP = auto()
    THEME = auto()


class StopRequest(NamedTuple):
    run: str
    name: str
    state: str

    @property
    def question(self) -> str:
        return f"stop {self.run} ({fit(self.name, 40)}, {self.state})?"


class Viewer:
    def __init__(self, reader: Reader, selection: Selection | None = None) -> None:
        self._reader = reader
        self._opened: list[Selection] = []
        self._choice = Choice()
        self._log: int | None = None
        self._runs, self._tasks = ListPage("runs", (), is_read=False), ListPage("tasks", ())
        self._notice = ("", 0.0)
        if selection:
            self._open(selection)
        else:
            self._show()

    # Reading and drawing.

    def on_read(self) -> None:
        """Take what the reader has read."""
        pages = self._reader.pages
        if pages.is_read:
            self._runs = list_page.refreshed(self._runs, pages.rows)
        if pages.tasks is not None and self._is_read(pages):
            self._tasks = list_page.refreshed(self._tasks, pages.tasks)

    def _is_read(self, pages: Pages) -> bool:
        """Whether it has read what is open now."""
        return pages.of == (str(self._opened[-1]) if self._opened else "")

    def notify(self, text: str) -> None:
        """Show a message for some seconds."""
        self._notice = text, time.monotonic() + NOTICE_SECONDS

    def lines(self, canvas: Canvas) -> list[Line]:
        """The screen as text: as many lines as it has rows."""
        page = self._page()
        if isinstance(page, ListPage):
            return list_page.draw(page, canvas)
        if isinstance(page, WaitingPage):
            return waiting_page.draw(page, canvas)
        if isinstance(page, RunPage):
            return run_page.draw(page, self._choice, canvas)
        return whole([line(self._why_empty())], footer(_FEW_KEYS, canvas), canvas)

    def _why_empty(self) -> str:
        pages, run = self._reader.pages, self._opened[-1]
        if pages.notice or not self._is_read(pages):
            return pages.notice or f"reading the files of {run}"
        return f"the record of {run} was deleted" if pages.is_read else f"asking the scheduler about {run}"

    def _page(self) -> Page:
        pages = self._reader.pages
        text, until = self._notice
        now = text if time.monotonic() < until else ""
        if self._opened and not self._is_read(pages):
            return None
        if self._opened and pages.tasks is None:
            return dataclasses.replace(pages.page, notice=now) if pages.page is not None and now else pages.page
        return dataclasses.replace(self._list, notice=now or pages.notice, is_read=pages.is_read)

    @property
    def _list(self) -> ListPage:
        return self._tasks if self._opened else self._runs

    @_list.setter
    def _list(self, page: ListPage) -> None:
        if self._opened:
            self._tasks = page
        else:
            self._runs = page

    def _show(self) -> None:
        self._reader.show(Shown(self._opened[-1] if self._opened else None, self._log))

    # Keys.

    def paste(self, text: str) -> None:
        """Pasted text is no command. It may be a filter."""
        if self._list.is_typing and text:
            self._type(text.splitlines()[0])

    def press(self, key: str, character: str = "") -> KeyAction | StopRequest | None:
        """Do what the key means, or return what the terminal has to do. `character` is what it would print."""
        page = self._page()
        if not isinstance(page, ListPage):
            return self._on_run_key(key, page)
        if not page.is_typing:
            return self._on_list_key(key, page)
        self._on_filter_key(key, character)
        return None

    def _on_filter_key(self, key: str, character: str) -> None:
        if key in ("enter", "escape"):
            word = self._list.word if key == "enter" else ""
            self._list = dataclasses.replace(self._list, is_typing=False, word=word)
        elif key == "backspace":
            self._list = list_page.filtered(self._list, self._list.word[:-1])
        elif key in ("up", "down"):
            self._list = list_page.moved(self._list, _STEPS[key])
        else:
            self._type(character)

    def _type(self, text: str) -> None:
        added = "".join(character for character in text if character.isprintable())
        self._list = list_page.filtered(self._list, self._list.word + added)

    def _on_list_key(self, key: str, page: ListPage) -> KeyAction | StopRequest | None:
        selected = next((row for row in page.shown if row.id == page.selected), None)
        if key in _STEPS:
            self._list = list_page.moved(self._list, _STEPS[key])
        elif key == "slash":
            self._list = dataclasses.replace(self._list, is_typing=True)
        elif key == "enter" and selected:
            self._find(selected.id)
        elif key == "escape" and page.word:
            self._list = dataclasses.replace(self._list, word="")
        elif key == "escape":
            self._back()
        elif key == "S" and selected:
            return self._stop(StopRequest(selected.id, selected.name, selected.state))
        return _request(key)

    def _on_run_key(self, key: str, page: Page) -> KeyAction | StopRequest | None:
        choice = self._choice
        if key == "escape":
            self._back()
        elif key in ("m", "h", "l"):
            self._choice = choice.changed(key)
        elif isinstance(page, RunPage) and key in ("left", "right"):
            self._log = min(max(page.log + (1 if key == "right" else -1), 0), max(len(page.logs) - 1, 0))
            self._show()
        elif isinstance(page, RunPage) and key in _STEPS:
            most = len(page.live.gpus) - 1 if page.live else 0
            first = min(max(choice.first_gpu + _STEPS[key], 0), max(most, 0))
            self._choice = dataclasses.replace(choice, first_gpu=first)
        elif key == "S" and isinstance(page, RunPage | WaitingPage):
            return self._stop(StopRequest(page.id, page.name, page.state))
        return _request(key)

    def _stop(self, request: StopRequest) -> StopRequest | None:
        if request.state not in names.ENDED:
            return request
        self.notify(f"{request.run} has ended: {request.state}")
        return None

    def _find(self, run: str) -> None:
        try:
            self._open(index.find(run))
        except SerriedError as error:
            self.notify(error.message)

    def _open(self, selection: Selection) -> None:
        self._opened.append(selection)
        self._choice, self._log = Choice(), None
        if selection.task is None:
            self._tasks = ListPage(f"tasks of {selection}", (), is_inner=True)
        self._show()

    def _back(self) -> None:
        if self._opened:
            self._opened.pop()
            self._show()


def _request(key: str) -> KeyAction | None:
    return {"q": KeyAction.QUIT, "question_mark": KeyAction.HELP, "t": KeyAction.THEME}.get(key)
