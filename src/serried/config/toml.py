"""TOML: files read with clean errors and the lines of their keys, and values written as text."""

from __future__ import annotations

import functools
import json
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from serried.base import NamedTuple
from serried.base.errors import ConfigError

Keys = tuple[str, ...]
"""The place of a value: ("experiments", "digits", "resources", "nodes")."""

_NAME = r"""(?:[A-Za-z0-9_-]+|"(?:[^"\\]|\\.)*"|'[^']*')"""
_DOTTED = rf"{_NAME}(?:\s*\.\s*{_NAME})*"
_HEADER = rf"\s*\[\[?\s*({_DOTTED})\s*\]"
_KEY = rf"\s*({_DOTTED})\s*="
_BEFORE_ERROR, _BEHIND_ERROR = 60, 14
"""Characters of a wrong line that its error quotes."""
_TOKEN = re.compile(r"""\"{3}|'{3}|"(?:[^"\\]|\\.)*"|'[^']*'|[\[\]{}#]""")


class Document(NamedTuple):
    path: str
    """As messages show it: relative if that is shorter."""
    text: str
    tables: dict[str, Any]
    above: Keys = ()
    """The place of `tables` in the file: ("tool", "serried") in pyproject.toml."""
    within: Keys = ()
    """The place that the file stands for: a profile in a file of its own is the table ("clusters", NAME)."""

    def inner(self, above: Keys, tables: dict[str, Any]) -> Document:
        return Document(self.path, self.text, tables, above)

    def outer(self, within: Keys) -> Document:
        tables = self.tables
        for name in reversed(within):
            tables = {name: tables}
        return Document(self.path, self.text, tables, self.above, within)

    def line(self, key: Keys) -> int | None:
        """The line (from 1) of a key or of the nearest table around the key, or None."""
        places = _places(self.text)
        key = self.above + key[len(self.within) :]
        while key and key not in places:
            key = key[:-1]
        return places.get(key)

    def error(
        self, message: str, key: Keys = (), hint: str | None = None, others: Sequence[ConfigError] = ()
    ) -> ConfigError:
        return ConfigError(message, path=self.path, line=self.line(key), hint=hint, others=others)


def read(path: Path, shown: str | None = None) -> Document:
    """Read a TOML file. Raises ConfigError if it is unreadable, not UTF-8 or not TOML."""
    shown = shown or str(path)
    try:
        data = path.read_bytes()
    except IsADirectoryError:
        raise ConfigError("is a directory, not a file", path=shown, hint="move it away") from None
    except OSError as error:
        raise ConfigError(f"cannot be read: {os.strerror(error.errno or 0).lower()}", path=shown) from None
    return parse(data, shown)


def parse(data: bytes, shown: str) -> Document:
    try:
        text = data.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError("is not UTF-8 text", path=shown, line=line, hint="save it as UTF-8") from None
    try:
        tables = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise _syntax_error(str(error), text, shown) from None
    return Document(shown, text, tables)


def _syntax_error(message: str, text: str, shown: str) -> ConfigError:
    """Tomllib's message, with the line of its `(at line 3, column 5)` in front."""
    match = re.search(r" \(at (?:line (\d+), column (\d+)|end of document)\)$", message)
    line = int(match[1]) if match and match[1] else len(text.splitlines()) or 1
    words = message[: match.start()] if match else message
    column = f" at column {match[2]}" if match and match[2] else ""
    reason = words[:1].lower() + words[1:]
    wrong = "".join(text.splitlines()[line - 1 : line])
    bare = re.fullmatch(r"\s*[\w.-]+\s*=\s*([A-Za-z0-9][^\"'#]*?)\s*(#.*)?", wrong)
    hint = f'text needs quotes: "{bare[1]}"' if bare else None
    at = int(match[2]) - 1 if match and match[2] else len(wrong)
    if len(re.findall(r"(?<!\\)\"", wrong)) % 2 and at == len(wrong):
        reason, column, hint = "a quote is never closed", "", 'text ends with its quote: key = "text"'
    # The place of the error and what is around it, in one row of a terminal.
    begin = max(at - _BEFORE_ERROR, 0)
    quoted_line = f"{wrong[begin : at + _BEHIND_ERROR]}\n{' ' * (at - begin)}^".replace("\t", " ")
    return ConfigError(f"is not TOML: {reason}{column}", path=shown, line=line, hint=hint, details=quoted_line)


@functools.lru_cache
def _places(text: str) -> dict[Keys, int]:
    """The line of every table and key. Tomllib keeps none, so this scans the text except strings of several lines."""
    places: dict[Keys, int] = {}
    table: Keys = ()
    depth, fence = 0, ""
    for number, line in enumerate(text.split("\n"), start=1):
        if not fence and not depth:
            if header := re.match(_HEADER, line):
                table = parts(header[1])
                for size in range(1, len(table) + 1):
                    places.setdefault(table[:size], number)
            elif found := re.match(_KEY, line):
                key = parts(found[1])
                for size in range(1, len(key) + 1):
                    places.setdefault(table + key[:size], number)
        depth, fence = _within(line, depth, fence)
    return places


def _within(line: str, depth: int, fence: str) -> tuple[int, str]:
    """The number of open brackets, and the open triple quote, after `line`."""
    position = 0
    while True:
        if fence:
            end = line.find(fence, position)
            if end < 0:
                return depth, fence
            position, fence = end + 3, ""
        token = _TOKEN.search(line, position)
        if token is None or token[0] == "#":
            return max(depth, 0), ""
        position = token.end()
        if token[0] in ('"""', "'''"):
            fence = token[0]
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(token[0], 0)


_BARE = r"[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*"


def parts(key: str) -> Keys:
    """`experiments."a b".resources` as a path."""
    if re.fullmatch(_BARE, key):  # most keys; a parse takes a millisecond
        return tuple(key.split("."))
    try:
        table: Any = tomllib.loads(f"{key} = 0")
    except tomllib.TOMLDecodeError:
        return ()
    names: list[str] = []
    while isinstance(table, dict):
        name, table = next(iter(table.items()))
        names.append(name)
    return tuple(names)


def quoted(text: str) -> str:
    """`text` as a TOML string. JSON differs in DEL alone."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def key(text: str) -> str:
    return text if re.fullmatch(r"[A-Za-z0-9_-]+", text) else quoted(text)


def dotted(place: Keys) -> str:
    return ".".join(map(key, place))


def value(it: Any) -> str:
    """Text, a number, a boolean, or a list of these as TOML."""
    if isinstance(it, bool):
        return str(it).lower()
    if isinstance(it, str) and "\n" in it:  # literally between `'''`, unless the text would end the quotes
        ends_quotes = "'''" in it or it.endswith("'") or re.search(r"[\x00-\x08\x0b-\x1f\x7f]", it)
        return quoted(it) if ends_quotes else f"'''\n{it}'''"
    if isinstance(it, str):  # as `'…'` if that avoids escapes
        has_escapes = re.search(r"[\"\\]", it) and "'" not in it and it.isprintable()
        return f"'{it}'" if has_escapes else quoted(it)
    if isinstance(it, (list, tuple)):
        items = [value(item) for item in it]
        wide = sum(map(len, items)) > 100 or any("\n" in item for item in items)
        return "[\n    " + ",\n    ".join(items) + ",\n]" if wide else f"[{', '.join(items)}]"
    return json.dumps(it)


def table(place: Keys, values: Mapping[str, Any]) -> str:
    """`[place]` and its keys, then the tables within."""
    own = {name: it for name, it in values.items() if not isinstance(it, Mapping)}
    inner = {name: it for name, it in values.items() if isinstance(it, Mapping)}
    head = [f"[{dotted(place)}]", *(f"{key(name)} = {value(it)}" for name, it in own.items())]
    return "\n".join([*([*head, ""] if own else []), *(table((*place, name), it) for name, it in inner.items())])
