"""The metric of a program that does not use `serried.train`: in a line that it prints, or in a JSON file.

    stdout:REGEX       the first group of the last match in the output of rank 0; without a group, the whole match
    file:PATH          the value of the metric's name, in a JSON file or in the last line of a file of JSON lines
    file:PATH:KEY      the value of another key; dots lead into tables

A relative PATH is below the folder of results (`{results}`).
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from pathlib import Path
from typing import Any, Iterable, List, Optional

STDOUT, FILE = "stdout", "file"
EXAMPLE = "stdout:val_acc=([0-9.]+)"
_BLOCK = 1 << 20


def check(source: str) -> None:
    """Raises ValueError, with a message that begins with a verb, for a text of another form."""
    kind, colon, rest = source.partition(":")
    if kind not in (STDOUT, FILE) or not colon or not rest:
        raise ValueError("must be `stdout:REGEX` or `file:PATH:KEY`")
    if kind == FILE:
        if not rest.partition(":")[0]:
            raise ValueError("names no file")
        return
    try:
        re.compile(rest)
    except re.error as error:
        raise ValueError(f"is not a regular expression: {error}") from None


def last_value(source: str, name: str, logs: Iterable[Path], results: Path) -> Optional[float]:
    """The metric `name` as reported last; None if it was not.

    `logs` are those of rank 0 in all attempts, the newest first.
    """
    kind, _, rest = source.partition(":")
    if kind == FILE:
        path, _, key = rest.partition(":")
        return _in_file(results / path, key or name)
    pattern = re.compile(rest.encode(), re.MULTILINE)
    return next((value for log in logs for value in [_last_match(log, pattern)] if value is not None), None)


def values(source: str, name: str, logs: Iterable[Path], results: Path) -> List[float]:
    """All reported values in their order; a file has only the present one. `logs`: the oldest first."""
    if source.startswith(f"{FILE}:"):
        value = last_value(source, name, (), results)
        return [] if value is None else [value]
    pattern = re.compile(source.partition(":")[2].encode(), re.MULTILINE)
    found: List[float] = []
    for log in logs:
        with contextlib.suppress(OSError):
            found += _numbers(pattern, log.read_bytes())
    return found


def _last_match(log: Path, pattern: "re.Pattern[bytes]") -> Optional[float]:
    """Reads from the end: a log may be huge."""
    try:
        with log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            length = _BLOCK
            while True:
                file.seek(max(size - length, 0))
                found = _numbers(pattern, file.read(length))
                if found or length >= size:
                    return found[-1] if found else None
                length *= 8
    except OSError:
        return None


def _numbers(pattern: "re.Pattern[bytes]", text: bytes) -> List[float]:
    found = (match[1] if pattern.groups else match[0] for match in pattern.finditer(text))
    return [value for value in map(number, found) if value is not None]


def number(value: Any) -> Optional[float]:
    if isinstance(value, bool):
        return None
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def _in_file(path: Path, key: str) -> Optional[float]:
    try:
        text = path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None
    for part in (text, *reversed(text.splitlines())):
        value = number(_at(_parsed(part), key))
        if value is not None:
            return value
    return None


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _at(document: Any, key: str) -> Any:
    """A name with dots counts as it is before it leads into tables."""
    if not isinstance(document, dict):
        return None
    if key in document:
        return document[key]
    first, dot, rest = key.partition(".")
    return _at(document.get(first), rest) if dot else None
