"""Removes a folder and its content, whatever its modes are and however deep it is. No link is followed."""

from __future__ import annotations

import contextlib
import itertools
import os
import stat
import time
from pathlib import Path
from typing import Optional

AT_ONCE = 4096
"""How many entries of a folder are held in memory."""
DEEP = 48
"""Each level keeps a folder open, so deeper folders are first moved to the top."""


def remove(path: Path, until: Optional[float] = None) -> bool:
    """Remove a file, a link, or a folder with its content. Returns whether nothing is left.

    Removal ends at `until` on the monotonic clock. Mount points stay, with the content of what is mounted there.
    """
    try:
        if not stat.S_ISDIR(path.lstat().st_mode):
            path.unlink()
            return True
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


class _TimeIsUpError(OSError):
    pass


class _Removal:
    def __init__(self, top: int, until: Optional[float]) -> None:
        self._top = top
        self._device = os.fstat(top).st_dev
        self._until = until
        self._moved = itertools.count()

    def empty(self, folder: int, depth: int) -> None:
        """Raises _TimeIsUpError. An entry that cannot be removed stays, and so does its folder."""
        is_done = False
        while not is_done:
            with os.scandir(folder) as entries:
                batch = list(itertools.islice(entries, AT_ONCE))
            removed = [self._remove(entry, folder, depth) for entry in batch]
            is_done = not any(removed)

    def _remove(self, entry: "os.DirEntry[str]", folder: int, depth: int) -> bool:
        if self._until is not None and time.monotonic() > self._until:
            raise _TimeIsUpError
        try:
            if entry.is_dir(follow_symlinks=False):
                self._remove_folder(entry.name, folder, depth)
            else:
                os.unlink(entry.name, dir_fd=folder)
        except _TimeIsUpError:
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
    """Open a folder, with permissions to list it and to remove its entries."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        descriptor = os.open(name, flags, dir_fd=outer)
    except PermissionError:
        if not stat.S_ISDIR(os.lstat(name, dir_fd=outer).st_mode):
            raise
        os.chmod(name, 0o700, dir_fd=outer)
        descriptor = os.open(name, flags, dir_fd=outer)
    if os.fstat(descriptor).st_mode & 0o700 != 0o700:
        with contextlib.suppress(OSError):
            os.fchmod(descriptor, 0o700)
    return descriptor
