"""The terminal of `serried watch`, by Textual: it passes keys on, shows lines and asks before it stops a run."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from typing import ClassVar

from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.events import Key, Paste
from textual.screen import ModalScreen
from textual.widget import Widget
from textual.widgets import Static

from serried.records.index import Selection
from serried.ui.watch.drawing import Canvas, Line, Span, line
from serried.ui.watch.reader import Reader
from serried.ui.watch.viewer import HELP, NOTICE_SECONDS, KeyAction, StopRequest, Viewer

STYLES = {
    "good": "$text-success",
    "bad": "bold $text-error",
    "warning": "$text-warning",
    "busy": "$text-primary",
    "waiting": "$text-warning",
    "quiet": "$foreground 60%",
    "head": "bold",
    "hint": "bold $text-accent",
    "selected": "reverse",
}
DARK, LIGHT = "textual-dark", "textual-light"
CONFIRM_AFTER_SECONDS = 0.5
"""A confirmation that comes sooner was pasted, or typed before the question could be read."""


def content(lines: Sequence[Line]) -> Content:
    """Lines for Textual. Their texts are never read as markup."""
    spans: list[str | tuple[str, str]] = []
    for at, drawn in enumerate(lines):
        spans += ["\n"] if at else []
        spans += [(span.text, STYLES[span.style]) if span.style else span.text for span in drawn]
    return Content.assemble(*spans)


class Screenful(Widget):
    """The whole terminal as one text."""

    def __init__(self, draw: Callable[[Canvas], list[Line]]) -> None:
        super().__init__()
        self._draw = draw

    def render(self) -> Content:
        return content(self._draw(Canvas(self.size.width, self.size.height)))


class Dialog(ModalScreen[bool]):
    """A text in a frame. If it asks, `y` agrees; every other key closes it."""

    def __init__(self, title: str, lines: Sequence[Line], *, asks: bool, ascii_only: bool) -> None:
        super().__init__()
        self._box = Vertical(Static(content(lines)), id="dialog")
        self._box.border_title = title
        self._box.styles.border = ("ascii" if ascii_only else "round", "gray")
        self._asks, self._opened, self._is_answered = asks, time.monotonic(), False

    def compose(self) -> ComposeResult:
        yield self._box

    def on_key(self, event: Key) -> None:
        event.stop()
        is_read = not self._asks or time.monotonic() - self._opened >= CONFIRM_AFTER_SECONDS
        if is_read and not self._is_answered:
            self._is_answered = True
            self.dismiss(self._asks and event.key == "y")

    def on_paste(self, event: Paste) -> None:
        event.stop()


class WatchApp(App[None]):
    """Shows the list of runs, and the runs that the user opens."""

    ENABLE_COMMAND_PALETTE = False
    CSS = """
    Screen { background: $background; color: $foreground; }
    Screenful { width: 100%; height: 100%; }
    Dialog { align: center middle; background: $background 60%; }
    #dialog { width: auto; max-width: 100%; height: auto; max-height: 100%; padding: 1 2; background: $surface; }
    #dialog Static { width: auto; max-width: 100%; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+c", "quit", priority=True),
        Binding("ctrl+z", "suspend_process", priority=True),
    ]

    def __init__(
        self, selection: Selection | None, stop: Callable[[str], str], *, light: bool = False, ascii_only: bool = False
    ) -> None:
        """`stop` stops a run and returns what to tell the user; it may take minutes."""
        super().__init__(ansi_color=bool(os.environ.get("NO_COLOR")) or None)  # Textual alone leaves shades of grey
        self.theme = LIGHT if light else DARK
        self.crash: Exception | None = None
        """A bug in a reading thread."""
        self.ended_by: int | None = None
        """The signal that ended it."""
        self.reader = Reader(self.on_read, self.on_crash)
        self.viewer = Viewer(self.reader, selection)
        self._stop_run, self._ascii = stop, ascii_only

    def compose(self) -> ComposeResult:
        yield Screenful(lambda canvas: self.viewer.lines(canvas._replace(ascii=self._ascii)))

    def on_mount(self) -> None:
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) != signal.SIG_IGN:
                asyncio.get_running_loop().add_signal_handler(number, self.on_signal, number)
        self.reader.start()

    def on_unmount(self) -> None:
        self.reader.stop()

    def on_signal(self, number: int) -> None:
        self.ended_by = number
        self.exit()

    def on_read(self) -> None:
        """In a reading thread."""
        self.call_later(self.show_again)

    def on_crash(self, error: Exception) -> None:
        """In a reading thread."""
        self.crash = error
        self.call_later(self.exit)

    def show_again(self) -> None:
        """Draw what was read, or what a key has changed."""
        self.viewer.on_read()
        for screenful in self.screen_stack[0].query(Screenful):
            screenful.refresh()

    def on_paste(self, event: Paste) -> None:
        self.viewer.paste(event.text)
        self.show_again()

    def on_key(self, event: Key) -> None:
        request = self.viewer.press(event.key, (event.character or "") if event.is_printable else "")
        if isinstance(request, StopRequest):
            self.ask_to_stop(request)
        elif request is KeyAction.QUIT:
            self.exit()
        elif request is KeyAction.THEME:
            self.theme = LIGHT if self.theme == DARK else DARK
        elif request is KeyAction.HELP:
            keys = [line(Span(f"{keys:<12}", "hint"), what) for keys, what in HELP]
            self.push_screen(
                Dialog("keys", [*keys, (), line("any key closes this")], asks=False, ascii_only=self._ascii)
            )
        self.show_again()

    def ask_to_stop(self, request: StopRequest) -> None:
        def decide(is_agreed: bool | None) -> None:
            if is_agreed:
                self.tell(f"stopping {request.run}")
                threading.Thread(target=self.stop_in_thread, args=(request.run,), daemon=True).start()

        lines = [line(request.question), (), line("y stops it; any other key does not")]
        self.push_screen(Dialog("serried stop", lines, asks=True, ascii_only=self._ascii), decide)

    def stop_in_thread(self, run: str) -> None:
        message = self._stop_run(run)
        self.call_later(self.tell, message)

    def tell(self, message: str) -> None:
        self.viewer.notify(message)
        self.show_again()
        self.set_timer(NOTICE_SECONDS + 0.1, self.show_again)
