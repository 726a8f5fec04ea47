"""The metric of a program that does not use `serried.train`: in a line that it prints, or in a JSON file.

    stdout:REGEX       the first group of the last match in the output of rank 0; without a group, the whole match
    file:PATH          the value of the metric's name, in a JSON file or in the last line of a file of JSON lines
    file:PATH:KEY      the value of another key; dots lead into tables

Groups may have names: `step` and `total` are the program's step and its last one, and each other name is that of a
metric. A metric without a group of its name has the first group without a name.

PATH is below the folder of results (`{results}`). A match is within one line. A progress bar overwrites its line, and
each of its states is a line here.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
from pathlib import Path
from typing import Any, Dict, Iterable, Iterator, List, Optional, Tuple

from serried.base.files import open_regular, read_bytes
from serried.schema import names

STDOUT, FILE = "stdout", "file"
STEP, TOTAL = "step", "total"
EXAMPLE = r"stdout:val_acc=(\S+)"
_BLOCK = 1 << 20
_LONGEST = 4096
"""Longer lines are no reports of a metric: an expression with `.*` needs the square of their length."""
_ENDS = b".,;:!)]}'\""
"""Punctuation that a sentence may have after a number."""


def check(source: str) -> None:
    """Raises ValueError, with a message that begins with a verb, for a text of another form."""
    kind, colon, rest = source.partition(":")
    if kind not in (STDOUT, FILE) or not colon or not rest:
        raise ValueError("must be `stdout:REGEX` or `file:PATH:KEY`")
    if kind == FILE:
        path = rest.partition(":")[0]
        if not path:
            raise ValueError("names no file")
        if path.startswith("/"):
            raise ValueError("must name a file below the trial's folder of results, or all trials would write it")
        return
    try:
        _compiled(rest)
    except re.error as error:
        raise ValueError(f"is not a regular expression: {error}") from None


def last_value(source: str, name: str, logs: Iterable[Path], results: Path) -> Optional[float]:
    """The metric `name` as reported last; None if it was not.

    `logs` are those of rank 0 in all attempts, the newest first.
    """
    kind, _, rest = source.partition(":")
    if kind == FILE:
        path, _, key = rest.partition(":")
        return next(reversed(_all_in_file(results / path, key or name)), None)
    pattern = Pattern(rest, name)
    return next((value for log in logs for value in [_last_match(log, pattern)] if value is not None), None)


def is_file(source: str) -> bool:
    return source.startswith(f"{FILE}:")


def has(source: str, name: str, metric: str) -> bool:
    """Whether the source reports `metric`. `name` is the metric that it is for; empty if nobody has named that."""
    rest = source.partition(":")[2]
    if is_file(source):
        return ":" not in rest or name in ("", metric)
    groups = _compiled(rest).groupindex
    return metric in groups or (name in ("", metric) and groups.keys() <= {STEP, TOTAL})


def values(source: str, name: str, logs: Iterable[Path], results: Path) -> List[float]:
    """All reported values in their order; a JSON file has only the present one. `logs`: the oldest first.

    With a group `step`, a log, or a round in it, whose steps begin before the end of those before it takes the values
    of the repeated steps back. Steps that begin again within a round, with each epoch say, tell no such thing.
    """
    rest = source.partition(":")[2]
    if is_file(source):
        path, _, key = rest.partition(":")
        return _all_in_file(results / path, key or name)
    pattern = Pattern(rest, name)
    found: List[Tuple[Optional[float], float]] = []
    for log in logs:
        with contextlib.suppress(OSError), open_regular(log) as file:
            for lines in _rounds_in(file):
                reported = list(pattern.reports(lines))
                if reported and _is_increasing(found) and _is_increasing(reported):
                    found = [(step, value) for step, value in found if step < reported[0][0]]  # type: ignore[operator]
                found += reported
    return [value for _, value in found]


def _rounds_in(lines: Iterable[bytes]) -> Iterator[Iterator[bytes]]:
    number, sign = 1, names.ROUND_BEGINS.encode()

    def round_of(line: bytes) -> int:
        nonlocal number
        number += sign in line
        return number

    return (its_lines for _, its_lines in itertools.groupby(lines, round_of))


def _is_increasing(reports: List[Tuple[Optional[float], float]]) -> bool:
    """Whether all have a step, and none is before the one above it."""
    steps = [step for step, _ in reports if step is not None]
    return len(steps) == len(reports) and steps == sorted(steps)


class Pattern:
    """The expression of `stdout:REGEX`, for the metric `name`."""

    def __init__(self, expression: str, name: str) -> None:
        """Raises re.error."""
        self._pattern = _compiled(expression)
        self.groups: Dict[str, int] = dict(self._pattern.groupindex)
        """The groups of the step, of the last step and of metrics, by name."""
        unnamed = [number for number in range(1, self._pattern.groups + 1) if number not in self.groups.values()]
        metrics = [number for group, number in self.groups.items() if group not in (STEP, TOTAL)]
        group = self.groups.get(name) or next(iter(unnamed or metrics), None)
        self._group = 0 if group is None and not self.groups else group
        if self._group is not None and self._group not in self.groups.values():
            self.groups[name] = self._group

    def numbers(self, lines: Iterable[bytes]) -> List[float]:
        return [value for _, value in self.reports(lines)]

    def reports(self, lines: Iterable[bytes]) -> Iterator[Tuple[Optional[float], float]]:
        """The values of the metric in `lines`, each with the step that was reported with it or last before it."""
        step: Optional[float] = None
        for match in self._matches(lines) if self._group is not None else ():
            if STEP in self.groups:
                step = next((it for it in [_number_in(match[self.groups[STEP]])] if it is not None), step)
            value = _number_in(match[self._group])  # type: ignore[index]
            if value is not None:
                yield step, value

    def last(self, lines: Iterable[bytes]) -> Dict[str, float]:
        found: Dict[str, float] = {}
        for match in self._matches(lines):
            values = ((name, _number_in(match[group])) for name, group in self.groups.items())
            found.update((name, value) for name, value in values if value is not None)
        return found

    def _matches(self, lines: Iterable[bytes]) -> Iterator["re.Match[bytes]"]:
        for line in lines:
            for part in line.split(b"\r"):
                if len(part) <= _LONGEST:
                    yield from self._pattern.finditer(part.rstrip(b"\n"))


def _compiled(expression: str) -> "re.Pattern[bytes]":
    """Raises re.error. Logs are bytes, and some expressions for text do not work on them."""
    try:
        return re.compile(expression.encode())
    except ValueError as error:  # flags of text
        raise re.error(str(error)) from None


def _last_match(log: Path, pattern: Pattern) -> Optional[float]:
    """Reads from the end: a log may be huge."""
    try:
        with open_regular(log) as file:
            size = file.seek(0, os.SEEK_END)
            length = _BLOCK
            while True:
                file.seek(max(size - length, 0))
                found = pattern.numbers(file)
                if found or length >= size:
                    return found[-1] if found else None
                length *= 8
    except OSError:
        return None


def _number_in(text: Optional[bytes]) -> Optional[float]:
    """`text` is None of a group that did not take part in the match."""
    return number((text or b"").rstrip(_ENDS))


def number(value: Any) -> Optional[float]:
    if isinstance(value, bool):
        return None
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def _all_in_file(path: Path, key: str) -> List[float]:
    try:
        text = read_bytes(path).decode("utf-8", "replace")
    except OSError:
        return []
    return values_in(text, key)


def values_in(text: str, key: str) -> List[float]:
    """The values of `key` in a JSON document, or in each of its lines."""
    text = text.strip()
    whole = number(_at(_parsed(text), key))
    if whole is not None:
        return [whole]
    return [value for value in (number(_at(_parsed(line), key)) for line in text.splitlines()) if value is not None]


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
