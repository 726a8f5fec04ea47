"""Locks on entries of the node's own disk: `flock` on a file beside the entry, `NAME.lock`.

`flock` is reliable here because the disk is local, and a lock ends with its process. The next job deletes entries
without a holder.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from pathlib import Path
from typing import Callable, Iterator

from serried.base import NamedTuple

SHARED = fcntl.LOCK_SH
ALONE = fcntl.LOCK_EX
AT_ONCE = fcntl.LOCK_NB
"""Raise BlockingIOError instead of waiting."""
SUFFIX = ".lock"
PART = ".part"
"""The suffix of an entry that is being created or deleted; under its own name an entry is complete."""
WAIT_SECONDS = 0.1


class Maker(NamedTuple):
    name: str
    alive: int
    """Changes with each sign of life."""


def hold(path: Path, kind: int) -> int:
    """Hold the lock of `path` until the returned descriptor is closed. Checks that the lock file was not replaced.

    Raises OSError; BlockingIOError with AT_ONCE.
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
    """Hold the lock of a missing entry exclusively, to create it; hold that of an existing entry together with others.

    `name` identifies the creating run to processes that wait. `waits` is called repeatedly while this process waits.
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
        os.close(lock)  # the entry was created or deleted meanwhile; its creator may be about to share it


def maker(path: Path) -> Maker:
    """The process that creates or deletes the entry, as far as it is known."""
    try:
        it = lock_of(path).stat()
        return Maker(lock_of(path).read_text(encoding="utf-8", errors="replace"), it.st_mtime_ns)
    except OSError:
        return Maker("", 0)


def live(path: Path) -> None:
    """Give a sign of life to processes that wait for the entry."""
    with contextlib.suppress(OSError):
        os.utime(lock_of(path))


def _sign(lock: int, name: str) -> None:
    with contextlib.suppress(OSError):  # optional, may fail on a full disk
        os.ftruncate(lock, 0)
        os.pwrite(lock, name.encode("utf-8", "replace"), 0)


def remove_unused(path: Path, remove: Callable[[Path], None], *, dry: bool = False) -> bool:
    """Call `remove` and delete the lock, unless a process holds it. Returns whether it was deleted.

    No process can take the lock meanwhile. With `dry`, only return whether the entry would be deleted.
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
    """The entries of `folder`, each of which may have a lock."""
    with contextlib.suppress(OSError):
        for name in sorted({name.removesuffix(SUFFIX) for name in os.listdir(folder)}):  # noqa: PTH208 - names are enough
            yield folder / name


def lock_of(path: Path) -> Path:
    return path.with_name(path.name + SUFFIX)


def part_of(path: Path) -> Path:
    return path.with_name(path.name + PART)
