"""The extents of an item on this node's disk, in the order of their arrival. The next node reads them from here.

The log only grows. Slow readers do not block others, late readers see all extents, and a re-read normally hits the page
cache.
"""

from __future__ import annotations

import threading
import time
from typing import Iterator, List, NamedTuple, Optional, Tuple

from serried.fs import scan
from serried.fs.manifest import FILE, Manifest

WAKE_SECONDS = 0.02
"""Who waits for more is woken no more often: each time takes Python's lock from those who copy."""


class Extent(NamedTuple):
    """A part of a file, data or hole."""

    number: int
    """The file's place in the manifest's entries."""
    offset: int
    length: int


class ExtentLog:
    def __init__(self, manifest: Manifest, root: bytes) -> None:
        self.manifest = manifest
        self.root = root
        """Where the item is, a file or folder; another place once it is renamed, which open files do not mind."""
        self.problem: Optional[str] = None
        """Why nothing more will come."""
        self.is_complete = not manifest.files
        """Whether all files are there. Links, modes of folders and their times may still be missing."""
        self.bytes = self.files = 0
        self._extents: List[Extent] = []
        self._changed = threading.Condition()
        self._woken_at = 0.0

    @classmethod
    def complete(cls, manifest: Manifest, root: bytes) -> ExtentLog:
        """Of an item that has been here for long."""
        log = cls(manifest, root)
        files = (pair for pair in enumerate(manifest.entries) if pair[1].kind == FILE)
        log._extents = [Extent(number, 0, entry.size) for number, entry in files]
        log.bytes, log.files, log.is_complete = manifest.held, manifest.files, True
        return log

    def since(self, position: int, seconds: float) -> List[Extent]:
        """What has come after the first `position` extents; nothing where none does within `seconds`."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._extents) > position or self._has_ended, seconds)
            return self._extents[position:]

    @property
    def _has_ended(self) -> bool:
        return self.is_complete or self.problem is not None

    def path(self, number: int) -> bytes:
        """Where the file, folder or link of this number is."""
        path = self.manifest.entries[number].path
        return self.root + b"/" + path if path else self.root

    def add(self, extent: Extent, held: int, *, is_last: bool) -> None:
        """`held` bytes of data are here; `is_last` for the last of a file."""
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


def split_holes(descriptor: int, extent: Extent) -> Iterator[Tuple[int, int, bool]]:
    """An extent of an open file in parts (offset, length, is_data), holes among them if it is large enough."""
    start, end = extent.offset, extent.offset + extent.length
    if extent.length < scan.SPARSE:
        yield start, extent.length, True
        return
    for offset, length in scan.extents(descriptor, start, end):
        if offset > start:
            yield start, offset - start, False
        yield offset, length, True
        start = offset + length
    if end > start:
        yield start, end - start, False
