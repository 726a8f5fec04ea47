"""What people see. Talk goes to stderr, data to stdout. The only place that knows rich."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TextIO

from serried.errors import SerriedError
from serried.ui.text import fit, pad, printable, width, wrapped

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
_NARROWEST = 8
_SPINNER = 3


def is_terminal(stream: TextIO | None = None) -> bool:
    """Whether a person looks at `stream` (stdout)."""
    return (stream or sys.stdout).isatty()


def has_colour(stream: TextIO | None = None) -> bool:
    """NO_COLOR and FORCE_COLOR decide (no-color.org); else whether it is a terminal that knows colours."""
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return is_terminal(stream) and os.environ.get("TERM") != "dumb"


def columns() -> int:
    """The terminal's width; `COLUMNS` overrides it."""
    return shutil.get_terminal_size((80, 24)).columns


def style(text: str, name: str | None, stream: TextIO | None = None) -> str:
    """`text` in one of the few styles, where `stream` shows colours."""
    if not name or not text or not has_colour(stream):
        return text
    return f"\x1b[{_STYLES[name]}m{text}\x1b[0m"


def out(text: str = "") -> None:
    """A line of data."""
    print(_encodable(text, sys.stdout))


def out_json(value: Any) -> None:
    """The one JSON value of a reading verb."""
    print(json.dumps(value, indent=1))


def say(text: str = "") -> None:
    """A line of talk."""
    print(_encodable(text, sys.stderr), file=sys.stderr)


def behind(label: str, text: str, stream: TextIO | None = None, *, look: str | None = None) -> list[str]:
    """`text` behind a label in the style `look`; on a terminal what has no room goes on below, as far to the right."""
    text = printable(text)
    indent = width(label)
    lines = wrapped(text, max(columns() - indent, 20)) if is_terminal(stream) else [text]
    return [f"{' ' * indent if at else style(label, look, stream)}{line}" for at, line in enumerate(lines)]


def say_behind(label: str, text: str, look: str) -> None:
    """Talk behind a label."""
    for line in behind(label, text, sys.stderr, look=look):
        say(line)


def note(text: str) -> None:
    say_behind("note: ", text, "hint")


def warning(text: str, *, hint: str | None = None) -> None:
    """Something is not as the user may think, and the command goes on."""
    say_behind("warning: ", text, "warning")
    if hint:
        _hint(hint)


def print_error(error: SerriedError) -> None:
    """`error: …`, the quoted words of others, a blank line, `hint: …`."""
    say_behind("error: ", error.message, "error")
    for line in (error.details or "").splitlines():
        say(f"  | {printable(line)}")
    if error.hint:
        say()
        _hint(error.hint)


def _hint(text: str) -> None:
    first, *others = text.splitlines()
    say_behind("hint: ", first, "hint")
    for line in others:
        say_behind("      ", line, "hint")


def next_steps(steps: Sequence[tuple[str, str]]) -> None:
    """The commands that one would type next, each with what it does."""
    widest = max((width(command) for command, _ in steps), default=0)
    for command, purpose in steps:
        say(f"  {style(pad(command, widest), 'good', sys.stderr)}   {style(purpose, 'quiet', sys.stderr)}")


@dataclass(frozen=True)
class Cell:
    text: str
    style: str | None = None


def table(
    heads: Sequence[str], rows: Iterable[Sequence[str | Cell]], *, shrink: int | None = None, whole: bool = False
) -> list[str]:
    """Aligned lines, the head first. On a terminal column `shrink` and then the last one give way to its width.

    What has no room then is cut off, or with `whole` goes on in the line below.
    """
    cells = [[cell if isinstance(cell, Cell) else Cell(cell) for cell in row] for row in rows]
    cells = [[Cell(printable(cell.text), cell.style) for cell in row] for row in cells]
    widths = [max([width(head), *(width(row[at].text) for row in cells)]) for at, head in enumerate(heads)]
    if is_terminal():
        _give_way(widths, shrink, columns())
    head = [Cell(text, "head") for text in heads]
    lines = [line for row in cells for line in (_broken(row, widths) if whole else [row])]
    return [_line(row, widths) for row in [head, *lines]]


def _broken(row: Sequence[Cell], widths: Sequence[int]) -> list[list[Cell]]:
    """One row as the rows that it takes."""
    columns_ = [
        [piece for line in wrapped(cell.text, room) for piece in _pieces(line, room)]
        for cell, room in zip(row, widths, strict=True)
    ]
    return [
        [Cell(text, cell.style) for text, cell in zip(texts, row, strict=True)]
        for texts in itertools.zip_longest(*columns_, fillvalue="")
    ]


def _pieces(line: str, room: int) -> list[str]:
    """A word that is longer than its column, an address say, in pieces."""
    return [line[at : at + room] for at in range(0, len(line), room)] if width(line) > room > 0 else [line]


def _give_way(widths: list[int], shrink: int | None, room: int) -> None:
    """Narrow column `shrink` until the last one keeps a third of the line, then the last one."""
    gaps = 2 * (len(widths) - 1)
    wanted_last = min(widths[-1], room // 3)
    if shrink is not None:
        over = sum(widths[:-1]) + wanted_last + gaps - room
        widths[shrink] -= min(max(over, 0), max(widths[shrink] - _NARROWEST, 0))
    widths[-1] = max(min(widths[-1], room - sum(widths[:-1]) - gaps), 0)


def _line(row: Sequence[Cell], widths: Sequence[int]) -> str:
    parts: list[str] = []
    for at, (cell, columns_) in enumerate(zip(row, widths, strict=True)):
        text = fit(cell.text, columns_)
        filling = "" if at == len(row) - 1 else " " * (columns_ - width(text))
        parts.append(style(text, cell.style) + filling)
    return "  ".join(parts).rstrip()


class StatusLine(Protocol):
    def update(self, text: str) -> None:
        """Show `text` instead of what was shown."""


class _Silent:
    def update(self, text: str) -> None:
        """Nobody looks."""


class _Spinner:
    def __init__(self, status: Any) -> None:
        self._status = status

    def update(self, text: str) -> None:
        from rich.text import Text

        self._status.update(Text(_beside_the_spinner(text)))


@contextlib.contextmanager
def status_line(text: str) -> Iterator[StatusLine]:
    """One line that moves while something is awaited; nothing where stderr is no terminal."""
    if not is_terminal(sys.stderr) or os.environ.get("SERRIED_NO_PROGRESS"):
        yield _Silent()
        return
    from rich.console import Console
    from rich.text import Text

    with Console(stderr=True).status(Text(_beside_the_spinner(text))) as status:
        yield _Spinner(status)


def _beside_the_spinner(text: str) -> str:
    """As much of it as one line has room for: of a line that wraps, the terminal keeps what should have gone."""
    return fit(printable(text), columns() - _SPINNER)


class MovingLine:
    """The last, unfinished line of data on a terminal: written over until it is whole. Elsewhere it is not shown."""

    def __init__(self) -> None:
        self._shown = False

    def show(self, text: str) -> None:
        if is_terminal():
            sys.stdout.write("\r\x1b[2K" + _encodable(fit(printable(text), columns() - 1), sys.stdout))
            sys.stdout.flush()
            self._shown = True

    def clear(self) -> None:
        if self._shown:
            sys.stdout.write("\r\x1b[2K")
            sys.stdout.flush()
            self._shown = False


def can_ask() -> bool:
    """Whether a question would reach a person."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def confirm(question: str) -> bool:
    """Ask on the terminal; only `y` or `yes` is yes."""
    sys.stderr.write(f"{printable(question)} [y/N] ")
    sys.stderr.flush()
    answer = sys.stdin.readline()
    if not answer:
        say()
    return answer.strip().lower() in ("y", "yes")


def _encodable(text: str, stream: TextIO) -> str:
    """`text` as far as the stream's encoding goes: an ASCII terminal must not turn a name into a traceback."""
    encoding = stream.encoding or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)
