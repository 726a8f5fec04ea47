"""A file of a checkpoint, in the memory that the rank and the writer share, as it will be on the disk.

The rank copies each tensor to its place in the file's image. The writer fills in headers and checksums and writes the
image in large chunks, which needs no further copy: past the page cache, where the file system allows it. Standard
library only.

Files are in torch's own format (`torch.serialization`, format 3): a zip of stored records, each at a multiple of 64
bytes. `data/K` holds the bytes of a tensor, `data.pkl` names the tensors. As in torch's own files, a record's checksum
follows it, so that a chunk is final once the records that end in it have theirs. Sizes and offsets are always zip64:
one form to test.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
import sys
import zlib
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Any, Deque, Dict, Iterable, List, NamedTuple

from serried.base.files import GROUP_FILE

CHUNK = 16 << 20
"""Bytes per write: enough for each disk of a striped file system. A multiple of every page size."""
PIECE = 4 << 20
"""Bytes that a thread takes the checksum of at a time."""
PAGE = 1 << 16
"""A multiple of every page size: images start at multiples of it in the shared memory."""

_DIRECT = getattr(os, "O_DIRECT", 0)  # not on macOS
_REFUSED = (errno.EINVAL, errno.EOPNOTSUPP)
"""A file system that always uses the page cache."""
_PENDING_CHUNKS = 4
_ALIGNMENT = 64
_FOLDER = "archive"
_FORMAT = b"3\n"

_LOCAL = struct.Struct("<4s5H3I2H")
_LOCAL_EXTRA = struct.Struct("<HHQQHH")
_DESCRIPTOR = struct.Struct("<4sIQQ")
_CENTRAL = struct.Struct("<4s6H3I5H2I")
_CENTRAL_EXTRA = struct.Struct("<HHQQQ")
_END64 = struct.Struct("<4sQ2H2I4Q")
_LOCATOR = struct.Struct("<4sIQI")
_END = struct.Struct("<4s4H2IH")
_VERSION = 45
_FLAGS = 0x808  # names are UTF-8, and a descriptor with the checksum follows the record
_DAY = 0x21  # 1 January 1980: equal states give equal files
_MAXIMUM = 0xFFFFFFFF
_POLYNOMIAL = 0xEDB88320  # of CRC-32, bits reversed
_PADDING = 0x4246  # the id that torch gives to its padding


class ArchiveRecord(NamedTuple):
    """A record of an archive. Offsets are those in the file."""

    name: bytes
    header: int
    data: int
    end: int
    """Of its data: the descriptor follows."""


class ImageLayout:
    """Where an archive has its records: first the tensors, in the order of `add_tensor`, then the rest by `finish`."""

    def __init__(self) -> None:
        self.records: List[ArchiveRecord] = []
        self.end = 0
        """Of the records so far."""

    def add_tensor(self, size: int) -> int:
        """Returns the offset of its data."""
        return self._add(f"data/{len(self.records)}", size)

    def finish(self, pickle_size: int) -> int:
        """Add what follows the tensors. Returns the offset of the pickle."""
        offset = self._add("data.pkl", pickle_size)
        self._add("byteorder", len(sys.byteorder))
        self._add("version", len(_FORMAT))
        return offset

    @property
    def size(self) -> int:
        """Of the finished file."""
        entries = sum(_CENTRAL.size + _CENTRAL_EXTRA.size + len(record.name) for record in self.records)
        return self.end + entries + _END64.size + _LOCATOR.size + _END.size

    def _add(self, name: str, size: int) -> int:
        path, header = f"{_FOLDER}/{name}".encode(), self.end
        data = header + _LOCAL.size + len(path) + _LOCAL_EXTRA.size
        data += -data % _ALIGNMENT
        self.records.append(ArchiveRecord(path, header, data, data + size))
        self.end = data + size + _DESCRIPTOR.size
        return data


def write_archive(path: Path, image: memoryview, tensor_sizes: Iterable[int], pickle_size: int) -> Dict[str, Any]:
    """Write an archive durably, and return its `size` and `crc32`. `image` has the tensors and the pickle in place.

    Checksums are taken while earlier chunks are on their way to the disk.
    """
    layout = ImageLayout()
    for size in tensor_sizes:
        layout.add_tensor(size)
    layout.finish(pickle_size)
    for record, content in zip(layout.records[-2:], (sys.byteorder.encode(), _FORMAT)):
        image[record.data : record.end] = content
    crc32, entries = 0, []
    with ThreadPoolExecutor(2) as threads, _ChunkedFile(path, image) as file:
        for record in layout.records:
            image[record.header : record.data] = _local_header(record)
            starts = range(record.data, record.end, PIECE)
            pieces = [image[start : min(start + PIECE, record.end)] for start in starts]
            checksums = (threads.map if len(pieces) > 1 else map)(zlib.crc32, pieces)
            file.write(record.end)
            own = 0
            for piece, checksum in zip(pieces, checksums):
                own = joined_crc32(own, checksum, len(piece))
            size = record.end - record.data
            descriptor = _DESCRIPTOR.pack(b"PK\7\x08", own, size, size)
            image[record.end : record.end + _DESCRIPTOR.size] = descriptor
            crc32 = zlib.crc32(image[record.header : record.data], crc32)
            crc32 = zlib.crc32(descriptor, joined_crc32(crc32, own, size))
            entries.append(_central_header(record, own))
        directory = b"".join(entries)
        tail = directory + _end(len(entries), layout.end, len(directory))
        image[layout.end : layout.size] = tail
        file.finish(layout.size)
    return {"size": layout.size, "crc32": f"{zlib.crc32(tail, crc32):08x}"}


class _ChunkedFile:
    """Writes an image from its start, while the end of it is not final yet. Threads keep the disk busy."""

    def __init__(self, path: Path, image: memoryview) -> None:
        self._image = image
        self._begun = 0
        self._pending: Deque[Future[None]] = deque()
        self._threads = ThreadPoolExecutor(2)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        self._is_direct = True
        try:
            self._descriptor = os.open(path, flags | _DIRECT, GROUP_FILE)
        except OSError as error:
            if error.errno not in _REFUSED:
                raise
            self._descriptor = os.open(path, flags, GROUP_FILE)
            self._is_direct = False

    def __enter__(self) -> _ChunkedFile:  # noqa: PYI034 - Self is newer than Python 3.9
        return self

    def write(self, end: int) -> None:
        """Begin to write the chunks before `end`."""
        while end - self._begun >= CHUNK:
            if len(self._pending) == _PENDING_CHUNKS:
                self._pending.popleft().result()
            self._pending.append(self._threads.submit(self._write, self._begun, self._begun + CHUNK))
            self._begun += CHUNK

    def finish(self, end: int) -> None:
        """Write the rest, and wait for the disk."""
        self.write(end)
        while self._pending:
            self._pending.popleft().result()
        self._use_page_cache()  # the last chunk ends within a page
        self._write(self._begun, end)
        os.fsync(self._descriptor)

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown(cancel_futures=True)
        os.close(self._descriptor)

    def _write(self, start: int, end: int) -> None:
        offset = start
        while offset < end:
            was_direct = self._is_direct
            try:
                offset += os.pwrite(self._descriptor, self._image[offset:end], offset)
            except OSError as error:
                if error.errno not in _REFUSED or not was_direct:
                    raise
                self._use_page_cache()
        if hasattr(os, "posix_fadvise"):  # of pages in the cache: the disk begins with them at once
            with contextlib.suppress(OSError):
                os.posix_fadvise(self._descriptor, start, end - start, os.POSIX_FADV_DONTNEED)

    def _use_page_cache(self) -> None:
        """Some file systems refuse to do without only at the first write."""
        flags = fcntl.fcntl(self._descriptor, fcntl.F_GETFL)
        fcntl.fcntl(self._descriptor, fcntl.F_SETFL, flags & ~_DIRECT)
        self._is_direct = False


def joined_crc32(first: int, second: int, size: int) -> int:
    """The CRC-32 of two texts one after the other, by those of each and the second one's size in bytes.

    A CRC is the remainder of a polynomial over GF(2): `first` moves up by 8 * `size` powers (RFC 1952, section 8).
    """
    return _product(_power(size), first) ^ second


@lru_cache
def _power(size: int) -> int:
    """The remainder of x to the power of 8 * `size`. The highest of its 32 bits belongs to x to the power of 0."""
    result, square = 1 << 31, 1 << 23
    while size:
        if size & 1:
            result = _product(square, result)
        square = _product(square, square)
        size >>= 1
    return result


def _product(one: int, other: int) -> int:
    result = 0
    for bit in range(31, -1, -1):
        if one >> bit & 1:
            result ^= other
        other = other >> 1 ^ (_POLYNOMIAL if other & 1 else 0)
    return result


def _local_header(record: ArchiveRecord) -> bytes:
    size = record.end - record.data
    padding = record.data - record.header - _LOCAL.size - len(record.name) - _LOCAL_EXTRA.size
    extra = _LOCAL_EXTRA.pack(1, 16, size, size, _PADDING, padding) + b"Z" * padding
    head = (b"PK\3\4", _VERSION, _FLAGS, 0, 0, _DAY, 0, _MAXIMUM, _MAXIMUM, len(record.name), len(extra))
    return _LOCAL.pack(*head) + record.name + extra


def _central_header(record: ArchiveRecord, crc32: int) -> bytes:
    size = record.end - record.data
    extra = _CENTRAL_EXTRA.pack(1, 24, size, size, record.header)
    sizes = (_MAXIMUM, _MAXIMUM, len(record.name), len(extra))
    head = (b"PK\1\2", _VERSION, _VERSION, _FLAGS, 0, 0, _DAY, crc32, *sizes)
    return _CENTRAL.pack(*head, 0, 0, 0, 0, _MAXIMUM) + record.name + extra


def _end(count: int, start: int, size: int) -> bytes:
    end64 = _END64.pack(b"PK\6\6", _END64.size - 12, _VERSION, _VERSION, 0, 0, count, count, size, start)
    locator = _LOCATOR.pack(b"PK\6\7", 0, start + size, 1)
    short = min(count, 0xFFFF)
    return end64 + locator + _END.pack(b"PK\5\6", 0, 0, short, short, min(size, _MAXIMUM), min(start, _MAXIMUM), 0)
