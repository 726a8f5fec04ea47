"""Archives: their unpacked size as far as they state it.

A zip lists its content. A gzip ends with its unpacked size modulo 4 GiB. A zstd begins with its unpacked size if the
writer knew it: `zstd data.tar` knows the size, `tar --zstd` does not.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import BinaryIO, NamedTuple

ZSTD = b"\x28\xb5\x2f\xfd"
SKIPPED = tuple(bytes([number]) + b"\x2a\x4d\x18" for number in range(0x50, 0x60))
"""The magic numbers of skippable frames, which may precede the first frame of a zstd (pzstd writes them)."""
MOST_SKIPPED = 16
SAMPLE = 4 << 20
"""Bytes at the beginning of a gzip from which `guess` extrapolates."""
MOST_UNPACKED = 64 << 20
"""The most bytes that `guess` unpacks from the sample, which may expand to gigabytes."""
TAR_CONTENT = 0.7
"""The least share of content in a tar. Headers need no space on disk, and small files with long names have many."""


class Least(NamedTuple):
    bytes: int
    files: int
    is_all: bool = False
    """The sizes are exact."""


def least(path: str, kind: str) -> Least:
    """The least unpacked size of an archive of this kind. Raises OSError, and ValueError for an invalid zip."""
    if kind == "zip":
        return _zip(path)
    with Path(path).open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if kind == "squashfs":
            return Least(size, 1)
        stated = _gzip(file, size) if kind == "tar.gz" else _zstd(file) if kind == "tar.zst" else size
        return Least(max(int(stated * TAR_CONTENT), size if kind != "tar" else 0), 1)


def guess(path: str) -> int:
    """The unpacked size of a gzip whose whole content compresses as its beginning does. Raises OSError."""
    import zlib

    with Path(path).open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        beginning = left = file.read(SAMPLE)
    reader, given = zlib.decompressobj(zlib.MAX_WBITS | 16), 0
    try:
        while left and given < MOST_UNPACKED:
            given += len(reader.decompress(left, SAMPLE))
            left = reader.unconsumed_tail
    except zlib.error:
        return size  # a torn file, which unpacking will report
    consumed = len(beginning) - len(left) - len(reader.unused_data)
    return size * given // max(1, consumed)


def _zip(path: str) -> Least:
    import zipfile

    try:
        with zipfile.ZipFile(path) as file:
            listed = file.infolist()
    except (zipfile.BadZipFile, NotImplementedError, EOFError, struct.error) as error:
        raise ValueError(str(error)) from None
    return Least(sum(info.file_size for info in listed), len(listed), is_all=True)


def _gzip(file: BinaryIO, size: int) -> int:
    """The stated size. Of several gzips in one file, as `cat` writes them, that of the last."""
    if size < struct.calcsize("<II"):
        return 0
    file.seek(-4, os.SEEK_END)
    return int(struct.unpack("<I", file.read(4))[0])


def _zstd(file: BinaryIO) -> int:
    """The stated size of the first frame; 0 if the frame does not state it."""
    for _ in range(MOST_SKIPPED):
        magic = file.read(4)
        if magic not in SKIPPED:
            break
        file.seek(int.from_bytes(file.read(4), "little"), os.SEEK_CUR)
    descriptor = file.read(1)
    if magic != ZSTD or not descriptor:
        return 0
    how, is_single, dictionary = descriptor[0] >> 6, descriptor[0] >> 5 & 1, descriptor[0] & 3
    file.seek((not is_single) + (0, 1, 2, 4)[dictionary], os.SEEK_CUR)
    length = (is_single, 2, 4, 8)[how]
    return int.from_bytes(file.read(length), "little") + (256 if how == 1 else 0)
