"""What people see: data on stdout, everything else on stderr."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
import re
import select
import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TextIO

from serried.base import SITE
from serried.base.errors import ConfigError, SerriedError
from serried.schema import SCHEMA, names
from serried.views.text import fit, pad, printable, width, wrapped

_STYLES = {
    "error": "1;31",
    "warning": "33",
    "hint": "36",
    "good": "32",
    "bad": "31",
    "busy": "36",
    "waiting": "33",
    "quiet": "2",
    "head": "1",
}
_STATE_STYLES = {
    names.COMPLETED: "good",
    names.RUNNING: "busy",
    names.PENDING: "waiting",
    "SUBMITTING": "waiting",
    names.CANCELLED: "quiet",
    names.PREEMPTED: "warning",
    names.UNKNOWN: "warning",
    "UNCERTAIN": "warning",
}
_NARROWEST = 8
_FEWEST_CUT = 6
"""Columns of a text that is cut before its end; with less room the end stands alone."""
_status_lines: list[MovingLine] = []
"""The status lines that are shown now."""


def is_terminal(stream: TextIO | None = None) -> bool:
    """Whether `stream` (stdout) is a terminal."""
    return (stream or sys.stdout).isatty()


def has_colour(stream: TextIO | None = None) -> bool:
    """NO_COLOR and FORCE_COLOR decide (no-color.org), then whether it is a terminal with colours."""
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return is_terminal(stream) and os.environ.get("TERM") != "dumb"


def columns() -> int:
    """The terminal's width; `COLUMNS` overrides it."""
    return shutil.get_terminal_size((80, 24)).columns


def state_style(state: str) -> str:
    """The style of a run's state. Each state without one is a failure."""
    return _STATE_STYLES.get(state, "bad")


def style(text: str, name: str | None, stream: TextIO | None = None) -> str:
    """`text` in one of the few styles, if `stream` shows colours."""
    if not name or not text or not has_colour(stream):
        return text
    return f"\x1b[{_STYLES[name]}m{text}\x1b[0m"


def out(text: str = "") -> None:
    _print(text, sys.stdout)


def out_json(**value: Any) -> None:
    _print(json.dumps({"schema": SCHEMA, **value}, indent=1), sys.stdout)


def say(text: str = "") -> None:
    """Print a line for people, after all data so far, which in a pipe would else come behind it; not with `-q`."""
    if not is_quiet():
        _tell(text)


def is_quiet() -> bool:
    """Whether only data, warnings and errors are printed."""
    return bool(os.environ.get("SERRIED_QUIET"))


def _tell(text: str = "") -> None:
    sys.stdout.flush()
    _print(text, sys.stderr)


def _print(text: str, stream: TextIO) -> None:
    shown = [(line, line.lines) for line in _status_lines]
    for line, _ in shown:
        line.clear()
    print(_encodable(text, stream), file=stream)
    for line, lines in shown:
        line.update(*lines)


def behind(label: str, text: str, stream: TextIO | None = None, *, look: str | None = None) -> list[str]:
    """`text` behind a label in the style `look`, wrapped on a terminal, with the further lines indented."""
    text = printable(re.sub(r"serried docs ([a-z][\w-]*)", rf"{SITE}/\1.html", text) if SITE else text)
    indent = width(label)
    lines = wrapped(text, max(columns() - indent, 20)) if is_terminal(stream) else [text]
    return [f"{' ' * indent if at else style(label, look, stream)}{line}" for at, line in enumerate(lines)]


def say_behind(label: str, text: str, look: str) -> None:
    """Print `text` behind a label on stderr; with `-q` only if it is a warning or an error."""
    if not is_quiet() or look in ("warning", "error"):
        for line in behind(label, text, sys.stderr, look=look):
            _tell(line)


def note(text: str) -> None:
    say_behind("note: ", text, "hint")


def warning(text: str, *, hint: str | None = None) -> None:
    """Print a problem that does not end the command."""
    say_behind("warning: ", text, "warning")
    if hint:
        _hint(hint)


def print_error(error: SerriedError) -> None:
    """Print `error: …`, the quoted output of other programs, a blank line, and `hint: …`; then others of its file."""
    say_behind("error: ", error.message, "error")
    for line in (error.details or "").splitlines():
        _tell(f"  | {printable(line)}")
    if error.hint:
        _tell()
        _hint(error.hint)
    for other in error.others if isinstance(error, ConfigError) else ():
        say()
        print_error(other)


def _hint(text: str) -> None:
    for at, line in enumerate(text.splitlines()):
        for row in behind(" " * 6 if at else "hint: ", line, sys.stderr, look="hint"):
            _tell(row)


def next_steps(steps: Sequence[tuple[str, str]]) -> None:
    """Print the commands that a user may type next, each with its purpose."""
    widest = max((width(command) for command, _ in steps), default=0)
    for command, purpose in steps:
        say(f"  {style(pad(command, widest), 'good', sys.stderr)}   {style(purpose, 'quiet', sys.stderr)}")


class Cell(NamedTuple):
    text: str
    style: str | None = None
    end: str = ""
    """Follows the text after a comma, and is kept when the text is cut."""
    shorter: tuple[str, ...] = ()
    """Other texts, each shorter, for too narrow a column."""

    @property
    def texts(self) -> list[str]:
        """Each with the end, from the longest to the shortest."""
        return [", ".join(filter(None, (text, self.end))) for text in (self.text, *self.shorter)]

    def fitted(self, columns_: int) -> str:
        """The longest text that fits with the end, else a part of the shortest one, else the end."""
        texts = self.texts
        fitting = next((text for text in texts if width(text) <= columns_), None)
        room = columns_ - width(f", {self.end}")
        if fitting is not None or not self.end:
            return fit(texts[-1] if fitting is None else fitting, columns_)
        if room < _FEWEST_CUT:
            return fit(self.end, columns_)
        return f"{fit((self.text, *self.shorter)[-1], room)}, {self.end}"


def table(
    heads: Sequence[str],
    rows: Iterable[Sequence[str | Cell]],
    *,
    shrink: int | None = None,
    whole: bool = False,
    spare: int | None = None,
) -> list[str]:
    """Aligned lines, the head first. On a terminal, column `shrink` and then the last column are narrowed to its width.

    Longer texts are cut off, or with `whole` continue in the line below. Column `spare` is left out of a terminal's
    table if the last column has no room for its shortest texts.
    """
    cells = [[cell if isinstance(cell, Cell) else Cell(cell) for cell in row] for row in rows]
    cells = [[_printable(cell) for cell in row] for row in cells]
    widths = [max([width(head), *(width(row[at].texts[0]) for row in cells)]) for at, head in enumerate(heads)]
    if is_terminal():
        last = max((width(row[-1].texts[-1]) for row in cells), default=0)
        if spare is not None and sum(widths[:-1]) + last + 2 * (len(widths) - 1) > columns():
            heads = [*heads[:spare], *heads[spare + 1 :]]
            del widths[spare]
            for row in cells:
                del row[spare]
            shrink = shrink if shrink is None or shrink < spare else shrink - 1
        least = max((width(row[-1].texts[-1]) for row in cells if row[-1].shorter), default=0)
        _give_way(widths, shrink, columns(), least)
    head = [Cell(text, "head") for text in heads]
    lines = [line for row in cells for line in (_broken(row, widths) if whole else [row])]
    return [_line(row, widths) for row in [head, *lines]]


def out_table(
    heads: Sequence[str], rows: Iterable[Sequence[str | Cell]], *, shrink: int | None = None, whole: bool = False
) -> None:
    for line in table(heads, rows, shrink=shrink, whole=whole):
        out(line)


def _printable(cell: Cell) -> Cell:
    if all(text.isascii() and text.isprintable() for text in (cell.text, cell.end, *cell.shorter)):
        return cell
    return Cell(printable(cell.text), cell.style, printable(cell.end), tuple(map(printable, cell.shorter)))


def _broken(row: Sequence[Cell], widths: Sequence[int]) -> list[list[Cell]]:
    """One row as several, so that no cell is wider than its column."""
    columns_ = [
        [piece for line in wrapped(cell.texts[0], room) for piece in _pieces(line, room)]
        for cell, room in zip(row, widths)
    ]
    return [
        [Cell(text, cell.style) for text, cell in zip(texts, row)]
        for texts in itertools.zip_longest(*columns_, fillvalue="")
    ]


def _pieces(line: str, room: int) -> list[str]:
    """A word that is longer than its column, for example an address, in pieces."""
    return [line[at : at + room] for at in range(0, len(line), room)] if width(line) > room > 0 else [line]


def _give_way(widths: list[int], shrink: int | None, room: int, least: int) -> None:
    """Narrow column `shrink` until the last one has `least` columns and a third of the line, then the last one."""
    gaps = 2 * (len(widths) - 1)
    wanted_last = max(min(widths[-1], room // 3), min(least, room // 2))
    if shrink is not None:
        over = sum(widths[:-1]) + wanted_last + gaps - room
        widths[shrink] -= min(max(over, 0), max(widths[shrink] - _NARROWEST, 0))
    widths[-1] = max(min(widths[-1], room - sum(widths[:-1]) - gaps), 0)


def _line(row: Sequence[Cell], widths: Sequence[int]) -> str:
    parts: list[str] = []
    for at, (cell, columns_) in enumerate(zip(row, widths)):
        text = cell.fitted(columns_)
        filling = "" if at == len(row) - 1 else " " * (columns_ - width(text))
        parts.append(style(text, cell.style) + filling)
    return "  ".join(parts).rstrip()


class MovingLine:
    """The last, unfinished lines of a terminal, written over until they are cleared. Elsewhere they are not shown."""

    def __init__(self, stream: TextIO) -> None:
        self.lines: tuple[str, ...] = ()
        self._stream = stream
        self.is_shown = is_terminal(stream) and os.environ.get("TERM") != "dumb"

    def update(self, *lines: str) -> None:
        """Show `lines` instead of those before, each cut to the terminal's width. Empty ones are left out."""
        lines = tuple(filter(None, lines))
        if self.is_shown and lines != self.lines:
            erased = "\r\x1b[2K" + "\x1b[A\x1b[2K" * (len(self.lines) - 1)
            cut = [_encodable(fit(printable(line), columns() - 1), self._stream) for line in lines]
            self._stream.write(erased + "\n".join(cut))
            self._stream.flush()
        self.lines = lines

    def clear(self) -> None:
        self.update()


@contextlib.contextmanager
def status_line(text: str) -> Iterator[MovingLine]:
    """A moving line on stderr while the command waits. Whole lines that are printed meanwhile appear above it."""
    is_shown = not (is_quiet() or os.environ.get("SERRIED_NO_PROGRESS"))
    line = MovingLine(sys.stderr if is_shown else io.StringIO())
    _status_lines.append(line)
    try:
        line.update(text)
        yield line
    finally:
        line.clear()
        _status_lines.remove(line)


def await_more(seconds: float) -> None:
    """Sleep before the next look at what grows. Raises BrokenPipeError if the reader of stdout has ended.

    Without that, `serried logs -f | grep -m1 ready` lives until there is more output.
    """
    poll = select.poll()
    with contextlib.suppress(ValueError):  # not a file, in tests
        poll.register(sys.stdout, 0)
        if any(event & select.POLLERR for _, event in poll.poll(0)):
            raise BrokenPipeError
    time.sleep(seconds)


def can_ask() -> bool:
    return bool(sys.stdin and sys.stdin.isatty() and sys.stderr and sys.stderr.isatty())  # cron may close them


def confirm(question: str) -> bool:
    """Ask on the terminal; only `y` or `yes` means yes."""
    sys.stderr.write(f"{printable(question)} [y/N] ")
    sys.stderr.flush()
    answer = sys.stdin.readline()
    if not answer:
        say()
    return answer.strip().lower() in ("y", "yes")


def _encodable(text: str, stream: TextIO) -> str:
    """`text` in the stream's encoding: a name must not become a traceback on an ASCII terminal."""
    encoding = stream.encoding or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)
