"""The files that ranks write: logs, read while they grow or since a time, and the result of a smoke test."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from serried.base.errors import UsageError
from serried.base.files import json_object, open_regular, read_json
from serried.base.text import compress
from serried.records.record import Record, Summary
from serried.schema import names
from serried.schema.layout import AttemptDirectory

_CHUNK = 1 << 20
_MOST_LISTED = 8
_LONGEST_LINE = 1 << 16
"""A line without an end is shown in pieces of this size."""
_UP, _MOST_ROWS = b"\x1b[A", 8
_MOVES = re.compile(rb"(\n|\x1b\[A)")
_ERASE = re.compile(rb"\x1b\[[0-2]?K")


@dataclass(frozen=True)
class RankLog:
    rank: int
    node: int
    path: Path
    launch: str = ""
    """The id of its launch in a job script."""
    ranks: int = 1
    """So many ranks from `rank` on share the log."""

    @property
    def name(self) -> str:
        """`3`, or `8-15` if ranks share it."""
        return compress(range(self.rank, self.rank + self.ranks))

    def is_of(self, rank: int | None) -> bool:
        return rank is None or self.rank <= rank < self.rank + self.ranks


def rank_logs(attempt: AttemptDirectory, size: Summary) -> list[RankLog]:
    """The log of each rank, whether it exists or not: on NFS a file is visible at once by opening, not by listing."""
    if size.script:
        return [RankLog(names.SCRIPT_RANK, 0, attempt.script_log)]
    per_node = max(size.ranks, 1)
    if not size.shares_logs:
        return [
            RankLog(rank, rank // per_node, attempt.rank_log(rank // per_node, rank))
            for rank in range(size.nodes * per_node)
        ]
    return [RankLog(0, 0, attempt.rank_log(0, 0)), *(shared_log(attempt, node, per_node) for node in range(size.nodes))]


def shared_log(attempt: AttemptDirectory, node: int, ranks: int) -> RankLog:
    """The log of all ranks of a node but rank 0, with `ranks` on each node."""
    first = max(node * ranks, 1)
    return RankLog(first, node, attempt.shared_log(node), ranks=(node + 1) * ranks - first)


def launch_logs(attempt: AttemptDirectory) -> dict[str, list[RankLog]]:
    """The logs of the ranks that a job script launched, by the launch's id, in the order of launches and ranks."""
    found: dict[str, list[RankLog]] = {}
    for path in (*attempt.path.glob("node-*/rank-*.log"), *attempt.path.glob("node-*/launch-*/rank-*.log")):
        folders = path.relative_to(attempt.path).parts
        launch = folders[1].removeprefix("launch-") if len(folders) == 3 else "1"
        rank, node = (int(name.rpartition("-")[2].removesuffix(".log")) for name in (folders[-1], folders[0]))
        found.setdefault(launch, []).append(RankLog(rank, node, path, launch))
    return {launch: sorted(found[launch], key=lambda log: log.rank) for launch in sorted(found, key=launch_order)}


def launch_order(launch: str) -> list[int]:
    """`10.2-in-3` comes after `9`."""
    return [int(part) for part in re.findall(r"\d+", launch)]


def logs_of_launch(
    attempt: AttemptDirectory, run: str, *, launch: str | None, rank: int | None, node: int | None = None
) -> list[RankLog]:
    """The logs of a launch in a job script; without an id those of the newest launch that has the rank on the node.

    Raises UsageError.
    """
    known = launch_logs(attempt)
    if not known:
        hint = f"`serried logs {run}` prints the output of the script"
        raise UsageError(f"the script of run `{run}` has started no ranks with logs of their own", hint=hint)
    if launch is not None and launch not in known:
        ids = [*known]
        listed = ids if len(ids) <= 2 * _MOST_LISTED else [*ids[:_MOST_LISTED], "…", *ids[-_MOST_LISTED:]]
        raise UsageError(f"run `{run}` has no launch {launch}", hint=f"its launches are: {', '.join(listed)}")
    for logs in [known[launch]] if launch is not None else reversed(known.values()):
        chosen = [log for log in logs if log.is_of(rank) and node in (None, log.node)]
        if chosen:
            return chosen
    which = " on ".join(f"{name} {number}" for name, number in (("rank", rank), ("node", node)) if number is not None)
    subject = f"no launch of run `{run}` has" if launch is None else f"launch {launch} of run `{run}` does not have"
    lines = []
    for shown in [*known][-_MOST_LISTED:] if launch is None else [launch]:
        by_node: dict[int, list[int]] = {}
        for log in known[shown]:
            by_node.setdefault(log.node, []).append(log.rank)
        on = (f"rank{'s' * (len(its) > 1)} {compress(its)} on node {at}" for at, its in sorted(by_node.items()))
        lines.append(f"launch {shown}: {', '.join(on)}")
    raise UsageError(f"{subject} {which}", hint="\n".join(lines))


class Tail:
    """Reads a growing file from where the last read stopped. The file may appear late."""

    def __init__(self, path: Path, start: int = 0) -> None:
        self.path = path
        self._position = start

    def read(self) -> bytes:
        """The bytes that were added since, at most a chunk; empty if the file does not exist yet."""
        with contextlib.suppress(OSError):
            # Opened each time, because that makes a network file system look again.
            with open_regular(self.path) as file:
                if os.fstat(file.fileno()).st_size < self._position:
                    self._position = 0
                file.seek(self._position)
                added = file.read(_CHUNK)
            self._position += len(added)
            return added
        return b""


class Lines:
    """Whole lines from pieces of bytes; `rest` has no end yet.

    Bars below each other, as tqdm draws those of nested loops, end each state by moving the cursor up. The newlines
    that lead down again end no line. Such rows are held until a newline below the last of them.
    """

    def __init__(self) -> None:
        self._rows = [b""]
        self._up = 0
        """How far the cursor is above the last row."""
        self._begun = b""
        """Perhaps the beginning of a movement of the cursor."""

    def feed(self, added: bytes) -> Iterator[bytes]:
        text = self._begun + added
        self._begun = next((start for start in (_UP[:2], _UP[:1]) if text.endswith(start)), b"")
        for part in _MOVES.split(text.removesuffix(self._begun)):
            if part == _UP:
                self._up = min(self._up + 1, _MOST_ROWS - 1)
                self._rows = [b""] * (self._up + 1 - len(self._rows)) + self._rows
            elif part != b"\n":
                self._rows[-1 - self._up] += part
            elif self._up:
                self._up -= 1
                self._rows[-1 - self._up] += b"\r"
            else:
                yield from self._take_rows()
        # Without what a progress bar has overwritten, if that is much.
        self._rows = [row[max(row.rfind(b"\r", 0, -1), 0) :] if len(row) > _LONGEST_LINE else row for row in self._rows]
        if len(self._rows[-1]) > _LONGEST_LINE:
            yield from self._take_rows()

    def _take_rows(self) -> Iterator[bytes]:
        """The rows, without those that a program has cleared among several."""
        rows, self._rows, self._up = self._rows, [b""], 0
        return iter(rows) if len(rows) == 1 else (row.rstrip(b"\r") for row in rows if not _is_cleared(row))

    @property
    def rest(self) -> bytes:
        return next((row for row in reversed(self._rows) if not _is_cleared(row)), b"")

    def finish(self) -> Iterator[bytes]:
        """Yield the last lines, if they have no end."""
        self._rows[-1 - self._up] += self._begun
        self._begun = b""
        return self._take_rows() if any(self._rows) else iter(())


def _is_cleared(row: bytes) -> bool:
    return not _ERASE.sub(b"", row.rstrip(b"\r").rpartition(b"\r")[2]).strip()


def decode(line: bytes) -> str:
    return line.decode("utf-8", "replace")


def start_of_last_lines(path: Path, count: int) -> int:
    """Where the last `count` lines of a file begin. It is read backwards, at most a chunk for each line."""
    with contextlib.suppress(OSError), open_regular(path) as file:
        size = position = file.seek(0, os.SEEK_END)
        limit = max(size - count * _CHUNK, 0)
        missing = count
        while position > limit:
            end, position = position, max(position - _CHUNK, limit)
            file.seek(position)
            block = file.read(end - position)
            at = len(block) - (end == size)  # the newline of the last line
            while missing and (at := block.rfind(b"\n", 0, at)) >= 0:
                missing -= 1
            if not missing:
                return position + at + 1
        return limit
    return 0


def last_lines(path: Path, count: int, window: int = 1 << 16) -> list[str]:
    """The last lines of a file that may be huge or missing."""
    with contextlib.suppress(OSError), open_regular(path) as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(size - window, 0))
        text = file.read(window)
        lines = text.removesuffix(b"\n").split(b"\n")
        if size > window:
            lines = lines[1:] or lines
        lines = [*(line for line in lines[:-1] if not line.endswith(_UP)), lines[-1]]  # states of a bar below another
        return [decode(line) for line in lines[-count:]] if text else []
    return []


_LONGEST_SAMPLE = 1 << 18
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
        file.readline(_LONGEST_SAMPLE)  # the rest of a line
    while line := file.readline(_LONGEST_SAMPLE):
        entry = json_object(line)
        if entry is not None and isinstance(entry.get("t"), (int, float)):
            return file.tell(), entry
    return file.tell(), None


def _line_start(path: Path, position: int) -> int:
    first = max(position - _LONGEST_SAMPLE, 0)
    try:
        with open_regular(path) as file:
            file.seek(first)
            before = file.read(position - first)
    except OSError:
        return position
    at = before.rfind(b"\n")
    return first + at + 1 if at >= 0 or not first else position


def smoke_result(record: Record, task: int | None) -> str:
    """The parts of a training that a smoke test has tried, by the training library's own note."""
    if task is None and record.summary.tasks is not None:
        return "each task has its own result"
    found = read_json(record.where.task(task).results / names.SMOKE_FILE)
    if found is None:
        return "unknown: does the program use `serried.train`, and did it get that far?"
    loaded, saved, proof = found.get("loaded_step"), found.get("own_step"), "no checkpoint was saved"
    if loaded is not None:
        proof = f"the checkpoint of step {loaded} was saved and loaded"
    elif saved is not None:
        proof = f"the program saved step {saved} itself; loading that was not tried"
    return f"steps taken: {found.get('steps')}; {proof}"
