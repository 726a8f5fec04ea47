"""The cache of staged data on this node's disk, which several jobs of a user share: each item once, by its key.

KEY/tree, KEY/manifest      the item, and its manifest when it was stored
KEY.part/                   an item that is being stored; incomplete if its lock is free
KEY.lock                    held shared by jobs that use the item, or exclusively by the job that stores it

A job that takes an item first verifies that it is unchanged: another job may have written to it, and a tree that a
crash of the node has torn looks complete. The site's limit decides which unused items are deleted, oldest first.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Callable, Collection, Optional

from serried.agent.node_disk import shared_cache
from serried.agent.node_disk.folder import boot
from serried.base import files, locks, tree
from serried.base.manifest import Manifest, scan

TREE, MANIFEST = "tree", "manifest"


class CacheSlot:
    """The place of one item, and its lock. Until it is filled, the lock is exclusive and this job fills it."""

    def __init__(self, path: Path, lock: int, manifest: Optional[Manifest], *, hashed: bool) -> None:
        self.path = path
        self.manifest = manifest
        """Of an item that was in the cache, verified."""
        self.is_filled = manifest is not None
        self._lock = lock
        self._hashed = hashed
        self._part = locks.part_of(path)

    @property
    def tree(self) -> Path:
        return self.path / TREE

    def begin(self) -> Path:
        """The path at which the tree is to be created."""
        self._part.mkdir(mode=0o700, exist_ok=True)
        return self._part / TREE

    def finish(self, manifest: Optional[Manifest], source: str) -> None:
        """Store the tree under the item's name. Without a manifest, one is made by scanning the tree.

        `source` is shown to users who list the disk. Raises OSError, and ValueError with the first path that differs
        from the manifest, where that has hashes.
        """
        if manifest is None or self._hashed:
            scanned = scan(self._part / TREE, hashed=self._hashed)
            difference = manifest and manifest.difference(scanned)
            if difference is not None:
                raise ValueError(difference)
            manifest = scanned
        (self._part / MANIFEST).write_bytes(manifest.to_bytes())
        facts = {"bytes": manifest.blocks, "boot": boot(), "hashed": self._hashed, "source": source}
        files.write_json(self._part / shared_cache.FACTS, facts)
        self._part.rename(self.path)
        self.is_filled = True

    def share(self) -> bool:
        """Share the lock. False if another job deleted the item in between, while the lock was free."""
        import fcntl

        fcntl.flock(self._lock, locks.SHARED)
        return self.path.exists()

    def heartbeat(self) -> None:
        """Show jobs that wait for this item that this job is alive."""
        if not self.is_filled:
            locks.live(self.path)

    def close(self) -> None:
        """Unlock the item, or delete it if it is incomplete."""
        if self._lock >= 0:
            if not self.is_filled:
                tree.remove(self._part)
            os.close(self._lock)
            self._lock = -1


class StagingCache:
    def __init__(
        self, folder: Path, *, hashed: bool = False, run: str = "", sweep: Optional[Callable[[], None]] = None
    ) -> None:
        """`run` is shown to jobs that wait for this one; `sweep` deletes what dead jobs left, once, if room lacks."""
        self.folder = folder
        self.hashed = hashed
        self._run = run
        self._sweep = sweep

    def acquire(self, key: str, on_wait: shared_cache.OnWait = lambda _: None) -> CacheSlot:
        """The slot of this key, filled or not. Waits while another job of this user fills it."""
        path = self.folder / key
        while True:
            try:
                lock = shared_cache.lock(path, self._run, on_wait)
            except shared_cache.SilentError:
                path = self._unshared(key)
                continue
            if not path.exists():
                tree.remove(locks.part_of(path))
                return CacheSlot(path, lock, None, hashed=self.hashed)
            manifest = self._verified(path)
            if manifest is not None:
                os.utime(path)
                return CacheSlot(path, lock, manifest, hashed=self.hashed)
            os.close(lock)
            if not locks.remove_unused(path, shared_cache.remove_item):
                path = self._unshared(key)  # other jobs use the item, which was changed

    def _unshared(self, key: str) -> Path:
        return self.folder / f"{key}-{os.urandom(4).hex()}"

    def _verified(self, path: Path) -> Optional[Manifest]:
        """The manifest of the item at `path`, unless the item has changed."""
        if not self._may_be_unchanged(path):
            return None
        with contextlib.suppress(OSError, ValueError):
            key = scan(path / TREE, hashed=self.hashed).key  # this manifest is freed before the other is read
            manifest = Manifest.from_bytes((path / MANIFEST).read_bytes())
            if manifest.key == key:
                return manifest
        return None

    def _may_be_unchanged(self, path: Path) -> bool:
        facts = files.read_json(path / shared_cache.FACTS) or {}
        return bool(facts.get("hashed")) == self.hashed and (self.hashed or facts.get("boot") == boot())

    def has(self, key: str) -> bool:
        """The cache probably has an item of this key: it is not verified."""
        return self._may_be_unchanged(self.folder / key)

    def make_room(self, size: int, inodes: int, keep: Collection[str] = ()) -> None:
        """Delete unused items until `size` bytes in `inodes` files fit; items whose name begins as in `keep` stay.

        Raises NoRoomError.
        """
        unused = (path for path in shared_cache.oldest_first(self.folder) if not path.name.startswith(tuple(keep)))
        while True:
            try:
                shared_cache.check_room(self.folder, size, inodes)
            except shared_cache.NoRoomError:
                path = next(unused, None)
                if path is not None:
                    locks.remove_unused(path, shared_cache.remove_item)
                elif self._sweep:
                    sweep, self._sweep = self._sweep, None
                    sweep()
                else:
                    raise
            else:
                return
