"""Writes a tree from extents that arrive in any order, from many threads.

A file gets its mode and time with its last extent, folders and links at the end. Files are not synced one by one: the
cache detects a tree that a crash of the node has torn.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from typing import Dict, Iterator, List, Tuple, Union

from serried.agent.stage_in.extents import Extent, ExtentLog
from serried.fs.manifest import FILE, FOLDER, LINK, TWIN, Entry, Manifest

Data = Union[bytes, bytearray, memoryview]

CREATE = os.O_CREAT | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
BLOCK = 1 << 20
"""What is copied at once where the kernel cannot do it."""
CANNOT = (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EBADF)


class TreeWriter:
    def __init__(self, root: bytes, manifest: Manifest) -> None:
        """Makes every folder of `manifest`, the first of them `root`, which must not be there. Raises OSError."""
        self.extents = ExtentLog(manifest, root)
        self._entries = manifest.entries
        self._is_done = bytearray(len(manifest.entries))
        self._parts: Dict[int, List[Tuple[int, int]]] = {}
        """Of files that come in several extents: (begin, end) of those that are here."""
        self._sums: Dict[int, int] = {}
        self._lock = threading.Lock()
        for number, entry in enumerate(self._entries):
            if entry.kind == FOLDER:
                os.mkdir(self.extents.path(number), 0o700)

    def write(self, number: int, offset: int, data: Data) -> None:
        """`data` at `offset` of a file: all of it, or a part. An empty file comes as no bytes at 0. Raises OSError.

        What comes a second time is passed over once the file is whole.
        """
        entry = self._entry(number, offset, len(data))
        if self._is_done[number]:
            return
        descriptor = os.open(self.extents.path(number), CREATE, 0o600)
        try:
            rest, at = memoryview(data), offset
            while rest:
                written = os.pwrite(descriptor, rest, at)
                rest, at = rest[written:], at + written
            self._complete_extent(descriptor, entry, Extent(number, offset, len(data)), len(data))
        finally:
            os.close(descriptor)

    def skip(self, number: int, offset: int, length: int) -> None:
        """A hole, where nothing has to be written. Raises OSError."""
        entry = self._entry(number, offset, length)
        if self._is_done[number]:
            return
        descriptor = os.open(self.extents.path(number), CREATE, 0o600)
        try:
            self._complete_extent(descriptor, entry, Extent(number, offset, length), 0)
        finally:
            os.close(descriptor)

    def copy(self, number: int, offset: int, length: int, source: int) -> None:
        """The same part of the open file `source`, without a way through this process. Raises OSError."""
        entry = self._entry(number, offset, length)
        if self._is_done[number]:
            return
        descriptor = os.open(self.extents.path(number), CREATE, 0o600)
        try:
            copy_range(source, descriptor, offset, length)
            self._complete_extent(descriptor, entry, Extent(number, offset, length), length)
        finally:
            os.close(descriptor)

    def missing(self) -> Iterator[Extent]:
        """What has not come yet."""
        for number, entry in enumerate(self._entries):
            if entry.kind == FILE and not self._is_done[number]:
                at = 0
                for begin, end in sorted(self._parts.get(number, [])):
                    if begin > at:
                        yield Extent(number, at, begin - at)
                    at = max(at, end)
                if at < entry.size or not entry.size:
                    yield Extent(number, at, entry.size - at)

    def finish(self) -> None:
        """Once nothing is missing: further names, links, and what folders are to look like. Raises OSError."""
        if not self.extents.is_complete:
            raise ValueError("not all files are there")
        for number, entry in enumerate(self._entries):
            path = self.extents.path(number)
            if entry.kind == TWIN:
                os.link(self.extents.root + b"/" + entry.target, path)
            elif entry.kind == LINK:
                os.symlink(entry.target, path)
                with contextlib.suppress(OSError, NotImplementedError):  # nobody reads it, and not everywhere
                    os.utime(path, ns=(entry.time, entry.time), follow_symlinks=False)
        for number in range(len(self._entries) - 1, -1, -1):  # what is within a folder before the folder
            entry = self._entries[number]
            if entry.kind == FOLDER:
                path = self.extents.path(number)
                os.chmod(path, entry.mode)
                os.utime(path, ns=(entry.time, entry.time))

    def _entry(self, number: int, offset: int, length: int) -> Entry:
        """Raises ValueError: a peer may be mistaken, or lie."""
        entry = self._entries[number] if 0 <= number < len(self._entries) else None
        if entry is None or entry.kind != FILE or offset < 0 or length < 0 or offset + length > entry.size:
            raise ValueError(f"no file {number} with {length} bytes at {offset}")
        return entry

    def _complete_extent(self, descriptor: int, entry: Entry, extent: Extent, held: int) -> None:
        """It is written: note it, after the file has its looks if this was its last part."""
        is_last = self._covers(entry, extent)
        if is_last:
            if held < entry.size:  # it has holes, perhaps at its end, or came in parts
                os.ftruncate(descriptor, entry.size)
            os.fchmod(descriptor, entry.mode)
            os.utime(descriptor, ns=(entry.time, entry.time))
        self.extents.add(extent, held, is_last=is_last)

    def _covers(self, entry: Entry, extent: Extent) -> bool:
        """Whether the file is whole with this, and was not before."""
        number = extent.number
        with self._lock:
            if self._is_done[number]:
                return False
            if extent.length < entry.size:
                parts = self._parts.setdefault(number, [])
                parts.append((extent.offset, extent.offset + extent.length))
                self._sums[number] = self._sums.get(number, 0) + extent.length
                if self._sums[number] < entry.size or not _is_whole(parts, entry.size):
                    return False
                del self._parts[number], self._sums[number]
            self._is_done[number] = 1
            return True


def _is_whole(parts: List[Tuple[int, int]], size: int) -> bool:
    at = 0
    for begin, end in sorted(parts):
        if begin > at:
            return False
        at = max(at, end)
    return at >= size


def copy_range(source: int, target: int, offset: int, length: int) -> None:
    """`length` bytes at `offset` of one open file to the same place of another. Raises OSError, EOFError."""
    end = offset + length
    while offset < end:
        try:
            count = os.copy_file_range(source, target, end - offset, offset, offset)
        except OSError as error:
            if error.errno not in CANNOT:
                raise
            break
        if not count:
            break  # some file systems say so instead of an error
        offset += count
    while offset < end:
        data = os.pread(source, min(BLOCK, end - offset), offset)
        if not data:
            raise EOFError
        rest = memoryview(data)
        while rest:
            count = os.pwrite(target, rest, offset)
            rest, offset = rest[count:], offset + count
