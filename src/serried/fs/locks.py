"""Who uses a thing on the node's own disk: `flock` on a file beside it, `NAME.lock`.

To be trusted here, as the disk is the node's own; and a lock goes with its process, however that ends. What nobody
holds any more is removed by the next who comes.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from pathlib import Path
from typing import Callable, Iterator, NamedTuple

SHARED = fcntl.LOCK_SH
ALONE = fcntl.LOCK_EX
AT_ONCE = fcntl.LOCK_NB
"""Or not at all: BlockingIOError."""
SUFFIX = ".lock"
PART = ".part"
"""Of the name under which a thing is made, and removed: under its own it is whole."""
WAIT_SECONDS = 0.1


class Maker(NamedTuple):
    name: str
    alive: int
    """Is another whenever it has said that it is there."""


def hold(path: Path, kind: int) -> int:
    """Hold the lock of `path` until what is returned is closed; it is still the one that others see.

    Raises OSError, BlockingIOError where `kind` says so.
    """
    name = lock_of(path)
    while True:
        held = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(held, kind)
            if name.exists() and os.fstat(held).st_ino == name.stat().st_ino:
                return held
        except OSError:
            os.close(held)
            raise
        os.close(held)


def hold_or_make(path: Path, name: str = "", waits: Callable[[], None] = lambda: None) -> int:
    """Hold the lock of what is to be made alone, and of what is there with others: who uses it does so for hours.

    `name` says who makes it, to those who wait for that meanwhile: `waits` is called again and again then.
    """
    while True:
        is_there = path.exists()
        try:
            lock = hold(path, AT_ONCE | (SHARED if is_there else ALONE))
        except BlockingIOError:
            waits()
            time.sleep(WAIT_SECONDS)
            continue
        if path.exists() == is_there:
            if not is_there:
                _sign(lock, name)
            return lock
        os.close(lock)  # it came, or went, meanwhile: who made it may be about to share it


def maker(path: Path) -> Maker:
    """Who makes it, or takes it away, as far as that is known."""
    try:
        it = lock_of(path).stat()
        return Maker(lock_of(path).read_text(encoding="utf-8", errors="replace"), it.st_mtime_ns)
    except OSError:
        return Maker("", 0)


def live(path: Path) -> None:
    """Say to those who wait that who makes it is there."""
    with contextlib.suppress(OSError):
        os.utime(lock_of(path))


def _sign(lock: int, name: str) -> None:
    with contextlib.suppress(OSError):  # on a full disk, say: it is a courtesy
        os.ftruncate(lock, 0)
        os.pwrite(lock, name.encode("utf-8", "replace"), 0)


def remove_unused(path: Path, remove: Callable[[Path], None], *, dry: bool = False) -> bool:
    """Call `remove`, and remove the lock, if nobody holds it; whether that was done. While it runs nobody can.

    With `dry`: whether it would be.
    """
    if dry:
        return not is_used(path)
    try:
        held = hold(path, ALONE | AT_ONCE)
    except OSError:
        return False
    try:
        _sign(held, "")
        remove(path)
        lock_of(path).unlink()
    except OSError:
        return False
    finally:
        os.close(held)
    return True


def is_used(path: Path) -> bool:
    """Whether somebody holds its lock now."""
    with contextlib.suppress(OSError):
        held = os.open(lock_of(path), os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(held, ALONE | AT_ONCE)
        except BlockingIOError:
            return True
        finally:
            os.close(held)
    return False


def things(folder: Path) -> Iterator[Path]:
    """What has a lock in `folder`, or might have."""
    with contextlib.suppress(OSError):
        for name in sorted({name.removesuffix(SUFFIX) for name in os.listdir(folder)}):  # noqa: PTH208 - names are enough
            yield folder / name


def lock_of(path: Path) -> Path:
    return path.with_name(path.name + SUFFIX)


def part_of(path: Path) -> Path:
    return path.with_name(path.name + PART)
