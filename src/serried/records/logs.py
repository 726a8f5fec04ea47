"""What ranks wrote: which files, read on as they grow, lines put together from what arrives."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from serried.protocol.json_lines import LineBuffer
from serried.protocol.layout import AttemptDirectory
from serried.records.documents import Summary

_CHUNK = 1 << 20
_LONGEST_LINE = 1 << 16
"""A line without an end is shown in pieces of this size."""


@dataclass(frozen=True)
class RankLog:
    rank: int
    node: int
    path: Path


def rank_logs(attempt: AttemptDirectory, size: Summary) -> list[RankLog]:
    """Where each rank of an attempt writes, there or not: by opening, not by listing, a file is seen at once on NFS."""
    per_node = max(size.ranks, 1)
    return [RankLog(rank, rank // per_node, attempt.log_of(rank, per_node)) for rank in range(size.nodes * per_node)]


class Tail:
    """Reads a growing file on from where it stopped. It may appear late."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._position = 0

    def read(self) -> bytes:
        """What was added since, at most a chunk; nothing where the file is not there yet."""
        with contextlib.suppress(OSError):
            # Opened anew each time: that is what makes a network file system look again.
            with self.path.open("rb") as file:
                if os.fstat(file.fileno()).st_size < self._position:
                    self._position = 0
                file.seek(self._position)
                added = file.read(_CHUNK)
            self._position += len(added)
            return added
        return b""


class Lines:
    """Puts whole lines together from pieces of bytes; `rest` is what has no end yet."""

    def __init__(self) -> None:
        self._buffer = LineBuffer()

    def feed(self, added: bytes) -> Iterator[str]:
        for line in self._buffer.lines(added):
            yield _decode(line)
        pending = self._buffer.rest
        if len(pending) > _LONGEST_LINE:  # what a progress bar has written over is not seen again
            pending = pending[max(pending.rfind(b"\r", 0, -1), 0) :]
        if len(pending) > _LONGEST_LINE:
            yield _decode(pending)
            pending = b""
        self._buffer.rest = pending

    @property
    def rest(self) -> str:
        return _decode(self._buffer.rest)

    def finish(self) -> Iterator[str]:
        """The last line, if it has no end."""
        if self._buffer.rest:
            yield _decode(self._buffer.rest)
        self._buffer.rest = b""


def _decode(line: bytes) -> str:
    return line.decode("utf-8", "replace")


def last_lines(path: Path, count: int, window: int = 1 << 16) -> list[str]:
    """The last lines of a file that may be huge, or not there."""
    with contextlib.suppress(OSError), path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(size - window, 0))
        text = file.read(window)
        lines = text.removesuffix(b"\n").split(b"\n")
        if size > window:
            lines = lines[1:] or lines
        return [_decode(line) for line in lines[-count:]] if text else []
    return []
