"""The staged data of this node: its tree on the disk, the cache that jobs share, and the state of each item.

A tree is written from extents that arrive in any order, from many threads. A file gets its mode and time with its last
extent, folders and links at the end. Files are not synced one by one: the cache detects a tree that a crash of the node
has torn.

The cache has each item once, by its key, for all jobs of a user:

KEY/tree, KEY/manifest      the item, and its manifest when it was stored
KEY.part/                   an item that is being stored; incomplete if its lock is free
KEY.lock                    held shared by jobs that use the item, or exclusively by the job that stores it

A job that takes an item first verifies that it is unchanged: another job may have written to it. The site's limit
decides which unused items are deleted, oldest first.

One thread stages the items and changes them. The threads that serve the next node, and the thread that reports
progress, read them.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from pathlib import Path
from typing import Callable, Collection, Dict, Iterator, List, Optional, Tuple, TypeVar, Union

from serried.agent.node_disk import shared_cache
from serried.agent.node_disk.folder import boot
from serried.agent.stage_in.archives import Reading
from serried.base import NamedTuple, copy, files, locks, tree
from serried.base.manifest import FILE, FOLDER, LINK, SPARSE, TWIN, Manifest, scan

Bytes = Union[bytes, bytearray]
Data = Union[bytes, bytearray, memoryview]
T = TypeVar("T")

CREATE = os.O_CREAT | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
WAKE_SECONDS = 0.02
"""Readers of the log are woken at most this often: each wake-up takes Python's lock from the threads that copy."""


class Extent(NamedTuple):
    """A part of a file, data or hole."""

    number: int
    """The file's place in the manifest's entries."""
    offset: int
    length: int


class ExtentLog:
    """The extents of an item on this node's disk, in the order of their arrival. The next node reads them from here.

    The log only grows. Slow readers do not block others, late readers see all extents, and a re-read normally hits the
    page cache.
    """

    def __init__(self, manifest: Manifest, root: bytes) -> None:
        self.manifest = manifest
        self.root = root
        """The path of the item. It changes when the item is renamed; open files stay valid."""
        self.problem: Optional[str] = None
        """Why no further extent will come."""
        self.is_complete = not manifest.files
        """All files are there. Links, and the modes and times of folders, may still be missing."""
        self.bytes = self.files = 0
        self._extents: List[Extent] = []
        self._changed = threading.Condition()
        self._woken_at = 0.0

    @classmethod
    def complete(cls, manifest: Manifest, root: bytes) -> ExtentLog:
        log = cls(manifest, root)
        entries = enumerate(manifest.entries)
        log._extents = [Extent(number, 0, entry.size) for number, entry in entries if entry.kind == FILE]
        log.bytes, log.files, log.is_complete = manifest.held, manifest.files, True
        return log

    def since(self, position: int, seconds: float) -> List[Extent]:
        """The extents after the first `position`; empty if none arrives within `seconds`, or none will."""
        with self._changed:
            self._changed.wait_for(
                lambda: len(self._extents) > position or self.is_complete or self.problem is not None, seconds
            )
            return self._extents[position:]

    def path(self, number: int) -> bytes:
        path = self.manifest.entries[number].path
        return self.root + b"/" + path if path else self.root

    def add(self, extent: Extent, held: int, *, is_last: bool) -> None:
        """Add an extent with `held` bytes of data; `is_last` completes its file."""
        with self._changed:
            self._extents.append(extent)
            self.bytes += held
            self.files += is_last
            self.is_complete = self.files == self.manifest.files
            now = time.monotonic()
            if self.is_complete or now - self._woken_at >= WAKE_SECONDS:
                self._woken_at = now
                self._changed.notify_all()

    def fail(self, problem: str) -> None:
        with self._changed:
            self.problem = problem
            self._changed.notify_all()


class TreeWriter:
    def __init__(self, root: bytes, manifest: Manifest) -> None:
        """Creates every folder of `manifest`; the first is `root`, which must not exist yet. Raises OSError."""
        self.extents = ExtentLog(manifest, root)
        self._entries = manifest.entries
        self._is_done = bytearray(len(manifest.entries))
        self._parts: Dict[int, List[Tuple[int, int]]] = {}
        """Of files that arrive in several extents: the begin and end of each extent that has arrived."""
        self._sums: Dict[int, int] = {}
        self._lock = threading.Lock()
        for number, entry in enumerate(self._entries):
            if entry.kind == FOLDER:
                os.mkdir(self.extents.path(number), 0o700)

    # Each of these three writes one extent, and does nothing if its file is complete. They raise OSError, and
    # ValueError for an extent that the manifest does not allow: a peer may be wrong, or lie.

    def write(self, number: int, offset: int, data: Data) -> None:
        """Write `data`, a whole file or a part. An empty file arrives as no bytes at offset 0."""
        self._add(Extent(number, offset, len(data)), len(data), lambda file: copy.write_all(file, data, offset))

    def skip(self, number: int, offset: int, length: int) -> None:
        self._add(Extent(number, offset, length), 0, lambda _: None)

    def copy(self, number: int, offset: int, length: int, source: int) -> None:
        """Copy the same part of the open file `source`, normally inside the kernel."""
        self._add(Extent(number, offset, length), length, lambda file: copy.copy_range(source, file, offset, length))

    def _add(self, extent: Extent, held: int, write: Callable[[int], None]) -> None:
        number, offset, length = extent
        entry = self._entries[number] if 0 <= number < len(self._entries) else None
        if entry is None or entry.kind != FILE or offset < 0 or length < 0 or offset + length > entry.size:
            raise ValueError(f"the manifest has no file {number} with {length} bytes at {offset}")
        if self._is_done[number]:
            return
        file = os.open(self.extents.path(number), CREATE, 0o600)
        try:
            write(file)
            is_last = self._completes_file(extent, entry.size)
            if is_last:
                if held < entry.size:  # there are holes, perhaps at its end, or several parts
                    os.ftruncate(file, entry.size)
                os.fchmod(file, entry.mode)
                os.utime(file, ns=(entry.time, entry.time))
            self.extents.add(extent, held, is_last=is_last)
        finally:
            os.close(file)

    def _completes_file(self, extent: Extent, size: int) -> bool:
        number = extent.number
        with self._lock:
            if self._is_done[number]:
                return False
            if extent.length < size:
                parts = self._parts.setdefault(number, [])
                parts.append((extent.offset, extent.offset + extent.length))
                self._sums[number] = self._sums.get(number, 0) + extent.length
                # The sum is a cheap test that spares most parts the sorting.
                if self._sums[number] < size or next(_gaps(parts, size), None):
                    return False
                del self._parts[number], self._sums[number]
            self._is_done[number] = 1
            return True

    def missing(self) -> Iterator[Extent]:
        for number, entry in enumerate(self._entries):
            if entry.kind != FILE or self._is_done[number]:
                continue
            if not entry.size:
                yield Extent(number, 0, 0)
            for begin, end in _gaps(self._parts.get(number, []), entry.size):
                yield Extent(number, begin, end - begin)

    def finish(self) -> None:
        """Once no extent is missing, create hard and symbolic links, and set modes and times of folders.

        Raises OSError.
        """
        if not self.extents.is_complete:
            raise ValueError("some files are incomplete")
        for number, entry in enumerate(self._entries):
            path = self.extents.path(number)
            if entry.kind == TWIN:
                os.link(self.extents.root + b"/" + entry.target, path)
            elif entry.kind == LINK:
                os.symlink(entry.target, path)
                with contextlib.suppress(OSError, NotImplementedError):  # not possible everywhere, and rarely read
                    os.utime(path, ns=(entry.time, entry.time), follow_symlinks=False)
        for number in reversed(range(len(self._entries))):  # a folder after its contents
            entry = self._entries[number]
            if entry.kind == FOLDER:
                path = self.extents.path(number)
                os.chmod(path, entry.mode)
                os.utime(path, ns=(entry.time, entry.time))


def _gaps(parts: List[Tuple[int, int]], size: int) -> Iterator[Tuple[int, int]]:
    """The begin and end of each part of a file of `size` bytes that `parts` leave out."""
    at = 0
    for begin, end in sorted(parts):
        if begin > at:
            yield at, begin
        at = max(at, end)
    if at < size:
        yield at, size


def split_holes(descriptor: int, extent: Extent) -> Iterator[Tuple[int, int, bool]]:
    """Split an extent of an open file into parts: offset, length, is_data. Small extents are not split."""
    start, end = extent.offset, extent.offset + extent.length
    if extent.length < SPARSE:
        yield start, extent.length, True
        return
    for offset, length in copy.data_extents(descriptor, start, end):
        if offset > start:
            yield start, offset - start, False
        yield offset, length, True
        start = offset + length
    if end > start:
        yield start, end - start, False


TREE, MANIFEST = "tree", "manifest"


class CacheSlot:
    """The place of one item, and its lock. Until it is filled, the lock is exclusive and this job fills it."""

    def __init__(self, path: Path, lock: int, manifest: Optional[Manifest], *, hashed: bool) -> None:
        self.path = path
        self.tree = path / TREE
        self.manifest = manifest
        """Of an item that was in the cache, verified."""
        self.is_filled = manifest is not None
        self._lock = lock
        self._hashed = hashed
        self._part = locks.part_of(path)

    def begin(self) -> Path:
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
                path = self.folder / f"{key}-{os.urandom(4).hex()}"
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
                path = self.folder / f"{key}-{os.urandom(4).hex()}"  # other jobs use the item, which was changed

    def _verified(self, path: Path) -> Optional[Manifest]:
        """The manifest of the item at `path`, unless the item has changed."""
        if not self.has(path.name):
            return None
        with contextlib.suppress(OSError, ValueError):
            key = scan(path / TREE, hashed=self.hashed).key  # this manifest is freed before the other is read
            manifest = Manifest.from_bytes((path / MANIFEST).read_bytes())
            if manifest.key == key:
                return manifest
        return None

    def has(self, key: str) -> bool:
        """The cache probably has an item of this key: it is not verified."""
        facts = files.read_json(self.folder / key / shared_cache.FACTS) or {}
        return bool(facts.get("hashed")) == self.hashed and (self.hashed or facts.get("boot") == boot())

    def make_room(self, size: int, inodes: int, keep: Collection[str] = ()) -> None:
        """Delete unused items until `size` bytes in `inodes` files fit; items whose name begins as in `keep` stay.

        Raises NoRoomError.
        """
        unused = (path for path in shared_cache.oldest_first(self.folder) if not path.name.startswith(tuple(keep)))
        while True:
            try:
                return shared_cache.check_room(self.folder, size, inodes)
            except shared_cache.NoRoomError:
                path = next(unused, None)
                if path is not None:
                    locks.remove_unused(path, shared_cache.remove_item)
                elif self._sweep:
                    sweep, self._sweep = self._sweep, None
                    sweep()
                else:
                    raise


class StageError(Exception):
    """The data cannot be staged on this node. `str` is one sentence."""


class RestartedError(Exception):
    """The source changed while it was read, so the item is staged again from its beginning."""


class UnavailableError(Exception):
    """This node will not have the item. `str` says why."""


class Availability:
    """What this node can serve of an item: its key, then its manifest, then its extents.

    Each of them grows, so the next node never waits for a complete one. The thread that stages adds to it, and the
    threads that serve wait for it.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.key = ""
        """A node that has an item of this key already does not wait for more."""
        self.manifest = bytearray()
        self.manifest_bytes: Optional[int] = None
        """The length of the whole manifest."""
        self.extents: Optional[ExtentLog] = None
        self.problem: Optional[Exception] = None
        """RestartedError or UnavailableError: nothing more will come."""

    def add(
        self,
        *,
        key: str = "",
        manifest_bytes: Optional[int] = None,
        manifest: Bytes = b"",
        extents: Optional[ExtentLog] = None,
    ) -> None:
        with self._changed:
            self.key = key or self.key
            self.manifest_bytes = self.manifest_bytes if manifest_bytes is None else manifest_bytes
            self.manifest += manifest
            self.extents = extents or self.extents
            self._changed.notify_all()

    def set_complete(self, extents: ExtentLog) -> None:
        """Set all three at once, where the manifest is known."""
        manifest = extents.manifest.to_bytes()
        self.add(key=extents.manifest.key, manifest_bytes=len(manifest), manifest=manifest, extents=extents)

    def fail(self, problem: Exception) -> None:
        with self._changed:
            self.problem = problem
            if self.extents:
                self.extents.fail(str(problem))
            self._changed.notify_all()

    def wait_for(self, part: Callable[[Availability], Optional[T]], seconds: float) -> T:
        """`part` of this, once that is not None. Raises the problem, or TimeoutError after `seconds`."""
        with self._changed:
            if not self._changed.wait_for(lambda: self.problem or part(self) is not None, seconds):
                raise TimeoutError
            value = part(self)
            if self.problem or value is None:
                raise self.problem or AssertionError
            return value

    def wait_for_key(self, seconds: float) -> str:
        """As `wait_for`, but the key of an unavailable item is served further on."""
        if self.key and isinstance(self.problem, UnavailableError):
            return self.key
        return self.wait_for(lambda item: item.key or None, seconds)


class StagedItem:
    def __init__(self, source: str, to: str, unpack: str = "") -> None:
        self.source = source
        self.to = to
        """Its path below the folder of staged data."""
        self.unpack = unpack
        """The kind of archive, if it becomes a folder; else empty."""
        self.availability = Availability()
        """Another one after each restart."""
        self.manifest: Optional[Manifest] = None
        self.extents: Optional[ExtentLog] = None
        """While the item is copied."""
        self.unpacking: Optional[Reading] = None
        """While the archive, which has arrived, is unpacked."""
        self.waits_for: Optional[str] = None
        """The run that stages the same item on this node, empty if its name is unknown; None without a wait."""
        self.slots: List[CacheSlot] = []
        """Locked until the ranks have ended."""
        self.unmount: Callable[[], None] = lambda: None
        self.packed: Optional[Path] = None
        """A copy of the archive, which other nodes may need."""
        self._staged = (0, 0)

    @property
    def arrived(self) -> Tuple[int, int]:
        extents = self.extents
        return (extents.bytes, extents.files) if extents else self._staged

    def restart(self) -> None:
        """The source has changed: forget its manifest, and have the nodes behind this one start the item again."""
        self.manifest = self.extents = None
        old, self.availability = self.availability, Availability()
        old.fail(RestartedError("the item is staged again"))

    def finish(self) -> None:
        if self.manifest:
            self._staged = (self.manifest.held, self.manifest.files)
        self.extents = None

    def end_serving(self) -> None:
        """Drop what only other nodes need. The manifest of a million files takes memory that ranks want."""
        if self.packed:
            with contextlib.suppress(OSError):
                self.packed.unlink()
        self.manifest = self.extents = self.packed = None
        self.availability = Availability()
        for slot in self.slots:
            slot.manifest = None

    def release(self) -> None:
        """The ranks have ended, or will not start: unmount the item, unlock it, and delete what is incomplete."""
        self.end_serving()
        self.unmount()
        for slot in list(self.slots):
            slot.close()
