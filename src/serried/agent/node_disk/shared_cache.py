"""Files on this node's disk that several jobs of a user share: who may use, fill or delete them.

images/    copies of container images; the last job that uses one deletes it
data/      items of staged data; up to the site's limit they stay for later jobs, and the longest unused go first
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import Callable, Dict, List, Optional, Sequence

from serried.base import files, locks, tree
from serried.base.text import spell

FACTS = "facts.json"
"""The file of an item that holds its size."""
EXTRA_FILES = 8
"""Files that an item has besides its own."""
SILENT_SECONDS = 60.0
"""A job that fills an item but shows no sign of life is not waited for: it may be suspended for hours.

A slow job is waited for, because no other job could read the source any faster.
"""
NAMELESS_SECONDS = 1.0
"""The job that locks an item writes its name into the lock a moment later."""
HOLD_TRIES, HOLD_SECONDS = 100, 0.05

OnWait = Callable[[Optional[str]], None]
"""Called with the run that this job waits for, empty if its name is unknown; and with None when the wait is over."""
After = Callable[[float, Callable[[], None]], object]
"""`Loop.after`."""


class SilentError(Exception):
    """The job that fills the item shows no sign of life."""


class NoRoomError(Exception):
    """The disk has no room. `str` is one sentence."""


def lock(path: Path, run: str = "", on_wait: OnWait = lambda _: None) -> int:
    """The lock of `path`: shared if it exists, else exclusive, for this job to create it. Raises OSError, SilentError.

    Waits while another job creates or deletes it. `run` is shown to other jobs that wait meanwhile.
    """
    while True:
        wait = _Wait(path, on_wait)
        try:
            return locks.hold_or_make(path, run, wait.look)
        except FileNotFoundError:  # the last job before this one has just deleted the empty folder
            path.parent.mkdir(mode=0o700, exist_ok=True)
        finally:
            wait.end()


class _Wait:
    """A wait for another job that creates `path`, or deletes it."""

    def __init__(self, path: Path, on_wait: OnWait) -> None:
        self._path, self._on_wait = path, on_wait
        self._maker: Optional[locks.Maker] = None
        self._reported: Optional[str] = None
        self._began_at = self._alive_at = time.monotonic()

    def look(self) -> None:
        """Raises SilentError."""
        maker, now = locks.maker(self._path), time.monotonic()
        if maker.name != self._reported and (maker.name or now - self._began_at > NAMELESS_SECONDS):
            self._reported = maker.name
            self._on_wait(maker.name)
        if maker != self._maker:
            self._maker, self._alive_at = maker, now
        elif now - self._alive_at > SILENT_SECONDS:
            raise SilentError

    def end(self) -> None:
        if self._reported is not None:
            self._on_wait(None)


def hold(after: After, paths: Sequence[Path], then: Callable[[List[int]], None]) -> None:
    """Share the locks of `paths`, then call `then` with those that this process got.

    Another process that checks whether a path is in use has its lock for a moment, so each lock is tried for seconds.
    """
    held: List[int] = []

    def attempt(left: List[Path], tries: int) -> None:
        still_locked = []
        for path in left:
            try:
                held.append(locks.hold(path, locks.SHARED | locks.AT_ONCE))
            except BlockingIOError:
                still_locked.append(path)
            except OSError:
                pass
        if still_locked and tries:
            after(HOLD_SECONDS, lambda: attempt(still_locked, tries - 1))
        else:
            then(held)

    attempt(list(paths), HOLD_TRIES)


def check_room(folder: Path, size: int, inodes: int) -> None:
    """Raises NoRoomError if the disk of `folder` has no room for `size` bytes in `inodes` files."""
    state = os.statvfs(folder.parent)  # another job may have deleted the empty folder just now
    free = state.f_bavail * state.f_frsize
    if size > free:
        raise NoRoomError(f"no room on {folder}: {spell(size)} needed, {spell(free)} free")
    if state.f_files and inodes + EXTRA_FILES > state.f_favail:
        raise NoRoomError(f"no room on {folder}: {inodes} files needed, {state.f_favail} free")


def tidy_images(folder: Path, keep: Optional[Path] = None, *, dry: bool = False) -> List[Path]:
    """Delete copies that no job holds, because their jobs were killed. The paths deleted, or with `dry` to delete."""
    images = [path for path in locks.things(folder) if path != keep and path.suffix != locks.PART]
    return [path for path in images if locks.remove_unused(path, remove_image, dry=dry)]


def remove_image(path: Path) -> None:
    path.unlink(missing_ok=True)
    locks.part_of(path).unlink(missing_ok=True)


def tidy_data(folder: Path, limit: int = 0, until: Optional[float] = None, *, dry: bool = False) -> List[Path]:
    """Delete incomplete items of killed jobs, and unused items beyond `limit` bytes. The paths, as in `tidy_images`.

    It stops at `until` on the monotonic clock. An item that is half deleted then is deleted with the next job.
    """
    removed = []
    facts = {path: (files.read_json(path / FACTS) or {}).get("bytes") for path in oldest_first(folder)}
    sizes = {path: size if isinstance(size, int) else None for path, size in facts.items()}
    total = sum(size or 0 for size in sizes.values())
    for path, size in sizes.items():
        is_over = size is None or not limit or total > limit  # without facts it is incomplete, or torn by a crash
        if is_over and locks.remove_unused(path, lambda path: remove_item(path, until), dry=dry):
            total -= size or 0
            removed.append(path)
    return removed


def oldest_first(folder: Path) -> List[Path]:
    """Items of data by the time of their last use, incomplete ones first."""
    used_at: Dict[Path, float] = {}
    for path in (path.with_name(path.name.removesuffix(locks.PART)) for path in locks.things(folder)):
        used_at[path] = 0.0
        with contextlib.suppress(OSError):
            used_at[path] = path.stat().st_mtime
    return sorted(used_at, key=lambda path: (used_at[path], path.name))


def remove_item(path: Path, until: Optional[float] = None) -> None:
    """Rename the item first, so that it is never half deleted under its name. Raises OSError if some of it is left."""
    part = locks.part_of(path)
    tree.remove(part, until)
    if path.exists():
        path.rename(part)
        tree.remove(part, until)
