"""How much is to be staged: counted where it is, by several threads, for a few seconds at most.

Nothing is kept of each file, as `contract.scanning` does for nodes: of ten million that would be gigabytes here.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

THREADS = 16
"""On a shared file system each look is a round trip, of which the servers can do many at once."""
TICK_SECONDS = 0.2

Tick = Callable[["Count"], None]


@dataclass
class Count:
    bytes: int = 0
    held: int = 0
    """Bytes without the holes of sparse files, those of hard links once; as the file system packs them, if it does."""
    files: int = 0
    """All but folders."""
    unreadable: list[OSError] = field(default_factory=list)
    is_whole: bool = True
    """False: time was over before all was seen."""

    def add(self, path: str, state: os.stat_result, groups: set[int], twins: set[tuple[int, int]]) -> None:
        self.bytes += state.st_size
        self.files += 1
        number = (state.st_dev, state.st_ino)
        if number not in twins:
            self.held += _held(state)
        if state.st_nlink > 1:
            twins.add(number)
        if stat.S_ISREG(state.st_mode) and not _may_read(path, state, groups):
            self.unreadable.append(_refused(path))

    def merge(self, other: Count) -> None:
        self.bytes += other.bytes
        self.held += other.held
        self.files += other.files
        self.unreadable += other.unreadable


def count(path: str, seconds: float, tick: Tick = lambda _: None) -> Count:
    """What is in the file or folder `path`, which is there. Links below it are not followed."""
    from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait

    total, over = Count(), threading.Event()
    groups = {os.getegid(), *os.getgroups()}
    twins: set[tuple[int, int]] = set()
    state = Path(path).stat()
    if not stat.S_ISDIR(state.st_mode):
        total.add(path, state, groups, twins)
        return total
    deadline = time.monotonic() + seconds
    with ThreadPoolExecutor(THREADS) as pool:
        waiting = {pool.submit(_look, path, groups, twins, over)}
        try:
            while waiting and time.monotonic() < deadline:
                done, waiting = wait(waiting, TICK_SECONDS, FIRST_COMPLETED)
                for found, folders in (one.result() for one in done):
                    total.merge(found)
                    waiting |= {pool.submit(_look, folder, groups, twins, over) for folder in folders}
                tick(total)
        finally:
            over.set()
    total.is_whole = not waiting
    return total


def _look(folder: str, groups: set[int], twins: set[tuple[int, int]], over: threading.Event) -> tuple[Count, list[str]]:
    """What is in a folder, and the folders in it, which are not counted."""
    found, folders = Count(), []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if over.is_set():
                    break
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                else:
                    with contextlib.suppress(FileNotFoundError):  # it went meanwhile
                        found.add(entry.path, entry.stat(follow_symlinks=False), groups, twins)
    except FileNotFoundError:
        pass
    except OSError as error:
        found.unreadable.append(error)
    return found, folders


def _held(state: os.stat_result) -> int:
    return min(state.st_size, state.st_blocks * 512)


def _may_read(path: str, state: os.stat_result, groups: set[int]) -> bool:
    """By its mode, which costs nothing more; where that says no, a list of access rights may say yes."""
    who = os.geteuid()
    bit = stat.S_IRUSR if who == state.st_uid else stat.S_IRGRP if state.st_gid in groups else stat.S_IROTH
    return who == 0 or bool(state.st_mode & bit) or os.access(path, os.R_OK)


def _refused(path: str) -> OSError:
    return PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
