"""The tasks of an array: their jobs, and their commands."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from serried.config import shell_words
from serried.errors import ConfigError, reason


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
