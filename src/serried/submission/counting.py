"""How much is to be staged: counted where it is, by several threads, for a few seconds at most."""

from __future__ import annotations

import errno
import os
import stat
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from concurrent.futures import Future

THREADS = 16
"""On a shared file system each look is a round trip, of which the servers can do many at once."""
TICK_SECONDS = 0.2

Tick = Callable[["Count"], None]


@dataclass
class Count:
    bytes: int = 0
    held: int = 0
    """Bytes without the holes of sparse files; where the file system packs what it holds, as it is packed."""
    files: int = 0
    """All but folders."""
    unreadable: list[OSError] = field(default_factory=list)
    is_whole: bool = True
    """False: time was over before all was seen."""


def count(path: str, seconds: float, tick: Tick = lambda _: None) -> Count:
    """What is in the file or folder `path`, which is there. Links below it are not followed."""
    total, lock, over = Count(), threading.Lock(), threading.Event()
    deadline = time.monotonic() + seconds
    state = Path(path).stat()
    if not stat.S_ISDIR(state.st_mode):
        return Count(state.st_size, _held(state), 1, [] if os.access(path, os.R_OK) else [_refused(path)])

    def look(folder: str) -> list[str]:
        """Count what is in a folder, but for the folders in it."""
        if over.is_set():
            return []
        size, held, files = 0, 0, 0
        folders: list[str] = []
        unreadable: list[OSError] = []
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
                        continue
                    files += 1
                    state = entry.stat(follow_symlinks=False)
                    size += state.st_size
                    held += _held(state)
                    if over.is_set():
                        break
        except OSError as error:
            unreadable.append(error)
        with lock:
            total.bytes += size
            total.held += held
            total.files += files
            total.unreadable += unreadable
        return folders

    from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait

    with ThreadPoolExecutor(THREADS) as pool:
        waiting: set[Future[list[str]]] = {pool.submit(look, path)}
        try:
            while waiting:
                done, waiting = wait(waiting, TICK_SECONDS, FIRST_COMPLETED)
                waiting |= {pool.submit(look, folder) for one in done for folder in one.result()}
                tick(total)
                if time.monotonic() > deadline:
                    total.is_whole = False
                    break
        finally:
            over.set()
    return total


def _held(state: os.stat_result) -> int:
    return min(state.st_size, state.st_blocks * 512)


def _refused(path: str) -> OSError:
    return PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
