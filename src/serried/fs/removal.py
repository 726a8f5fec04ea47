"""Remove a folder with all that is in it: whatever its modes are, however deep it is, no link followed."""

from __future__ import annotations

import contextlib
import itertools
import os
import stat
import time
from pathlib import Path
from typing import Optional

AT_ONCE = 4096
"""Entries of a folder that are held in memory."""
DEEP = 48
"""Each level is an open folder: what is further down is moved up first."""


def remove(path: Path, until: Optional[float] = None) -> bool:
    """Remove `path`, a folder; whether nothing of it is left.

    `until` on the monotonic clock it stops. What another file system is mounted on stays, with all that is in it.
    """
    try:
        top = _open(str(path), None)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    try:
        _Removal(top, until).empty(top, 0)
        path.rmdir()
    except OSError:
        return False
    finally:
        os.close(top)
    return True


class OutOfTimeError(OSError):
    """The rest stays for later."""


class _Removal:
    def __init__(self, top: int, until: Optional[float]) -> None:
        self._top = top
        self._device = os.fstat(top).st_dev
        self._until = until
        self._moved = itertools.count()

    def empty(self, folder: int, depth: int) -> None:
        """Raises OutOfTimeError. What cannot be removed stays, and keeps its folder."""
        is_done = False
        while not is_done:
            with os.scandir(folder) as entries:
                batch = list(itertools.islice(entries, AT_ONCE))
            removed = [self._remove(entry, folder, depth) for entry in batch]
            is_done = not any(removed)

    def _remove(self, entry: "os.DirEntry[str]", folder: int, depth: int) -> bool:
        if self._until is not None and time.monotonic() > self._until:
            raise OutOfTimeError
        try:
            if entry.is_dir(follow_symlinks=False):
                self._remove_folder(entry.name, folder, depth)
            else:
                os.unlink(entry.name, dir_fd=folder)
        except OutOfTimeError:
            raise
        except OSError:
            return False
        return True

    def _remove_folder(self, name: str, outer: int, depth: int) -> None:
        inner = _open(name, outer)
        try:
            if os.fstat(inner).st_dev != self._device:
                raise OSError(f"{name}: mounted")
            if depth >= DEEP:
                os.rename(name, f".{next(self._moved)}.{os.urandom(4).hex()}", src_dir_fd=outer, dst_dir_fd=self._top)
                return
            self.empty(inner, depth + 1)
        finally:
            os.close(inner)
        os.rmdir(name, dir_fd=outer)


def _open(name: str, outer: Optional[int]) -> int:
    """A folder that we may look into and take from, whoever has made it something else."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        found = os.open(name, flags, dir_fd=outer)
    except PermissionError:
        if not stat.S_ISDIR(os.lstat(name, dir_fd=outer).st_mode):
            raise
        os.chmod(name, 0o700, dir_fd=outer)
        found = os.open(name, flags, dir_fd=outer)
    if os.fstat(found).st_mode & 0o700 != 0o700:
        with contextlib.suppress(OSError):
            os.fchmod(found, 0o700)
    return found
