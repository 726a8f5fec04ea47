"""The tasks of an array: their indices, and their commands."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from serried.config import shell_words
from serried.errors import ConfigError, UsageError, reason

MOST = 1_000_000
"""Tasks in one run. Slurm's own maximum is 4,000,000, its default 1,000."""


def parse_indices(text: str) -> tuple[int, ...]:
    """The indices of `0-999`, `0-10:2` or `1,3,5`, sorted, each once. Raises UsageError."""
    if "%" in text:
        ranges, _, parallel = text.partition("%")
        raise UsageError(f"`{text}` is not a valid array range", hint=f"--array {ranges} --parallel {parallel}")
    indices: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,9})(?:-(\d{1,9})(?::(\d{1,9}))?)?\s*", part, re.ASCII)
        if match is None:
            raise UsageError(f"`{text}` is not a valid array range", hint="write `0-999`, `0-10:2` or `1,3,5`")
        first, last, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
        if last < first or step == 0:
            raise UsageError(f"`{part.strip()}` is an empty range", hint="put the smaller index first: `0-9`")
        if (last - first) // step + len(indices) >= MOST:
            raise UsageError(f"`{text}` has over {MOST:,} tasks", hint="submit several runs")
        indices |= set(range(first, last + 1, step))
    return tuple(sorted(indices))


def divide(indices: Sequence[int], size: int) -> tuple[int, ...]:
    """The offsets of the fewest jobs that hold `indices`, sorted, when those of one job stay below `size`."""
    offsets: list[int] = []
    for index in indices:
        if not offsets or index >= offsets[-1] + size:
            offsets.append(index)
    return tuple(offsets)


def read_each(path: Path) -> tuple[tuple[str, ...], ...]:
    """The commands of a file, one per line, as words. Raises ConfigError with the line."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise ConfigError(f"cannot be read: {reason(error)}", path=str(path)) from None
    except UnicodeDecodeError:
        raise ConfigError("is not UTF-8 text", path=str(path)) from None
    commands = []
    for number, line in shell_words.lines(text):
        try:
            commands.append(shell_words.split(line))
        except ValueError as error:
            raise ConfigError(f"the command {error}", path=str(path), line=number) from None
    if not commands:
        raise ConfigError(
            "contains no command", path=str(path), hint="write one command per line; `#` begins a comment"
        )
    return tuple(commands)
