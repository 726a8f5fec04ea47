"""Text made fit for a terminal: harmless, and cut to a width. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

_ELLIPSIS = "…"
_MOST_UNFINISHED = 4
"""The rest of a terminal with 24 lines is for whole lines."""

_HIDDEN = frozenset("\u200b\u200e\u200f\u2028\u2029\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\ufeff")
"""They reorder or break what a terminal shows."""

_UNSEEN = dict.fromkeys(map(ord, _HIDDEN))

_COLOUR = r"\x1b\[[0-9;:]*m"
_ESCAPE = (
    r"\x1b(?:"
    r"\[[0-?]*[ -/]*[@-~]"  # CSI: cursor, erase, modes
    r"|[\]PX^_][^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"  # OSC, DCS and the like: titles, clipboard, links
    r"|[ -/]*[0-~])?"
)
_CONTROL = r"[\x00-\x08\x0b-\x1f\x7f-\x9f]"


def printable(text: str) -> str:
    """`text` on one line, with everything that could move a cursor or hide a word spelled out."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        character
        if character == " " or (character.isprintable() and character not in _HIDDEN)
        else character.encode("unicode_escape", "surrogatepass").decode("ascii")
        for character in text
    )


def harmless(line: str) -> str:
    """A line of a program's output for a terminal: colours stay, every other escape sequence goes."""
    kept: list[str] = []
    position = 0
    for colour in re.finditer(_COLOUR, line):
        kept += [_strip(line[position : colour.start()]), colour.group()]
        position = colour.end()
    kept.append(_strip(line[position:]))
    return "".join(kept) + ("\x1b[0m" if len(kept) > 1 and kept[-2] not in ("\x1b[0m", "\x1b[m") else "")


def plain(line: str) -> str:
    """A line of a program's output without any escape sequence, as a terminal would leave it."""
    return _strip(overwritten(line)).translate(_UNSEEN)


def _strip(text: str) -> str:
    return re.sub(_CONTROL, "", re.sub(_ESCAPE, "", text))


def without_escapes(line: str) -> str:
    """What a terminal would show of a line of a program's output, on one line and without colours."""
    return printable(_strip(overwritten(line)).expandtabs())


def overwritten(line: str) -> str:
    """What a terminal would show of a line with carriage returns: progress bars write over themselves."""
    shown = ""
    for part in line.rstrip("\r").split("\r"):
        plain = "\x1b" not in part and "\x1b" not in shown
        shown = part + shown[len(part) :] if plain else part or shown
    return shown.rstrip() if "\r" in line.rstrip("\r") else shown


def unfinished_lines(texts: Iterable[tuple[str, str]]) -> list[str]:
    """The bottom of a terminal: lines of ranks that have no end yet, such as progress bars, behind their labels.

    Many become the first, and how many more there are.
    """
    plain = ((label, _strip(overwritten(text)).rstrip()) for label, text in texts)
    lines = [label + text for label, text in plain if text]
    if len(lines) <= _MOST_UNFINISHED:
        return lines
    return [lines[0], f"… and {len(lines) - 1} more ranks"]


def width(text: str) -> int:
    if text.isascii():
        return len(text)
    return sum(_cells(character) for character in text)


def _cells(character: str) -> int:
    import unicodedata

    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def fit(text: str, columns: int) -> str:
    """`text`, cut to `columns` with an ellipsis where it is wider."""
    if width(text) <= columns:
        return text
    kept, used = "", 0
    for character in text:
        used += _cells(character)
        if used > columns - 1:
            break
        kept += character
    return kept.rstrip() + _ELLIPSIS if columns > 0 else ""


def pad(text: str, columns: int) -> str:
    return text + " " * (columns - width(text))


def memory(megabytes: int) -> str:
    """`20 GiB`, `100 MiB`; 0 is all that a node has."""
    if not megabytes:
        return "all memory"
    return f"{megabytes} MiB" if megabytes % 1024 else f"{megabytes // 1024} GiB"


def wrapped(text: str, columns: int) -> list[str]:
    """`text` in lines of at most `columns`, broken between words; what is in backticks is one, to be copied."""
    lines = [""]
    for word in re.findall(r"\s*(?:`[^`]*`|\S)+", text):
        longer = lines[-1] + word
        if width(longer) <= columns or not lines[-1]:
            lines[-1] = longer
        else:
            lines.append(word.lstrip())
    return lines
