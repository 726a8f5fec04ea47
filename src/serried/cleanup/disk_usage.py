"""How many bytes and files a folder holds. No link is followed, a file of several names counts once, a hole not."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from serried.protocol.outputs import Tree
from serried.protocol.times import iso

_TELL_EVERY = 1000


@dataclass(frozen=True)
class Size:
    bytes: int = 0
    files: int = 0
    """Folders and links too: each is an inode of somebody's quota."""
    oldest: float | None = None
    newest: float | None = None
    """When a file was changed."""
    unread: int = 0
    """Folders that could not be looked into."""

    def __add__(self, other: Size) -> Size:
        return Size(
            self.bytes + other.bytes,
            self.files + other.files,
            _one(min, self.oldest, other.oldest),
            _one(max, self.newest, other.newest),
            self.unread + other.unread,
        )

    def to_json(self) -> dict[str, Any]:
        moments = {"oldest": iso(self.oldest), "newest": iso(self.newest)}
        return {"bytes": self.bytes, "files": self.files, **moments, "unread": self.unread}


def _one(choose: Callable[..., float], *moments: float | None) -> float | None:
    return choose((moment for moment in moments if moment is not None), default=None)


def measure(path: Path, tell: Callable[[int], None] = lambda _: None, but: Iterable[Path] = ()) -> Size:
    """The size of a file, or of a folder with all in it `but` some; `tell` hears now and then how many it was."""
    counter = _Counter(tell, frozenset(map(str, but)))
    try:
        state = path.lstat()
    except OSError:
        return Size()
    counter.add(state)
    waiting = [str(path)] if stat.S_ISDIR(state.st_mode) else []
    while waiting:
        waiting += counter.look_into(waiting.pop())
    return counter.size


def measure_trees(found: Iterable[Tree], tell: Callable[[int], None] = lambda _: None) -> tuple[Size, Size]:
    """Of working trees: what the run has written there, and the rest."""
    made, rest = _Counter(tell, frozenset()), _Counter(tell, frozenset())

    def unread(_: OSError) -> None:
        made.unread += 1

    for tree in found:
        with contextlib.suppress(FileNotFoundError):
            rest.add(tree.path.lstat())
        for _, state, is_output in tree.walk(unread):
            (made if is_output else rest).add(state)
    return made.size, rest.size


class _Counter:
    def __init__(self, tell: Callable[[int], None], but: frozenset[str]) -> None:
        self.bytes = self.files = self.unread = 0
        self.oldest: float | None = None
        self.newest: float | None = None
        self._tell = tell
        self._but = but
        self._seen: set[tuple[int, int]] = set()

    @property
    def size(self) -> Size:
        return Size(self.bytes, self.files, self.oldest, self.newest, self.unread)

    def look_into(self, folder: str) -> Iterator[str]:
        """Count what is in it; the folders among that."""
        try:
            entries = os.scandir(folder)
        except OSError:
            self.unread += 1
            return
        with entries:
            for entry in entries:
                if entry.path in self._but:
                    continue
                with contextlib.suppress(OSError):  # gone meanwhile
                    self.add(entry.stat(follow_symlinks=False))
                    if entry.is_dir(follow_symlinks=False):
                        yield entry.path

    def add(self, state: os.stat_result) -> None:
        if stat.S_ISDIR(state.st_mode):
            self._count()
            return
        if state.st_nlink > 1:
            key = (state.st_dev, state.st_ino)
            if key in self._seen:
                return
            self._seen.add(key)
        self._count()
        self.bytes += _held(state)
        self.oldest = state.st_mtime if self.oldest is None else min(self.oldest, state.st_mtime)
        self.newest = state.st_mtime if self.newest is None else max(self.newest, state.st_mtime)

    def _count(self) -> None:
        self.files += 1
        if self.files % _TELL_EVERY == 0:
            self._tell(self.files)


def _held(state: os.stat_result) -> int:
    """Bytes without the holes of a sparse file; some file systems do not tell."""
    return min(state.st_size, state.st_blocks * 512) if state.st_blocks else state.st_size


def newest_within(path: Path) -> float:
    """When `path` or what lies directly in it was last changed; 0 where it is not there."""
    moments = [0.0]
    with contextlib.suppress(OSError):
        moments.append(path.lstat().st_mtime)
        if path.is_dir() and not path.is_symlink():
            with os.scandir(path) as entries:
                for entry in entries:
                    with contextlib.suppress(FileNotFoundError):  # gone meanwhile
                        moments.append(entry.stat(follow_symlinks=False).st_mtime)
    return max(moments)
