"""Writes a tree from extents that arrive in any order, from many threads, and logs them for the next node.

A file gets its mode and time with its last extent, folders and links at the end. Files are not synced one by one: the
cache detects a tree that a crash of the node has torn.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from typing import Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple, Union

from serried.base import copy
from serried.base.manifest import FILE, FOLDER, LINK, SPARSE, TWIN, Manifest

Data = Union[bytes, bytearray, memoryview]

CREATE = os.O_CREAT | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
WAKE_SECONDS = 0.02
"""Readers of the log are woken at most this often: each wake-up takes Python's lock from the threads that copy."""


class Extent(NamedTuple):
    """A part of a file, data or hole."""

    number: int
    """The file's place in the manifest's entries."""
    offset: int
    length: int


class ExtentLog:
    """The extents of an item on this node's disk, in the order of their arrival. The next node reads them from here.

    The log only grows. Slow readers do not block others, late readers see all extents, and a re-read normally hits the
    page cache.
    """

    def __init__(self, manifest: Manifest, root: bytes) -> None:
        self.manifest = manifest
        self.root = root
        """The path of the item. It changes when the item is renamed; open files stay valid."""
        self.problem: Optional[str] = None
        """Why no further extent will come."""
        self.is_complete = not manifest.files
        """All files are there. Links, and the modes and times of folders, may still be missing."""
        self.bytes = self.files = 0
        self._extents: List[Extent] = []
        self._changed = threading.Condition()
        self._woken_at = 0.0

    @classmethod
    def complete(cls, manifest: Manifest, root: bytes) -> ExtentLog:
        """The log of an item that was in the cache."""
        log = cls(manifest, root)
        files = (pair for pair in enumerate(manifest.entries) if pair[1].kind == FILE)
        log._extents = [Extent(number, 0, entry.size) for number, entry in files]
        log.bytes, log.files, log.is_complete = manifest.held, manifest.files, True
        return log

    def since(self, position: int, seconds: float) -> List[Extent]:
        """The extents after the first `position`; empty if none arrives within `seconds`, or none will."""
        with self._changed:
            self._changed.wait_for(
                lambda: len(self._extents) > position or self.is_complete or self.problem is not None, seconds
            )
            return self._extents[position:]

    def path(self, number: int) -> bytes:
        """The path of the file, folder or link of this number."""
        path = self.manifest.entries[number].path
        return self.root + b"/" + path if path else self.root

    def add(self, extent: Extent, held: int, *, is_last: bool) -> None:
        """Add an extent with `held` bytes of data; `is_last` completes its file."""
        with self._changed:
            self._extents.append(extent)
            self.bytes += held
            self.files += is_last
            self.is_complete = self.files == self.manifest.files
            now = time.monotonic()
            if self.is_complete or now - self._woken_at >= WAKE_SECONDS:
                self._woken_at = now
                self._changed.notify_all()

    def fail(self, problem: str) -> None:
        with self._changed:
            self.problem = problem
            self._changed.notify_all()


class TreeWriter:
    def __init__(self, root: bytes, manifest: Manifest) -> None:
        """Creates every folder of `manifest`; the first is `root`, which must not exist yet. Raises OSError."""
        self.extents = ExtentLog(manifest, root)
        self._entries = manifest.entries
        self._is_done = bytearray(len(manifest.entries))
        self._parts: Dict[int, List[Tuple[int, int]]] = {}
        """Of files that arrive in several extents: the begin and end of each extent that has arrived."""
        self._sums: Dict[int, int] = {}
        self._lock = threading.Lock()
        for number, entry in enumerate(self._entries):
            if entry.kind == FOLDER:
                os.mkdir(self.extents.path(number), 0o700)

    # Each of these three writes one extent, and does nothing if its file is complete. They raise OSError, and
    # ValueError for an extent that the manifest does not allow: a peer may be wrong, or lie.

    def write(self, number: int, offset: int, data: Data) -> None:
        """Write `data`, a whole file or a part. An empty file arrives as no bytes at offset 0."""
        self._add(Extent(number, offset, len(data)), len(data), lambda file: copy.write_all(file, data, offset))

    def skip(self, number: int, offset: int, length: int) -> None:
        """Leave a hole."""
        self._add(Extent(number, offset, length), 0, lambda _: None)

    def copy(self, number: int, offset: int, length: int, source: int) -> None:
        """Copy the same part of the open file `source`, normally inside the kernel."""
        self._add(Extent(number, offset, length), length, lambda file: copy.copy_range(source, file, offset, length))

    def _add(self, extent: Extent, held: int, write: Callable[[int], None]) -> None:
        number, offset, length = extent
        entry = self._entries[number] if 0 <= number < len(self._entries) else None
        if entry is None or entry.kind != FILE or offset < 0 or length < 0 or offset + length > entry.size:
            raise ValueError(f"the manifest has no file {number} with {length} bytes at {offset}")
        if self._is_done[number]:
            return
        file = os.open(self.extents.path(number), CREATE, 0o600)
        try:
            write(file)
            is_last = self._completes_file(extent, entry.size)
            if is_last:
                if held < entry.size:  # there are holes, perhaps at its end, or several parts
                    os.ftruncate(file, entry.size)
                os.fchmod(file, entry.mode)
                os.utime(file, ns=(entry.time, entry.time))
            self.extents.add(extent, held, is_last=is_last)
        finally:
            os.close(file)

    def _completes_file(self, extent: Extent, size: int) -> bool:
        number = extent.number
        with self._lock:
            if self._is_done[number]:
                return False
            if extent.length < size:
                parts = self._parts.setdefault(number, [])
                parts.append((extent.offset, extent.offset + extent.length))
                self._sums[number] = self._sums.get(number, 0) + extent.length
                # The sum is a cheap test that spares most parts the sorting.
                if self._sums[number] < size or next(_gaps(parts, size), None):
                    return False
                del self._parts[number], self._sums[number]
            self._is_done[number] = 1
            return True

    def missing(self) -> Iterator[Extent]:
        """The extents that have not arrived."""
        for number, entry in enumerate(self._entries):
            if entry.kind != FILE or self._is_done[number]:
                continue
            if not entry.size:
                yield Extent(number, 0, 0)
            for begin, end in _gaps(self._parts.get(number, []), entry.size):
                yield Extent(number, begin, end - begin)

    def finish(self) -> None:
        """Once no extent is missing, create hard and symbolic links, and set modes and times of folders.

        Raises OSError.
        """
        if not self.extents.is_complete:
            raise ValueError("some files are incomplete")
        for number, entry in enumerate(self._entries):
            path = self.extents.path(number)
            if entry.kind == TWIN:
                os.link(self.extents.root + b"/" + entry.target, path)
            elif entry.kind == LINK:
                os.symlink(entry.target, path)
                with contextlib.suppress(OSError, NotImplementedError):  # not possible everywhere, and rarely read
                    os.utime(path, ns=(entry.time, entry.time), follow_symlinks=False)
        for number in range(len(self._entries) - 1, -1, -1):  # a folder after its contents
            entry = self._entries[number]
            if entry.kind == FOLDER:
                path = self.extents.path(number)
                os.chmod(path, entry.mode)
                os.utime(path, ns=(entry.time, entry.time))


def _gaps(parts: List[Tuple[int, int]], size: int) -> Iterator[Tuple[int, int]]:
    """The begin and end of each part of a file of `size` bytes that `parts` leave out."""
    at = 0
    for begin, end in sorted(parts):
        if begin > at:
            yield at, begin
        at = max(at, end)
    if at < size:
        yield at, size


def split_holes(descriptor: int, extent: Extent) -> Iterator[Tuple[int, int, bool]]:
    """Split an extent of an open file into parts: offset, length, is_data. Small extents are not split."""
    start, end = extent.offset, extent.offset + extent.length
    if extent.length < SPARSE:
        yield start, extent.length, True
        return
    for offset, length in copy.data_extents(descriptor, start, end):
        if offset > start:
            yield start, offset - start, False
        yield offset, length, True
        start = offset + length
    if end > start:
        yield start, end - start, False
