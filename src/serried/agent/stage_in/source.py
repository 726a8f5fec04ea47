"""Reads the shared file system: many files at a time, large ones in parts, and only as long as nothing changes."""

from __future__ import annotations

import errno
import os
from typing import Callable, Iterator, List

from serried.agent.stage_in.extents import Extent, split_holes
from serried.agent.stage_in.tree_writer import TreeWriter
from serried.fs.adaptive_pool import Crew
from serried.fs.manifest import Entry, text
from serried.fs.scan import UnreadableError

READERS = 32
SMALL = 1 << 20
"""A file up to this size is read at once."""
PART = 32 << 20
"""What one reader takes of a larger one."""
STEP = 4 << 20
"""Of that, before the next node may have it: it is so much behind us."""
READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
"""What is a pipe by now keeps nobody waiting for who writes into it."""
GONE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ESTALE)
"""No file any more, or another thing of this name."""
BATCH_FILES, BATCH_BYTES = 64, 4 << 20
"""What one reader takes at once of small ones."""


class ChangedError(Exception):
    """A file is not as the manifest has it, or is not there any more. `str` is its path."""


def fill(root: bytes, target: TreeWriter, beat: Callable[[], None] = lambda: None) -> None:
    """Bring what `target` is missing from `root`. Return when it is complete; `beat` is called as it goes on.

    Raises ChangedError, UnreadableError, and OSError with the name of what could not be written.
    """
    crew = Crew(READERS, beat)
    reader = _Reader(os.path.realpath(root), target, crew)
    for batch in _batches(target.missing()):
        crew.add(lambda batch=batch: reader.bring(batch))  # type: ignore[misc]
    crew.run()


class _Reader:
    def __init__(self, root: bytes, target: TreeWriter, crew: Crew) -> None:
        self._root = root
        self._crew = crew
        self._target = target
        self._entries = target.extents.manifest.entries

    def bring(self, batch: List[Extent]) -> None:
        for extent in batch:
            self._crew.look()
            entry = self._entries[extent.number]
            source = self._open(entry)
            try:
                if entry.size <= SMALL:
                    self._bring_whole(source, entry, extent.number)
                else:
                    self._bring_part(source, entry, extent)
            finally:
                os.close(source)

    def _open(self, entry: Entry) -> int:
        path = self._path(entry)
        try:
            return os.open(path, READ)
        except OSError as error:
            if error.errno in GONE:
                raise ChangedError(text(path)) from None
            raise UnreadableError(path, error) from None

    def _bring_whole(self, source: int, entry: Entry, number: int) -> None:
        parts = []
        left = entry.size + 1  # one more shows whether it has grown
        while left:
            data = self._read(source, entry, left)
            parts.append(data)
            left -= len(data)
            if not data or left == 1:
                break
        self._check(source, entry, entry.size + 1 - left)
        self._target.write(number, 0, b"".join(parts) if len(parts) > 1 else parts[0])

    def _bring_part(self, source: int, entry: Entry, extent: Extent) -> None:
        self._check(source, entry, entry.size)
        for offset, length, is_data in split_holes(source, extent):
            if not is_data:
                self._target.skip(extent.number, offset, length)
                continue
            try:
                for at in range(offset, offset + length, STEP):
                    self._target.copy(extent.number, at, min(STEP, offset + length - at), source)
                    self._crew.look()
            except EOFError:
                raise ChangedError(text(self._path(entry))) from None
        self._check(source, entry, entry.size)

    def _read(self, source: int, entry: Entry, count: int) -> bytes:
        try:
            return os.read(source, count)
        except OSError as error:
            raise UnreadableError(self._path(entry), error) from None

    def _check(self, source: int, entry: Entry, size: int) -> None:
        """What was read is of the file in the manifest: so say its size and time now, after it was read."""
        state = os.fstat(source)
        if state.st_mtime_ns != entry.time or not state.st_size == size == entry.size:
            raise ChangedError(text(self._path(entry)))

    def _path(self, entry: Entry) -> bytes:
        return self._root + b"/" + entry.path if entry.path else self._root


def _batches(extents: Iterator[Extent]) -> Iterator[List[Extent]]:
    """Large files in parts first, as the last of them must not be waited for; then small ones, many at once."""
    small: List[Extent] = []
    for extent in extents:
        if extent.offset == 0 and extent.length <= SMALL:
            small.append(extent)
            continue
        end = extent.offset + extent.length
        for offset in range(extent.offset, end, PART):
            yield [Extent(extent.number, offset, min(PART, end - offset))]
    batch: List[Extent] = []
    size = 0
    for extent in small:
        batch.append(extent)
        size += extent.length
        if len(batch) == BATCH_FILES or size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
