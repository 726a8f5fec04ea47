"""Counts staged data at submit, in several threads and for a few seconds at most.

Nothing is kept for each file, as `fs.scan` does on nodes: ten million files would take gigabytes here.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from serried.fs import copy, tree
from serried.fs.adaptive_pool import Crew

THREADS = 16
TICK_SECONDS = 0.2

Tick = Callable[["Count"], None]


@dataclass
class Count:
    bytes: int = 0
    held: int = 0
    """Bytes on disk: holes do not count, and a file with several names counts once."""
    files: int = 0
    """Everything except folders."""
    unreadable: list[OSError] = field(default_factory=list)
    is_whole: bool = True
    """False if the time ended before all files were counted."""


class _OutOfTimeError(Exception):
    pass


class _DatasetCounter:
    def __init__(self, root: str, ends_at: float, tick: Tick) -> None:
        self.total = Count()
        self._root = os.fsencode(root)
        self._ends_at, self._tick = ends_at, tick
        self._ticked_at = time.monotonic()
        self._groups = {os.getegid(), *os.getgroups()}
        self._counted: set[tuple[int, int]] = set()
        """Files with several names."""
        self._lock = threading.Lock()

    def add(self, path: bytes, state: os.stat_result) -> None:
        if time.monotonic() > self._ends_at:
            raise _OutOfTimeError
        if stat.S_ISDIR(state.st_mode):
            return
        file = (state.st_dev, state.st_ino)
        with self._lock:
            self.total.bytes += state.st_size
            self.total.files += 1
            if file not in self._counted:
                self.total.held += copy.held_bytes(state)
            if state.st_nlink > 1:
                self._counted.add(file)
        full_path = self._root + b"/" + path if path else self._root
        if stat.S_ISREG(state.st_mode) and not self._may_read(full_path, state):
            self.add_unreadable(full_path, PermissionError(errno.EACCES, os.strerror(errno.EACCES)))

    def add_unreadable(self, path: bytes, error: OSError) -> None:
        error.filename = os.fsdecode(path)
        self.total.unreadable.append(error)

    def beat(self) -> None:
        if time.monotonic() - self._ticked_at >= TICK_SECONDS:
            self._ticked_at = time.monotonic()
            self._tick(self.total)

    def _may_read(self, path: bytes, state: os.stat_result) -> bool:
        """Decide by the mode, which needs no further call. An access control list may allow what the mode does not."""
        user = os.geteuid()
        is_group = state.st_gid in self._groups
        bit = stat.S_IRUSR if user == state.st_uid else stat.S_IRGRP if is_group else stat.S_IROTH
        return user == 0 or bool(state.st_mode & bit) or os.access(path, os.R_OK)


def count(path: str, seconds: float, tick: Tick = lambda _: None) -> Count:
    """The size of the file or folder `path`, which exists. Links below it are not followed."""
    counter = _DatasetCounter(path, time.monotonic() + seconds, tick)
    state = Path(path).stat()
    if stat.S_ISDIR(state.st_mode):
        try:
            tree.visit(os.fsencode(path), Crew(THREADS, counter.beat), counter.add, counter.add_unreadable)
        except _OutOfTimeError:
            counter.total.is_whole = False
    else:
        counter.add(b"", state)
    return counter.total
