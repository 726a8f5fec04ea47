"""Data on this node's disk that several jobs of a user share: each item once, by the key of its content.

KEY/tree, KEY/manifest      the item as it was when it was put there, and what it is made of
KEY.part/                   what is being put there: torn, where nobody holds the lock
KEY.lock                    held by who uses it, together with others, or alone by who puts it there

Whoever takes an item looks first whether it is still as it was: a job may have written there, and what a crash of the
node has torn looks whole. What nobody uses goes, the longest unused first, as far as the site's limit says.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from pathlib import Path
from typing import Callable, Collection, Optional

from serried.agent.node_disk import shared_cache
from serried.agent.node_disk.folder import boot
from serried.agent.stage_in.tree_writer import TreeWriter
from serried.fs import files, locks, removal, scan
from serried.fs.manifest import Manifest
from serried.protocol.sizes import spell

OURS = 8
"""Files that an item takes beside its own."""
TREE, MANIFEST = "tree", "manifest"
FULL = (errno.ENOSPC, errno.EDQUOT)
SILENT_SECONDS = 60.0
"""Who puts an item there and gives no sign of life for so long is not waited for: its job may be suspended for hours.
(How fast it is does not matter: we could not read the source any faster.)"""
NAMELESS_SECONDS = 1.0
"""Who holds the lock alone writes its name there in the next moment."""

Waits = Callable[[Optional[str]], None]
"""Hears that we wait for a run, whose name is empty where that is not known; and None when that is over."""


class NoRoomError(Exception):
    """The disk cannot take it. `str` is one sentence."""


class CacheSlot:
    """One item's place, and its lock. Where `manifest` is None, it is for us alone to fill."""

    def __init__(self, path: Path, lock: int, manifest: Optional[Manifest], *, hashed: bool) -> None:
        self.path = path
        self.manifest = manifest
        """What is there, whole and looked at."""
        self._lock = lock
        self._hashed = hashed
        self._part = path.with_name(path.name + locks.PART)

    @property
    def tree(self) -> Path:
        return self.path / TREE

    def begin(self) -> Path:
        """Where the tree is to be put."""
        self._part.mkdir(mode=0o700, exist_ok=True)
        return self._part / TREE

    def target(self, manifest: Manifest) -> TreeWriter:
        return TreeWriter(scan.encode(str(self.begin())), manifest)

    def finish(self, manifest: Optional[Manifest] = None, source: str = "") -> Manifest:
        """It is all there: from now on others may use it too. Without a manifest one is made of what is there.

        `source` is for people who look what takes space.
        Raises OSError, and ValueError where it is not what the manifest says (looked at where that has hashes).
        """
        if manifest is None or self._hashed:
            found = scan.scan(self._part / TREE, hashed=self._hashed)
            other = manifest and manifest.difference(found)
            if other is not None:
                raise ValueError(other)
            manifest = found
        (self._part / MANIFEST).write_bytes(manifest.to_bytes())
        facts = {"bytes": manifest.blocks, "boot": boot(), "hashed": self._hashed, "source": source}
        files.write_json(self._part / shared_cache.FACTS, facts)
        self._part.rename(self.path)
        self.manifest = manifest
        return manifest

    def share(self) -> bool:
        """Let others use what is finished while we do; whether it is still there, as the lock is free in between."""
        import fcntl

        fcntl.flock(self._lock, locks.SHARED)
        return self.path.exists()

    def drop_manifest(self) -> None:
        """Let go of what is only of use to who copies it."""
        if self.manifest is not None:
            self.manifest = Manifest(self.manifest.entries[:1])

    def heartbeat(self) -> None:
        """Say to those who wait for it that we are still at work."""
        if self.manifest is None:
            locks.live(self.path)

    def close(self) -> None:
        """Do not use it any more; what is not finished is removed."""
        if self._lock >= 0:
            if self.manifest is None:
                removal.remove(self._part)
            os.close(self._lock)
            self._lock = -1


class StagingCache:
    def __init__(
        self, folder: Path, *, hashed: bool = False, run: str = "", sweep: Optional[Callable[[], None]] = None
    ) -> None:
        self.folder = folder
        self._hashed = hashed
        self._run = run
        """Ours, for others that wait for what we put there."""
        self._sweep = sweep
        """Removes what dead jobs have left on this disk: once, where there is no room otherwise."""

    def acquire(self, key: str, waits: Waits = lambda _: None) -> CacheSlot:
        """The item of this key, or the place to put it. Waits while another job of ours puts it there."""
        path = self.folder / key
        while True:
            waiting = _Waiting(path, waits)
            try:
                lock = locks.hold_or_make(path, self._run, waiting.look)
            except FileNotFoundError:  # the last job before us has removed the empty folder just now
                self.folder.mkdir(mode=0o700, exist_ok=True)
                continue
            except SilentError:
                path = self._own(key)
                continue
            finally:
                waiting.end()
            if not path.exists():
                removal.remove(path.with_name(path.name + locks.PART))
                return CacheSlot(path, lock, None, hashed=self._hashed)
            manifest = self._trusted(path)
            if manifest is not None:
                os.utime(path)
                return CacheSlot(path, lock, manifest, hashed=self._hashed)
            os.close(lock)
            if not locks.remove_unused(path, shared_cache.remove_item):
                path = self._own(key)  # others use what was changed

    def _own(self, key: str) -> Path:
        """Where nobody else puts it."""
        return self.folder / f"{key}-{os.urandom(4).hex()}"

    def _trusted(self, path: Path) -> Optional[Manifest]:
        """What is in `path`, if it still is what was put there."""
        if not self._may_be_trusted(path):
            return None
        with contextlib.suppress(OSError, ValueError):
            key = scan.scan(path / TREE, hashed=self._hashed).key  # and not beside the other: both take memory
            manifest = Manifest.from_bytes((path / MANIFEST).read_bytes())
            if manifest.key == key:
                return manifest
        return None

    def _may_be_trusted(self, path: Path) -> bool:
        facts = files.read_json(path / shared_cache.FACTS) or {}
        return bool(facts.get("hashed")) == self._hashed and (self._hashed or facts.get("boot") == boot())

    def has(self, key: str) -> bool:
        """Whether it is likely to be there: it has not been looked at."""
        return self._may_be_trusted(self.folder / key)

    def make_room(self, size: int, inodes: int, keep: Collection[str] = ()) -> None:
        """Remove what nobody uses, but not `keep`, as far as there is no room for `size` bytes in so many files.

        Raises NoRoomError where that is not enough.
        """
        unused = (path for path in shared_cache.oldest_first(self.folder) if not path.name.startswith(tuple(keep)))
        while True:
            problem = lack(self.folder, size, inodes)
            if problem is None:
                return
            path = next(unused, None)
            if path is not None:
                locks.remove_unused(path, shared_cache.remove_item)
            elif self._sweep:
                sweep, self._sweep = self._sweep, None
                sweep()
            else:
                raise NoRoomError(problem)


class SilentError(Exception):
    """Who puts an item there does not go on."""


class _Waiting:
    """For another job that puts an item there, or removes it."""

    def __init__(self, path: Path, waits: Waits) -> None:
        self._path, self._waits = path, waits
        self._seen: Optional[locks.Maker] = None
        self._told: Optional[str] = None
        self._began = self._since = time.monotonic()

    def look(self) -> None:
        """Raises SilentError."""
        seen, now = locks.maker(self._path), time.monotonic()
        if seen.name != self._told and (seen.name or now - self._began > NAMELESS_SECONDS):
            self._told = seen.name
            self._waits(seen.name)
        if seen != self._seen:
            self._seen, self._since = seen, now
        elif now - self._since > SILENT_SECONDS:
            raise SilentError

    def end(self) -> None:
        if self._told is not None:
            self._waits(None)


def lack(folder: Path, size: int, inodes: int) -> Optional[str]:
    """Why `size` bytes in so many files will not go there; None where they will."""
    state = os.statvfs(folder.parent)  # which is there, whoever has removed the empty folder just now
    free = state.f_bavail * state.f_frsize
    if size > free:
        return f"no room on {folder}: {spell(size)} needed, {spell(free)} free"
    if state.f_files and inodes + OURS > state.f_favail:
        return f"no room on {folder}: {inodes} files, and it takes {state.f_favail} more"
    return None
