"""The place in a rank's log where the output since a time begins. The samples of its node have the log's sizes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, BinaryIO

from serried.base.files import json_object, open_regular
from serried.records.logs import RankLog
from serried.schema.layout import AttemptDirectory

_LONGEST_LINE = 1 << 18
"""Of samples, and the most that is read back to where a line of output begins."""


class LogTimes:
    """Of one attempt. The samples of a node are searched once for all its ranks, by bisection."""

    def __init__(self, attempt: AttemptDirectory, since: float) -> None:
        self._attempt = attempt
        self._since = since
        self._sizes: dict[int, dict[str, Any] | None] = {}

    def start(self, log: RankLog) -> int | None:
        """The first byte since the time, or up to half a minute before; None if that is unknown."""
        try:
            state = log.path.stat()
        except OSError:
            return 0
        if state.st_mtime < self._since:
            return state.st_size
        if log.launch or not log.path.name.startswith("rank"):  # not sampled
            return None
        if log.node not in self._sizes:
            self._sizes[log.node] = _sizes_before(self._attempt.samples(log.node), self._since)
        sizes = self._sizes[log.node]
        if sizes is None:
            return None
        # Of ranks that share the log, those that have ended are in no later sample.
        known = [sizes[str(rank)] for rank in range(log.rank, log.rank + log.ranks) if str(rank) in sizes]
        size = known[-1] if known else 0
        is_valid = isinstance(size, int) and 0 <= size <= state.st_size
        return _line_start(log.path, size) if is_valid else None


def _sizes_before(path: Path, since: float) -> dict[str, Any] | None:
    """Sizes by rank, from the last line at or before the time; None without samples."""
    try:
        with open_regular(path) as file:
            low, high = 0, file.seek(0, os.SEEK_END)
            found: dict[str, Any] | None = {} if high else None
            while low < high:
                middle = (low + high) // 2
                end, entry = _entry_after(file, middle)
                if entry is None or entry["t"] > since:
                    high = middle
                else:
                    low = end
                    ranks = entry.get("ranks")
                    if isinstance(ranks, dict):
                        found = {rank: one.get("log") for rank, one in ranks.items() if isinstance(one, dict)}
            return found
    except OSError:
        return None


def _entry_after(file: BinaryIO, position: int) -> tuple[int, dict[str, Any] | None]:
    """The first whole line with a time behind `position`, and where it ends."""
    file.seek(max(position - 1, 0))
    if position:
        file.readline(_LONGEST_LINE)  # the rest of a line
    while line := file.readline(_LONGEST_LINE):
        entry = json_object(line)
        if entry is not None and isinstance(entry.get("t"), (int, float)):
            return file.tell(), entry
    return file.tell(), None


def _line_start(path: Path, position: int) -> int:
    """Where the line that contains byte `position` begins."""
    first = max(position - _LONGEST_LINE, 0)
    try:
        with open_regular(path) as file:
            file.seek(first)
            before = file.read(position - first)
    except OSError:
        return position
    at = before.rfind(b"\n")
    return first + at + 1 if at >= 0 or not first else position
