"""The terminal of `serried watch`, of Textual's widgets: it shows pages, passes keys on, asks before it stops a run."""

from __future__ import annotations

import asyncio
import os
import signal
import statistics
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar

from rich.segment import Segment
from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.color import Color
from textual.containers import Horizontal, Vertical
from textual.coordinate import Coordinate
from textual.events import Key, Paste, Resize
from textual.filter import LineFilter
from textual.screen import ModalScreen
from textual.widgets import ContentSwitcher, DataTable, Footer, Input, Label, Log, ProgressBar, Sparkline, Static

from serried.base.errors import SerriedError
from serried.records import index
from serried.records.index import Selection
from serried.schema import names
from serried.views.console import Cell
from serried.views.text import fit, printable, width
from serried.views.watch import pages
from serried.views.watch.pages import Meter, PageTable, RunPage, RunRow
from serried.views.watch.reader import Pages, Reader, Shown

_STYLES = {
    "good": "green",
    "bad": "bold red",
    "warning": "yellow",
    "busy": "cyan",
    "waiting": "yellow",
    "quiet": "dim",
    "head": "bold",
}
DARK, LIGHT = "textual-dark", "textual-light"
NOTICE_SECONDS = 8.0
CONFIRM_AFTER_SECONDS = 0.5
"""A confirmation that comes sooner was pasted, or typed before the question could be read."""
_WIDE = 110
_ON_LIST, _ON_RUN = {"filter"}, {"log", "metric", "table", "only_log"}


def rich(cells: Iterable[Cell]) -> Text:
    """Text whose words are never read as markup, with everything that could move a cursor spelled out."""
    return Text.assemble(*((printable(cell.text), _STYLES.get(cell.style or "", "")) for cell in cells))


def _lines(lines: Iterable[Iterable[Cell]]) -> Text:
    return Text("\n").join(map(rich, lines))


class Ascii(LineFilter):
    """For terminals that have no other characters."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:  # noqa: ARG002
        return [Segment(pages.in_ascii(text), style, control) for text, style, control in segments]


class Grid(DataTable[Text]):
    """A table that changes only where its values do, so that neither selection nor place is lost."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j", "cursor_down", show=False),
        Binding("k", "cursor_up", show=False),
        Binding("home", "scroll_top", show=False),
        Binding("end", "scroll_bottom", show=False),
    ]

    shown = PageTable((), ())
    _widths: Sequence[int] = ()
    wanted = ""
    """The key of the row to select once it is there."""

    @property
    def selected(self) -> str:
        """The key of the row under the cursor."""
        keys = self.shown.keys
        return keys[self.cursor_row] if 0 <= self.cursor_row < len(keys) else ""

    def show(self, table: PageTable) -> None:
        before, at, selected = self.shown, self.cursor_row, self.wanted or self.selected
        widths = [
            max(width(head), *(width(row[at].text) for row in table.rows)) if table.rows else width(head)
            for at, head in enumerate(table.heads)
        ]
        is_same = (table.heads, table.keys, len(table.rows)) == (before.heads, before.keys, len(before.rows))
        if is_same and all(new <= old for new, old in zip(widths, self._widths)):
            for row, (old, new) in enumerate(zip(before.rows, table.rows)):
                for column, (was, cell) in enumerate(zip(old, new)):
                    if cell != was:
                        self.update_cell_at(Coordinate(row, column), self._cell(column, cell))
        else:
            self.clear(columns=True)
            self._widths = widths
            for column, (head, columns) in enumerate(zip(table.heads, widths)):
                text = self._cell(column, Cell(head, "head"))
                self.add_column(text, width=columns + len(text) - len(head))
            for cells in table.rows:
                self.add_row(*(self._cell(column, cell) for column, cell in enumerate(cells)))
            if selected in table.keys:
                at, self.wanted = table.keys.index(selected), ""
            self.move_cursor(row=max(min(at, len(table.rows) - 1), 0), animate=False)
        self.shown = table

    def _cell(self, column: int, cell: Cell) -> Text:
        """Without a cursor it is a table of figures."""
        text = rich([cell])
        if not self.show_cursor and column:
            text = Text.assemble(" ", text)
            text.justify = "right"
        text.no_wrap = True
        return text


class MeterLine(Horizontal):
    def __init__(self, label: str) -> None:
        self.bar, self.words = ProgressBar(total=1.0, show_eta=False), Static()
        super().__init__(Label(f" {label}  "), self.bar, self.words)

    def show(self, meter: Meter | None) -> None:
        self.display = meter is not None
        if meter is not None:
            self.bar.display = meter.share is not None
            self.bar.update(progress=meter.share or 0.0)
            self.bar.set_class(meter.is_late, "late")
            self.words.update(rich(meter.texts))


class RunView(Vertical):
    def __init__(self) -> None:
        super().__init__(id="run")
        self.head, self.facts = Static(id="head"), Static(id="facts")
        self.time, self.step = MeterLine("time"), MeterLine("step")
        self.measured, self.left, self.right = Horizontal(id="measured"), Vertical(id="left"), Vertical(id="right")
        self.grid = Grid(show_cursor=False, cell_padding=0)
        self.left_title, self.right_title, self.extent = (Static(classes=it) for it in ("title", "title", "quiet"))
        self.curve = Sparkline(summary_function=statistics.mean)
        self.ranks, self.log_title, self.log_lines = Static(id="ranks"), Static(classes="title"), Log(id="output")
        self.table_choice = self.metric_choice = 0
        self.is_log_only = False
        self._output: tuple[str, tuple[str, ...]] = ("", ())

    def compose(self) -> ComposeResult:
        yield self.head
        yield self.time
        yield self.step
        yield self.facts
        with self.measured:
            with self.left:
                yield self.left_title
                yield self.grid
            with self.right:
                yield self.right_title
                yield self.curve
                yield self.extent
        yield self.ranks
        yield self.log_title
        yield self.log_lines

    def show(self, page: RunPage) -> None:
        self.head.update(_lines(page.head))
        meters = {meter.label: meter for meter in page.meters}
        self.time.show(meters.get("time"))
        self.step.show(meters.get("step"))
        facts = [[(Cell(head, "head"),), *((Cell(f"  {text}"),) for text in texts)] for head, texts in page.facts]
        self.facts.display = bool(facts)
        self.facts.update(_lines(line for lines in facts for line in ((Cell(""),), *lines)))
        is_wide = self.app.size.width >= _WIDE
        table, curve = page.table(self.table_choice, 20 if is_wide else 6), page.curve(self.metric_choice)
        self.measured.display = (table is not None or curve is not None) and not self.is_log_only
        summary = page.rank_summary(self.table_choice)
        self.ranks.display = bool(summary) and not self.is_log_only
        self.ranks.update(rich([Cell(summary)]))
        self.left.display, self.right.display = table is not None, curve is not None
        if table is not None:
            self.left_title.update(rich([Cell(table[0])]))
            self.grid.show(table[1])
        if curve is not None:
            self.right_title.update(rich([Cell(curve.title)]))
            self.curve.data = curve.values
            self.extent.update(rich([Cell(curve.range, "quiet")]))
        rows = len(table[1].rows) + 2 if table is not None else 0
        self.measured.styles.height = max(rows, 7 if curve is not None else 0)
        has_output = not page.facts
        self.log_title.display = self.log_lines.display = has_output
        self.log_title.update(rich([Cell(page.log_title)]))
        output, shown = (page.log_title, page.log_lines), self._output
        follows = not self.is_log_only or self.log_lines.is_vertical_scroll_end or output[0] != shown[0]
        if output != shown and follows:
            self._output = output
            self.log_lines.clear()
            self.log_lines.write_lines(map(printable, page.log_lines))
        if not self.is_log_only:  # else the user scrolls
            self.log_lines.scroll_end(animate=False)


class Dialog(ModalScreen[bool]):
    """A text in a frame. If it asks, `y` agrees; every other key closes it."""

    def __init__(self, title: str, text: str, *, asks: bool) -> None:
        super().__init__()
        self._box = Vertical(Static(Text(text)), id="dialog")
        self._box.border_title = title
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
    Static, Label { width: 1fr; }
    Label { width: auto; }
    ContentSwitcher, RunView { height: 1fr; }
    Grid { background: $background; scrollbar-size-horizontal: 0; height: 1fr; }
    Grid:nocolor > .datatable--cursor { text-style: reverse; }
    Grid > .datatable--header { background: $background; }
    #filter { height: 1; border: none; padding: 0; }
    #head { max-height: 6; }
    .title, #ranks { height: 1; text-style: bold; }
    .quiet { height: 1; }
    MeterLine { height: 1; }
    MeterLine ProgressBar { width: auto; padding-right: 2; }
    MeterLine PercentageStatus { width: 4; }
    MeterLine Bar { width: 20; }
    .late Bar > .bar--bar { color: $warning; }
    #measured { max-height: 45%; }
    #left { width: 46; min-width: 57%; }
    #right { padding-left: 2; width: 1fr; }
    Sparkline { height: 1fr; }
    #output { height: 1fr; scrollbar-size-horizontal: 0; background: $background; }
    Dialog { align: center middle; background: $background 60%; }
    #dialog { border: round gray; width: auto; max-width: 100%; height: auto; max-height: 100%; padding: 1 2; }
    #dialog Static { width: auto; max-width: 100%; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+c", "quit", priority=True, show=False),
        Binding("ctrl+z", "suspend_process", priority=True, show=False),
        Binding("up", "move('up')", show=False, tooltip="select a run, or scroll", key_display="up down enter"),
        Binding("down", "move('down')", show=False),
        Binding("escape", "leave", "back", key_display="esc", tooltip="back; drop the filter"),
        Binding("slash", "filter", "filter", key_display="/", tooltip="filter: words of id, name, state or project"),
        Binding("left", "log(-1)", show=False, priority=True),
        Binding("right", "log(1)", "rank", key_display="← →", priority=True, tooltip="output of another rank"),
        Binding("m", "metric", "metric", tooltip="next metric in the curve"),
        Binding("h", "table", "ranks", tooltip="GPUs, or ranks by their next quantity"),
        Binding("l", "only_log", "log", tooltip="only the output, and back"),
        Binding("S", "stop", "stop", key_display="S", tooltip="stop the run, as `serried stop`; asks first"),
        Binding("t", "theme", "theme", tooltip="light or dark"),
        Binding("question_mark", "keys", "help", key_display="?", tooltip="all keys"),
        Binding("q", "quit", "quit", tooltip="quit; runs continue"),
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
        self.reader = Reader(lambda: self.call_later(self.show_again), self.on_crash)
        self._opened = [selection] if selection else []
        self._lists = [("", "")] if selection else []
        """The filter and the selected row of the lists that lead to what is open."""
        self._log_choice: int | None = None
        self._stop_run, self._ascii = stop, [Ascii()] if ascii_only else []
        self.switcher, self.run_view = ContentSwitcher(initial="list"), RunView()
        self.list_title, self.empty, self.grid = Static(classes="title"), Static(), Grid(cursor_type="row")
        self.filter = Input(id="filter", compact=True, placeholder="words of id, name, state or project")

    def get_line_filters(self) -> Sequence[LineFilter]:
        return [*super().get_line_filters(), *self._ascii]

    def compose(self) -> ComposeResult:
        with self.switcher:
            with Vertical(id="list"):
                yield self.list_title
                yield self.filter
                yield self.empty
                yield self.grid
            yield self.run_view
        yield Footer(compact=True)

    def on_mount(self) -> None:
        self.filter.display = False
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) != signal.SIG_IGN:
                asyncio.get_running_loop().add_signal_handler(number, self.on_signal, number)

    def on_ready(self) -> None:
        self.grid.focus()
        self.look_at()
        self.reader.start()

    def on_unmount(self) -> None:
        self.reader.stop()

    def on_signal(self, number: int) -> None:
        self.ended_by = number
        self.exit()

    def on_crash(self, error: Exception) -> None:
        """In a reading thread."""
        self.crash = error
        self.call_later(self.exit)

    def on_resize(self, _: Resize) -> None:
        self.call_later(self.show_again)

    @property
    def page(self) -> RunPage | None:
        """Of the run that is open, once it was read."""
        read = self.reader.pages
        return read.page if self._opened and read.of == str(self._opened[-1]) else None

    @property
    def rows(self) -> list[RunRow]:
        read = self.reader.pages
        rows = (read.tasks or ()) if self._opened else read.rows
        return [row for row in rows if row.matches(self.filter.value)]

    def look_at(self) -> None:
        self.reader.show(Shown(self._opened[-1] if self._opened else None, self._log_choice))
        self.show_again()

    def show_again(self) -> None:
        read = self.reader.pages
        is_list = not self._opened or (
            self.page is None and read.of == str(self._opened[-1]) and read.tasks is not None
        )
        if is_list:
            self._show_list(read)
        elif self.page is not None:
            self.run_view.show(self.page)
        else:
            run = str(self._opened[-1])
            why = f"the record of {run} was deleted" if read.is_read else f"asking the scheduler about {run}"
            why = read.notice or (why if read.of == run else f"reading the files of {run}")
            self.run_view.show(RunPage(run, "", "", facts=((why, ()),)))
        current = "list" if is_list else "run"
        if self.switcher.current != current:
            self.switcher.current = current
            output = self.run_view.log_lines if self.run_view.is_log_only else self.run_view.grid
            (self.grid if is_list else output).focus()
        self.refresh_bindings()

    def _show_list(self, read: Pages) -> None:
        rows = self.rows
        known = len(read.tasks or ()) if self._opened else len(read.rows)
        title = f"tasks of {self._opened[-1]}" if self._opened else "runs"
        count = f"{len(rows)} of {known}  /{self.filter.value}" if self.filter.value else str(known)
        notice = Cell(f"  ! {read.notice}" if read.notice else "", "warning")
        self.list_title.update(rich([Cell(f"{title}  "), Cell(count, "quiet"), notice]))
        self.grid.show(pages.run_table(rows, self.size.width - 1))
        self.empty.display = not rows
        if not read.is_read:
            self.empty.update("reading the records and asking the scheduler")
        elif self.filter.value:
            self.empty.update(rich([Cell(f"no run matches `{self.filter.value}`; esc drops the filter")]))
        else:
            self.empty.update(f"no runs yet: {index.first_step()}")

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002
        if isinstance(self.screen, ModalScreen):
            return action == "quit"
        is_list = self.switcher.current == "list"
        if action == "leave":
            return bool(self._opened or self.filter.display or self.filter.value)
        is_measured = not is_list and self.page is not None and not self.page.facts
        return (is_list or action not in _ON_LIST) and (is_measured or action not in _ON_RUN)

    def action_move(self, way: str) -> None:
        """While a filter is typed."""
        (self.grid.action_cursor_up if way == "up" else self.grid.action_cursor_down)()

    def action_leave(self) -> None:
        if self.switcher.current == "list" and (self.filter.display or self.filter.value):
            self.filter.display, self.filter.value = False, ""
            self.grid.focus()
            self.show_again()
        elif self._opened:
            self._opened.pop()
            self._log_choice = None
            self.filter.value, self.grid.wanted = self._lists.pop()
            self.look_at()

    def action_filter(self) -> None:
        self.filter.display = True
        self.filter.focus()

    def on_input_changed(self) -> None:
        self.show_again()

    def on_input_submitted(self) -> None:
        self.grid.focus()
        self.filter.display = False
        self.refresh_bindings()

    def on_data_table_row_selected(self) -> None:
        if self.switcher.current != "list" or not self.grid.selected:
            return
        try:
            self._opened.append(index.find(self.grid.selected))
        except SerriedError as error:
            self.tell(error.message)
            return
        self._lists.append((self.filter.value, self.grid.selected))
        self.filter.value, self.filter.display = "", False
        self.grid.show(PageTable((), ()))
        self._log_choice, self.run_view.table_choice, self.run_view.metric_choice = None, 0, 0
        self.look_at()

    def action_log(self, by: int) -> None:
        if self.page is not None:
            self._log_choice = min(max(self.page.log + by, 0), max(len(self.page.logs) - 1, 0))
            self.look_at()

    def action_metric(self) -> None:
        self.run_view.metric_choice += 1
        self.show_again()

    def action_table(self) -> None:
        self.run_view.table_choice += 1
        self.show_again()

    def action_only_log(self) -> None:
        view = self.run_view
        view.is_log_only = not view.is_log_only
        self.show_again()
        (view.log_lines if view.is_log_only else view.grid).focus()
        self.call_after_refresh(view.log_lines.scroll_end, animate=False)

    def action_theme(self) -> None:
        self.theme = LIGHT if self.theme == DARK else DARK

    def action_keys(self) -> None:
        keys = [binding for binding in self.BINDINGS if isinstance(binding, Binding) and binding.tooltip]
        lines = [f"{binding.key_display or binding.key:<14}{binding.tooltip}" for binding in keys]
        self.push_screen(Dialog("keys", "\n".join([*lines, "", "any key closes this"]), asks=False))

    def action_stop(self) -> None:
        """Ask whether to stop the run that is open or selected."""
        row = next((row for row in self.rows if row.id == self.grid.selected), None)
        shown: RunPage | RunRow | None = row if self.switcher.current == "list" else self.page
        if shown is None:
            return
        run, state = shown.id, shown.state
        if state in names.ENDED:
            self.tell(f"{run} has ended: {state}")
            return

        def stop() -> None:
            message = self._stop_run(run)
            self.call_later(self.tell, message)

        def decide(is_agreed: bool | None) -> None:
            if is_agreed:
                self.tell(f"stopping {run}")
                threading.Thread(target=stop, daemon=True).start()

        question = f"stop {run} ({printable(fit(shown.name, 40))}, {state})?"
        self.push_screen(Dialog("serried stop", f"{question}\n\ny stops it; any other key does not", asks=True), decide)

    def tell(self, message: str) -> None:
        self.notify(printable(message), timeout=NOTICE_SECONDS, markup=False)
