"""Sizes of files and folders on disk. A file with several names counts once, and holes do not count."""

from __future__ import annotations

import contextlib
import math
import os
import stat
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from serried.base import copy, tree
from serried.base.text import iso
from serried.schema.outputs import Tree

_TELL_EVERY = 1000


@dataclass(frozen=True)
class Size:
    bytes: int = 0
    files: int = 0
    """Including folders and links: each takes an inode of a quota."""
    oldest: float | None = None
    newest: float | None = None
    """Modification times of files."""
    unread: int = 0
    """Folders that could not be read."""

    def __add__(self, other: Size) -> Size:
        return Size(
            self.bytes + other.bytes,
            self.files + other.files,
            min((time for time in (self.oldest, other.oldest) if time is not None), default=None),
            max((time for time in (self.newest, other.newest) if time is not None), default=None),
            self.unread + other.unread,
        )

    def to_json(self) -> dict[str, Any]:
        moments = {"oldest": iso(self.oldest), "newest": iso(self.newest)}
        return {"bytes": self.bytes, "files": self.files, **moments, "unread": self.unread}


def measure(path: Path, tell: Callable[[int], None] = lambda _: None, but: Iterable[Path] = ()) -> Size:
    """The size of a file, or of a folder without the paths in `but`. `tell` receives the count of files so far."""
    counter = _DiskCounter(tell)
    with contextlib.suppress(OSError):
        state = path.lstat()
        counter.add(state)
        if stat.S_ISDIR(state.st_mode):
            for _, state in tree.states(str(path), counter.add_unread, frozenset(map(str, but))):
                counter.add(state)
    return counter.size


def measure_trees(found: Iterable[Tree], tell: Callable[[int], None] = lambda _: None) -> tuple[Size, Size]:
    """The sizes of the outputs in working trees, and of everything else there."""
    outputs, rest = _DiskCounter(tell), _DiskCounter(tell)
    for working_tree in found:
        with contextlib.suppress(FileNotFoundError):
            rest.add(working_tree.path.lstat())
        for _, state, is_output in working_tree.walk(outputs.add_unread):
            (outputs if is_output else rest).add(state)
    return outputs.size, rest.size


class _DiskCounter:
    def __init__(self, tell: Callable[[int], None]) -> None:
        self._bytes = self._files = self._unread = 0
        self._oldest, self._newest = math.inf, -math.inf
        self._tell = tell
        self._counted: set[tuple[int, int]] = set()
        """Files with several names."""

    @property
    def size(self) -> Size:
        has_files = self._oldest <= self._newest
        oldest, newest = (self._oldest, self._newest) if has_files else (None, None)
        return Size(self._bytes, self._files, oldest, newest, self._unread)

    def add_unread(self, _: OSError) -> None:
        self._unread += 1

    def add(self, state: os.stat_result) -> None:
        is_folder, file = stat.S_ISDIR(state.st_mode), (state.st_dev, state.st_ino)
        if not is_folder and state.st_nlink > 1:
            if file in self._counted:
                return
            self._counted.add(file)
        self._files += 1
        if self._files % _TELL_EVERY == 0:
            self._tell(self._files)
        if not is_folder:
            self._bytes += copy.held_bytes(state) or state.st_size  # some file systems report no blocks
            self._oldest, self._newest = min(self._oldest, state.st_mtime), max(self._newest, state.st_mtime)


def newest_within(path: Path) -> float:
    """When `path` or one of its direct entries last changed; 0 if it does not exist."""
    times = [0.0]
    with contextlib.suppress(OSError):
        times.append(path.lstat().st_mtime)
        if path.is_dir() and not path.is_symlink():
            times += (state.st_mtime for _, state in tree.states_in(str(path), lambda _: None))
    return max(times)
