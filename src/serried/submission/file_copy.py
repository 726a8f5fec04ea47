"""Copies one file: verified, whole or not at all, and on from where an earlier copy was cut short."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import io
import os
import stat
import zlib
from collections.abc import Callable
from pathlib import Path

CHUNK = 1 << 20
TRIES = 3
"""How often a file is copied that changes meanwhile: the run may still be writing."""

Observe = Callable[[int], None]
"""Hears of every so many bytes that are done."""


def copy_file(path: Path, target: Path, observe: Observe) -> None:
    """Beside its place first, under a name by which the same copy finds it again if this one is cut short."""
    for _ in range(TRIES):
        with path.open("rb", buffering=0) as source:
            before = os.fstat(source.fileno())
            aside = target.with_name(aside_name(path, before.st_size, before.st_mtime_ns))
            with aside.open("a+b", buffering=0) as made:
                if not _hold(made, aside):
                    if state(target) == (before.st_size, before.st_mtime_ns):
                        observe(before.st_size)
                        return
                    has_arrived = False
                    continue
                sent = _pour(source, made, before.st_size, observe)
                has_arrived = sent == (_checksum(made), made.tell())
                after = os.fstat(source.fileno())
                is_steady = (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns)
                if is_steady and has_arrived and sent[1] == after.st_size:
                    if before.st_mode & stat.S_IXUSR:
                        mode = aside.stat().st_mode
                        aside.chmod(mode | (mode & 0o444) >> 2)
                    os.utime(aside, ns=(before.st_mtime_ns, before.st_mtime_ns))
                    aside.replace(target)
                    return
                aside.unlink()
    raise OSError(errno.EAGAIN, "it changes all the time" if has_arrived else "what arrives is not what was sent")


def _hold(made: io.FileIO, aside: Path) -> bool:
    """Wait until nobody else copies the same file to the same place; False where somebody just has."""
    with contextlib.suppress(OSError):  # a file system without locks: the checksum finds two writers out
        fcntl.flock(made, fcntl.LOCK_EX)
    try:
        return aside.stat().st_ino == os.fstat(made.fileno()).st_ino
    except FileNotFoundError:
        return False


def state(path: Path) -> tuple[int, int] | None:
    try:
        state = path.lstat()
    except OSError:
        return None
    return state.st_size, state.st_mtime_ns


def _pour(source: io.FileIO, made: io.FileIO, size: int, observe: Observe) -> tuple[int, int]:
    """Add to `made` what `source` has more of its first `size` bytes; checksum and length of the whole."""
    crc32, length = _checksum(made), made.tell()
    observe(length)
    source.seek(length)
    while chunk := source.read(min(CHUNK, size - length)):
        crc32 = zlib.crc32(chunk, crc32)
        length += len(chunk)
        rest = memoryview(chunk)
        while rest:
            rest = rest[made.write(rest) or 0 :]
        observe(len(chunk))
    os.fsync(made.fileno())
    return crc32, length


def _checksum(file: io.FileIO) -> int:
    """Of the whole; the place in the file is its end then."""
    crc32 = 0
    file.seek(0)
    while chunk := file.read(CHUNK):
        crc32 = zlib.crc32(chunk, crc32)
    return crc32


def aside_name(path: Path, size: int, changed: int) -> str:
    told = f"{path}\0{size}\0{changed}".encode("utf-8", "surrogateescape")
    return f".serried-{hashlib.sha256(told).hexdigest()[:16]}.part"
