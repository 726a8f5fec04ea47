"""Reads the shared file system: many files at a time, large ones in parts, and only while the source stays the same.

A watchdog detects a source that stopped answering: an unreachable file system may block a read forever.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from functools import partial
from typing import Callable, Iterator, List

from serried.agent.stage_in.tree_writer import Extent, TreeWriter, split_holes
from serried.fs.adaptive_pool import Crew
from serried.fs.manifest import ManifestEntry, text
from serried.fs.scan import UnreadableError

SILENT_SECONDS = 600.0
"""A source that does not answer for this time is unreachable; the failover of a file server takes minutes."""
READERS = 32
SMALL = 1 << 20
"""A file up to this size is read at once."""
PART = 32 << 20
"""The part of a larger file that one reader copies."""
STEP = 4 << 20
"""The next node gets a part in steps of this size."""
READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
"""A file that has become a pipe does not block."""
GONE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ESTALE)
"""The path no longer leads to a file."""
BATCH_FILES, BATCH_BYTES = 64, 4 << 20
"""The small files that one reader takes at once."""


class SourceChangedError(Exception):
    """A file differs from the manifest, or is gone. `str` is its path."""


class Watchdog:
    def __init__(self) -> None:
        self._source = ""
        self._answered_at = 0.0

    @contextlib.contextmanager
    def watch(self, source: str) -> Iterator[None]:
        """Expect answers from `source`, each reported by `beat`."""
        self.beat()
        self._source = source
        try:
            yield
        finally:
            self._source = ""

    def beat(self) -> None:
        self._answered_at = time.monotonic()

    @property
    def silent_source(self) -> str:
        """The watched source, if it has not answered for SILENT_SECONDS."""
        return self._source if time.monotonic() - self._answered_at > SILENT_SECONDS else ""


def fill(root: bytes, writer: TreeWriter, beat: Callable[[], None] = lambda: None) -> None:
    """Copy from `root` all extents that `writer` lacks. `beat` is called whenever the source has answered.

    Raises SourceChangedError, UnreadableError, and OSError with the name of a file that could not be written.
    """
    crew = Crew(READERS, beat)
    reader = _BatchReader(os.path.realpath(root), writer, crew)
    for batch in _batches(writer.missing()):
        crew.add(partial(reader.copy, batch))
    crew.run()


class _BatchReader:
    def __init__(self, root: bytes, writer: TreeWriter, crew: Crew) -> None:
        self._root = root
        self._crew = crew
        self._writer = writer
        self._entries = writer.extents.manifest.entries

    def copy(self, batch: List[Extent]) -> None:
        for extent in batch:
            self._crew.look()
            entry = self._entries[extent.number]
            source = self._open(entry)
            try:
                if entry.size <= SMALL:
                    self._copy_whole(source, entry, extent.number)
                else:
                    self._copy_part(source, entry, extent)
            finally:
                os.close(source)

    def _open(self, entry: ManifestEntry) -> int:
        path = self._path(entry)
        try:
            return os.open(path, READ)
        except OSError as error:
            if error.errno in GONE:
                raise SourceChangedError(text(path)) from None
            raise UnreadableError(path, error) from None

    def _copy_whole(self, source: int, entry: ManifestEntry, number: int) -> None:
        parts = []
        left = entry.size + 1  # one byte more shows whether the file has grown
        while left:
            try:
                data = os.read(source, left)
            except OSError as error:
                raise UnreadableError(self._path(entry), error) from None
            parts.append(data)
            left -= len(data)
            if not data or left == 1:
                break
        self._check(source, entry, entry.size + 1 - left)
        self._writer.write(number, 0, b"".join(parts) if len(parts) > 1 else parts[0])

    def _copy_part(self, source: int, entry: ManifestEntry, extent: Extent) -> None:
        self._check(source, entry, entry.size)
        for offset, length, is_data in split_holes(source, extent):
            if not is_data:
                self._writer.skip(extent.number, offset, length)
                continue
            try:
                for at in range(offset, offset + length, STEP):
                    self._writer.copy(extent.number, at, min(STEP, offset + length - at), source)
                    self._crew.look()
            except EOFError:
                raise SourceChangedError(text(self._path(entry))) from None
        self._check(source, entry, entry.size)

    def _check(self, source: int, entry: ManifestEntry, size: int) -> None:
        """The size and time after the read show whether the `size` bytes belong to the file in the manifest."""
        state = os.fstat(source)
        if state.st_mtime_ns != entry.time or not state.st_size == size == entry.size:
            raise SourceChangedError(text(self._path(entry)))

    def _path(self, entry: ManifestEntry) -> bytes:
        return self._root + b"/" + entry.path if entry.path else self._root


def _batches(extents: Iterator[Extent]) -> Iterator[List[Extent]]:
    """First large files in parts, so that no reader ends with one of them alone; then small files, many at once."""
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
