"""Files that `torch.load` reads, made without torch: a zip of stored records, each at a multiple of 64 bytes.

The format is torch's own (`torch.serialization`, format 3): `data.pkl` names tensors, `data/K` holds their bytes. What
is written here in one pass, the checksum of the whole file included, the zipfile module would write in two.
Sizes and places are given as zip64 always: one form to test, whatever the size.
"""

from __future__ import annotations

import os
import struct
import sys
import zlib
from typing import Iterable, List, Tuple, Union

CHUNK = 1 << 20
ALIGNMENT = 64
FOLDER = "archive"

Buffer = Union[bytes, memoryview]

_LOCAL = struct.Struct("<4s5H3I2H")
_CENTRAL = struct.Struct("<4s6H3I5H2I")
_END64 = struct.Struct("<4sQ2H2I4Q")
_LOCATOR = struct.Struct("<4sIQI")
_END = struct.Struct("<4s4H2IH")
_VERSION = 45
_FLAGS = 0x800  # names are UTF-8
_DAY = 0x21  # 1 January 1980: the same state makes the same file
_MAXIMUM = 0xFFFFFFFF
_PADDING = 0x4246  # the id that torch gives to its padding


class Sink:
    """A file that is only appended to, and knows its size and checksum."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.size = 0
        self.crc32 = 0

    def write(self, buffer: Buffer) -> None:
        view = memoryview(buffer)
        for start in range(0, len(view), CHUNK):
            chunk = view[start : start + CHUNK]
            self.crc32 = zlib.crc32(chunk, self.crc32)
            while chunk:
                chunk = chunk[os.write(self._descriptor, chunk) :]
        self.size += len(view)


def records(pickle: Buffer, tensors: Iterable[Buffer]) -> List[Tuple[str, Buffer]]:
    """What `torch.load` expects in an archive."""
    return [
        ("data.pkl", pickle),
        ("byteorder", sys.byteorder.encode()),
        *((f"data/{key}", data) for key, data in enumerate(tensors)),
        ("version", b"3\n"),
    ]


def write(sink: Sink, content: Iterable[Tuple[str, Buffer]]) -> None:
    entries: List[Tuple[bytes, int, int, int]] = []
    for name, data in content:
        encoded = f"{FOLDER}/{name}".encode()
        crc32 = _checksum(data)
        entries.append((encoded, crc32, len(data), sink.size))
        sink.write(_local(encoded, crc32, len(data), sink.size))
        sink.write(data)
    start = sink.size
    for entry in entries:
        sink.write(_central(*entry))
    sink.write(_end(len(entries), start, sink.size - start))


def _checksum(data: Buffer) -> int:
    """In pieces: zlib holds on to the interpreter for short buffers and lets it go for long ones."""
    value = 0
    view = memoryview(data)
    for start in range(0, len(view), CHUNK):
        value = zlib.crc32(view[start : start + CHUNK], value)
    return value


def _local(name: bytes, crc32: int, size: int, offset: int) -> bytes:
    wide = struct.pack("<HHQQ", 1, 16, size, size)
    padding = -(offset + _LOCAL.size + len(name) + len(wide) + 4) % ALIGNMENT
    extra = wide + struct.pack("<HH", _PADDING, padding) + b"Z" * padding
    head = (b"PK\3\4", _VERSION, _FLAGS, 0, 0, _DAY, crc32, _MAXIMUM, _MAXIMUM, len(name), len(extra))
    return _LOCAL.pack(*head) + name + extra


def _central(name: bytes, crc32: int, size: int, offset: int) -> bytes:
    extra = struct.pack("<HHQQQ", 1, 24, size, size, offset)
    head = (b"PK\1\2", _VERSION, _VERSION, _FLAGS, 0, 0, _DAY, crc32, _MAXIMUM, _MAXIMUM, len(name), len(extra))
    return _CENTRAL.pack(*head, 0, 0, 0, 0, _MAXIMUM) + name + extra


def _end(count: int, start: int, size: int) -> bytes:
    end64 = _END64.pack(b"PK\6\6", _END64.size - 12, _VERSION, _VERSION, 0, 0, count, count, size, start)
    locator = _LOCATOR.pack(b"PK\6\7", 0, start + size, 1)
    short = min(count, 0xFFFF)
    return end64 + locator + _END.pack(b"PK\5\6", 0, 0, short, short, min(size, _MAXIMUM), min(start, _MAXIMUM), 0)
