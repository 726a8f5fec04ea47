"""The role `stage-in`: a process beside a node's agent that brings data to the node before its ranks start.

It stages every item of the plan: from the node's cache, the node before this one, or the source. The process runs as
long as the ranks do, because its locks mark the data as in use. `schema.events` lists its messages: ToHelper and
FromStageIn.

It reads many files at a time, large ones in parts, and only while the source stays the same. A watchdog detects a
source that stopped answering: an unreachable file system may block a read forever.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import threading
import time
from collections import deque
from functools import partial
from pathlib import Path
from typing import Any, Callable, Deque, Dict, Iterator, List, Optional, Tuple

from serried.agent.helper_process import AgentConnection
from serried.agent.node_disk import cleanup, shared_cache
from serried.agent.node_disk.folder import remove_empty
from serried.agent.node_disk.shared_cache import NoRoomError
from serried.agent.stage_in import archives
from serried.agent.stage_in.items import (
    CacheSlot,
    Extent,
    ExtentLog,
    RestartedError,
    StagedItem,
    StageError,
    StagingCache,
    TreeWriter,
    UnavailableError,
    split_holes,
)
from serried.agent.stage_in.relay import DataServer, ItemRefusedError, PeerLostError, Predecessor
from serried.base import archives as fs_archives
from serried.base import files
from serried.base.channel import Message
from serried.base.files import FULL
from serried.base.manifest import (
    Manifest,
    ManifestEntry,
    UnreadableError,
    encode_path,
    error_text,
    explain_unreadable,
    path_text,
    scan,
)
from serried.base.tree import Crew
from serried.schema import names
from serried.schema.events import FromStageIn, ItemOrigin, JournalEvent, ToHelper

SILENT_SECONDS = 600.0
"""A source that does not answer for this time is unreachable; the failover of a file server takes minutes."""
READERS = 32
SMALL = 1 << 20
"""A file up to this size is read at once."""
PART = 32 << 20
"""The part of a larger file that one reader copies."""
STEP = 4 << 20
"""The next node gets a part in steps of this size."""
READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
"""A file that has become a pipe does not block."""
GONE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ESTALE)
"""The path no longer leads to a file."""
BATCH_FILES, BATCH_BYTES = 64, 4 << 20
"""The small files that one reader takes at once."""


class SourceChangedError(Exception):
    """A file differs from the manifest, or is gone. `str` is its path."""


class Watchdog:
    def __init__(self) -> None:
        self._source = ""
        self._answered_at = 0.0

    @contextlib.contextmanager
    def watch(self, source: str) -> Iterator[None]:
        """Expect answers from `source`, each reported by `beat`."""
        self.beat()
        self._source = source
        try:
            yield
        finally:
            self._source = ""

    def beat(self) -> None:
        self._answered_at = time.monotonic()

    def silent_source(self) -> str:
        return self._source if time.monotonic() - self._answered_at > SILENT_SECONDS else ""


def fill(root: bytes, writer: TreeWriter, beat: Callable[[], None] = lambda: None) -> None:
    """Copy from `root` all extents that `writer` lacks. `beat` is called whenever the source has answered.

    Raises SourceChangedError, UnreadableError, and OSError with the name of a file that could not be written.
    """
    crew = Crew(READERS, beat)
    reader = _BatchReader(os.path.realpath(root), writer, crew)
    for batch in _batches(writer.missing()):
        crew.add(partial(reader.copy, batch))
    crew.run()


class _BatchReader:
    def __init__(self, root: bytes, writer: TreeWriter, crew: Crew) -> None:
        self._root = root
        self._crew = crew
        self._writer = writer
        self._entries = writer.extents.manifest.entries

    def copy(self, batch: List[Extent]) -> None:
        for extent in batch:
            self._crew.look()
            entry = self._entries[extent.number]
            path = self._root + b"/" + entry.path if entry.path else self._root
            try:
                source = os.open(path, READ)
            except OSError as error:
                if error.errno in GONE:
                    raise SourceChangedError(path_text(path)) from None
                raise UnreadableError(path, error) from None
            try:
                if entry.size <= SMALL:
                    self._copy_whole(source, path, entry, extent.number)
                else:
                    self._copy_part(source, path, entry, extent)
            finally:
                os.close(source)

    def _copy_whole(self, source: int, path: bytes, entry: ManifestEntry, number: int) -> None:
        content = data = b""
        while len(content) < entry.size:
            try:
                data = os.read(source, entry.size + 1 - len(content))  # one byte more shows that the file has grown
            except OSError as error:
                raise UnreadableError(path, error) from None
            if not data:
                break
            content = content + data if content else data
        _check_unchanged(source, path, entry, len(content))
        self._writer.write(number, 0, content)

    def _copy_part(self, source: int, path: bytes, entry: ManifestEntry, extent: Extent) -> None:
        _check_unchanged(source, path, entry, entry.size)
        for offset, length, is_data in split_holes(source, extent):
            if not is_data:
                self._writer.skip(extent.number, offset, length)
                continue
            try:
                for at in range(offset, offset + length, STEP):
                    self._writer.copy(extent.number, at, min(STEP, offset + length - at), source)
                    self._crew.look()
            except EOFError:
                raise SourceChangedError(path_text(path)) from None
        _check_unchanged(source, path, entry, entry.size)


def _check_unchanged(source: int, path: bytes, entry: ManifestEntry, size: int) -> None:
    """The size and time after the read show whether the `size` bytes belong to the file in the manifest."""
    state = os.fstat(source)
    if state.st_mtime_ns != entry.time or not state.st_size == size == entry.size:
        raise SourceChangedError(path_text(path))


def _batches(extents: Iterator[Extent]) -> Iterator[List[Extent]]:
    """First large files in parts, so that no reader ends with one of them alone; then small files, many at once."""
    small: List[Extent] = []
    for extent in extents:
        if extent.offset == 0 and extent.length <= SMALL:
            small.append(extent)
            continue
        end = extent.offset + extent.length
        for offset in range(extent.offset, end, PART):
            yield [Extent(extent.number, offset, min(PART, end - offset))]
    batch: List[Extent] = []
    size = 0
    for extent in small:
        batch.append(extent)
        size += extent.length
        if len(batch) == BATCH_FILES or size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


PROGRESS_SECONDS = 2.0
RATE_SECONDS = 10.0


def main(arguments: List[str]) -> int:  # noqa: ARG001 - the agent sends what is to be staged
    os.umask(0o077)
    agent = AgentConnection()
    worker: Optional[StageInWorker] = None
    while True:
        seconds = PROGRESS_SECONDS if worker and worker.is_busy else None
        watched: List[Any] = [agent, worker] if worker else [agent]
        readable, _, _ = select.select(watched, [], [], seconds)
        received = agent.receive(0.0) if agent in readable else []
        if received is None:
            return 0  # the agent has exited; the exit of this process frees its locks
        for message in received:
            if message["do"] == ToHelper.PREPARE:
                worker = StageInWorker(agent, message)
            elif worker and message["do"] == ToHelper.STAGE:
                worker.begin(message["before"])
            elif worker and message["do"] == ToHelper.SERVED:
                worker.end_serving()
            elif worker and message["do"] == ToHelper.RELEASE:
                worker.release()
                return 0
        if worker:
            worker.flush()


class StageInWorker:
    def __init__(self, agent: AgentConnection, request: Message) -> None:
        self._agent = agent
        self._request = request
        self._outbox: Deque[Dict[str, Any]] = deque()
        self._woken, self._waker = os.pipe()
        """Written to when there is a message. (To poll for messages would take Python's lock from copying threads.)"""
        os.set_blocking(self._woken, False)
        self._key = bytes.fromhex(request["key"])
        os.environ[names.MARK] = request["mark"]  # marks child processes as the attempt's, should this one be killed,
        os.environ[names.SETUP] = names.IN_SETUP  # and not as processes that ranks have left
        self._shared = Path(request["shared"]) if request["shared"] else None
        self._thread: Optional[threading.Thread] = None
        self._is_resolved = False
        self._progress_sent_at = 0.0
        self._samples: Deque[Tuple[float, int]] = deque()
        """The bytes that had arrived, over the last RATE_SECONDS."""
        self._of = 0
        """The total of those bytes: an archive, or all items."""
        cache: Optional[StagingCache] = None
        self._server: Optional[DataServer] = None
        if self._shared is not None:
            try:
                files.make_ours_alone(self._shared)
                cache = StagingCache(
                    self._shared, hashed=bool(request["hashed"]), run=str(request["run"]), sweep=cleanup.free
                )
            except OSError as error:
                self._log_problem(f"{self._shared}: {error_text(error)}")
        items = [StagedItem(*item) for item in request["items"]]
        self.stager = Stager(items, Path(request["view"]), cache, self._log_event, has_disk=bool(request["has_disk"]))
        if cache and request["serves"] is not None:
            try:
                self._server = DataServer(
                    request["serves"],
                    self._key,
                    items,
                    lambda address, because: self._log_event(
                        JournalEvent.STAGING_REFUSED, address=address, because=because
                    ),
                )
            except OSError as error:  # the next node then uses another one, or the source
                self._log_problem(f"cannot serve other nodes: {error_text(error)}")
        agent.send(say=FromStageIn.READY, port=self._server.port if self._server else 0)

    # In a thread of its own.

    def begin(self, before: Optional[List[Any]]) -> None:
        """Stage. `before` is the address and port of the node before this one; None for the source."""
        self._thread = threading.Thread(target=self._stage, args=(before,), daemon=True)
        self._thread.start()

    def _stage(self, before: Optional[List[Any]]) -> None:
        began_at = time.monotonic()
        try:
            predecessor: Optional[Predecessor] = None
            if before is not None:
                try:
                    predecessor = Predecessor((str(before[0]), int(before[1])), self._key, int(self._request["node"]))
                except PeerLostError as error:
                    self._log_event(JournalEvent.STAGING_ALONE, because=str(error))
            self.stager.stage_all(predecessor)
        except BaseException as error:  # noqa: BLE001 - other nodes must not wait for this one, whatever happens
            because = str(error) if isinstance(error, StageError) else f"{type(error).__name__}: {error}"
            self._resolve(say=FromStageIn.FAILED, because=because)
            return
        size, files = self.stager.arrived
        self._resolve(say=FromStageIn.STAGED, bytes=size, files=files, seconds=round(time.monotonic() - began_at, 2))

    def _resolve(self, **message: Any) -> None:
        """Send the result once: a read of an unreachable file system may return much later."""
        if self._is_resolved:
            return
        self._is_resolved = True
        if message["say"] == FromStageIn.FAILED:
            for item in self.stager.items:
                item.availability.fail(UnavailableError(message["because"]))
        self._post(**message)

    @property
    def is_busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def fileno(self) -> int:
        """Readable when there is a message to send."""
        return self._woken

    def _log_event(self, event: str, **facts: Any) -> None:
        self._post(say=FromStageIn.LOG, event=event, **facts)

    def _log_problem(self, problem: str) -> None:
        self._log_event(JournalEvent.STAGING_PROBLEM, item="", problem=problem)

    def _post(self, **message: Any) -> None:
        self._outbox.append(message)
        os.write(self._waker, b".")

    def flush(self) -> None:
        """Send what has happened since, and from time to time the progress."""
        now = time.monotonic()
        if self.is_busy and now - self._progress_sent_at >= PROGRESS_SECONDS:
            self.stager.heartbeat()
            self._send_progress(now)
        silent = self.stager.watchdog.silent_source()
        if silent:
            seconds = f"{SILENT_SECONDS:.0f}"
            self._resolve(say=FromStageIn.FAILED, because=f"`{silent}` has not answered for {seconds} s")
        with contextlib.suppress(BlockingIOError):
            os.read(self._woken, 4096)
        while self._outbox:
            self._agent.send(**self._outbox.popleft())

    def _send_progress(self, now: float) -> None:
        facts = self.stager.progress
        if not facts["of"] and facts["waits_for"] is None:
            return
        self._progress_sent_at = now
        if facts["of"] != self._of:
            self._of = facts["of"]
            self._samples.clear()
        self._samples.append((now, facts["bytes"]))
        while now - self._samples[0][0] > RATE_SECONDS:
            self._samples.popleft()
        then, before = self._samples[0]
        rate = (facts["bytes"] - before) / (now - then) if now > then else 0.0
        left = round((facts["of"] - facts["bytes"]) / rate) if rate > 0 else None  # None while nothing moves
        self._agent.send(say=FromStageIn.PROGRESS, **facts, rate=int(rate), left=left)

    def end_serving(self) -> None:
        """All nodes have all items."""
        if self._server:
            self._server.close()
            self._server = None
        self.stager.end_serving()

    def release(self) -> None:
        self.stager.release()
        if self._shared is not None:
            shared_cache.tidy_data(self._shared, int(self._request["limit"]))
            remove_empty(self._shared)


MOST_CHANGES = 3
"""An item whose source changes this often while it is read is not staged."""
MOST_PROBLEMS = 5
"""Problems of an item that are logged: each of its files may have one."""
RESTARTING = (RestartedError, PeerLostError, SourceChangedError)
"""After these, this node and the nodes behind it start the item again."""
ARCHIVE = "archive"
UNPACKED = "-unpacked"
"""Ends the key of a folder that was an archive; the key before it is the archive's."""


class Stager:
    def __init__(
        self,
        items: List[StagedItem],
        view: Path,
        cache: Optional[StagingCache],
        log_event: Callable[..., None],
        *,
        has_disk: bool,
    ) -> None:
        """`view` is the folder of links that ranks see. Without `has_disk`, only archives are copied."""
        self.items = items
        self._view = view
        self._cache = cache
        self._log_event = log_event
        self._has_disk = has_disk
        self._predecessor: Optional[Predecessor] = None
        self._peer: Optional[Predecessor] = None
        """Sends the current item; None while the source is read."""
        self.watchdog = Watchdog()

    def stage_all(self, predecessor: Optional[Predecessor]) -> None:
        """Raises StageError."""
        self._predecessor = predecessor
        self._view.mkdir(mode=0o700, parents=True)
        try:
            if predecessor is None and self._cache:
                self._check_space(self._cache)
            for item in self.items:
                self._stage(item)
        except (UnreadableError, NoRoomError) as error:
            raise StageError(str(error)) from None
        finally:
            self._close_predecessor()

    def _close_predecessor(self) -> None:
        if self._predecessor:
            self._predecessor.close()
        self._predecessor = None

    def _check_space(self, cache: StagingCache) -> None:
        """Check that the disk has room for all items that are not in the cache, archives unpacked."""
        by_key = {self._scan(item).key: item for item in self.items if self._is_copied(item)}
        cached = [key for key in by_key if cache.has(key) or cache.has(key + UNPACKED)]
        size = count = 0
        for item in (item for key, item in by_key.items() if key not in cached):
            manifest = self._scan(item)
            size, count = size + manifest.blocks, count + manifest.inodes
            if item.unpack not in ("", "squashfs"):  # a squashfs is normally mounted, so it counts as it is
                with self.watchdog.watch(item.source):
                    least = _least_size(item, item.source)
                size, count = size + least.bytes, count + least.files
        if count:
            cache.make_room(size, count, keep=cached)

    def _is_copied(self, item: StagedItem) -> bool:
        return bool(self._cache) and (self._has_disk or bool(item.unpack))

    def _scan(self, item: StagedItem) -> Manifest:
        if item.manifest is None:
            hashed = self._cache is not None and self._cache.hashed
            with self.watchdog.watch(item.source):
                item.manifest = scan(item.source, hashed=hashed, anchored=True, beat=self.watchdog.beat)
            logged = item.manifest.problems[:MOST_PROBLEMS]
            more = len(item.manifest.problems) - MOST_PROBLEMS
            for problem in [*logged, *([f"{more} more problems of this kind"] if more > 0 else [])]:
                self._log_event(JournalEvent.STAGING_PROBLEM, item=item.to, problem=problem)
        return item.manifest

    def _stage(self, item: StagedItem) -> None:
        began_at = time.monotonic()
        self._peer = self._predecessor
        try:
            path, origin = self._stage_in_cache(item) if self._is_copied(item) else self._use_in_place(item)
            link = self._view / item.to
            link.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            link.symlink_to(path)
        except UnreadableError:
            raise
        except OSError as error:
            what = "the disk is full" if error.errno in FULL else error_text(error)
            where = self._cache.folder if self._cache else self._view
            raise StageError(f"`{item.source}` cannot be copied to {where}: {what}") from error
        item.finish()
        size, files = item.arrived
        seconds = round(time.monotonic() - began_at, 2)
        self._log_event(JournalEvent.ITEM_STAGED, item=item.to, origin=origin, bytes=size, files=files, seconds=seconds)

    def _use_in_place(self, item: StagedItem) -> Tuple[Path, str]:
        if item.unpack:
            raise StageError(f"`{item.source}` cannot be unpacked: this node has no disk of its own")
        try:
            with self.watchdog.watch(item.source):
                os.stat(item.source)
        except OSError as error:
            raise StageError(f"`{item.source}` {explain_unreadable(error)}") from None
        return Path(os.path.realpath(item.source)), ItemOrigin.IN_PLACE

    def _stage_in_cache(self, item: StagedItem) -> Tuple[Path, str]:
        changes = 0
        while True:
            try:
                return self._stage_archive(item) if item.unpack else self._stage_plain(item)
            except RestartedError:
                pass
            except PeerLostError as error:
                self._drop_peer(error)
            except SourceChangedError as error:
                changes += 1
                if changes == MOST_CHANGES:
                    raise StageError(f"`{error}` changes while it is read") from None

    def _drop_peer(self, error: PeerLostError) -> None:
        """Read the rest of the item from the source, and later items as well, unless only this one was refused."""
        self._log_event(JournalEvent.STAGING_ALONE, because=str(error))
        self._peer = None
        if not isinstance(error, ItemRefusedError):
            self._close_predecessor()

    def _stage_plain(self, item: StagedItem) -> Tuple[Path, str]:
        key = self._key(item)
        with self._slot(item, key) as slot:
            if slot.manifest is not None:
                item.manifest = slot.manifest
                item.extents = ExtentLog.complete(slot.manifest, encode_path(str(slot.tree)))
                item.availability.set_complete(item.extents)
                return slot.tree, ItemOrigin.CACHE
            manifest = self._manifest(item, key)
            extents, origin = self._fill(item, TreeWriter(encode_path(str(slot.begin())), manifest))
            self._finish(item, slot, manifest, extents)
        return slot.tree, origin

    def _stage_archive(self, item: StagedItem) -> Tuple[Path, str]:
        if item.unpack == "squashfs":
            return self._stage_squashfs(item)
        key = self._key(item, UNPACKED)
        with self._slot(item, key + UNPACKED) as slot:
            item.availability.add(key=key)
            if slot.is_filled:
                item.availability.fail(UnavailableError("this node has the archive only unpacked"))
                return slot.tree, ItemOrigin.CACHE
            manifest = self._manifest(item, key)
            archive = slot.begin().with_name(ARCHIVE)
            extents, origin = self._fill(item, TreeWriter(encode_path(str(archive)), manifest))
            self._unpack(item, archive, slot, extents)
            item.packed = slot.tree.with_name(ARCHIVE)
        return slot.tree, origin

    def _stage_squashfs(self, item: StagedItem) -> Tuple[Path, str]:
        image, origin = self._stage_plain(item)
        with contextlib.suppress(archives.ArchiveError):
            folder = self._view.with_name(f"mount-{self.items.index(item)}")
            item.unmount = archives.mount(image, folder)
            return folder, origin
        with self._slot(item, image.parent.name + UNPACKED) as slot:
            if not slot.is_filled:
                self._unpack(item, image, slot)
        return slot.tree, origin

    def _key(self, item: StagedItem, suffix: str = "") -> str:
        """The key of the source, or of the node before this one. If the cache is likely to have it, it is announced."""
        key = self._peer.item_key(self.items.index(item)) if self._peer else self._scan(item).key
        if self._cache and self._cache.has(key + suffix):
            item.availability.add(key=key)
        return key

    @contextlib.contextmanager
    def _slot(self, item: StagedItem, key: str) -> Iterator[CacheSlot]:
        """A slot of the cache, which the item holds unless an error is raised."""
        if self._cache is None:
            raise AssertionError

        def on_wait(run: Optional[str]) -> None:
            item.waits_for = run
            if run is not None:
                self._log_event(JournalEvent.STAGING_WAITS, item=item.to, run=run)

        slot = self._cache.acquire(key, on_wait)
        item.slots.append(slot)
        try:
            yield slot
        except BaseException as error:
            if isinstance(error, RESTARTING):
                item.restart()  # before its files are deleted: the nodes behind this one must not miss them
            item.slots.remove(slot)
            slot.close()
            raise

    def _manifest(self, item: StagedItem, key: str) -> Manifest:
        """The manifest, once the disk has room for its files."""
        if self._peer:
            item.availability.add(key=key)
            try:
                manifest = Manifest.from_bytes(self._peer.manifest(self.items.index(item), key, item.availability))
            except ValueError as error:
                raise PeerLostError(str(error)) from None
            if manifest.key != key:
                raise PeerLostError("it sent the manifest of another item")
            item.manifest = manifest
        manifest = self._scan(item)
        if self._cache:
            self._cache.make_room(manifest.blocks, manifest.inodes)
        return manifest

    def _fill(self, item: StagedItem, writer: TreeWriter) -> Tuple[ExtentLog, str]:
        """Copy all files, which the next node gets from now on. The extents, and their origin."""
        item.extents = writer.extents
        origin = ItemOrigin.SOURCE
        if self._peer:
            item.availability.add(extents=writer.extents)
            try:
                self._peer.receive_into(writer)
                origin = ItemOrigin.PEER
            except PeerLostError as error:
                self._drop_peer(error)
        else:
            item.availability.set_complete(writer.extents)
        with self.watchdog.watch(item.source):
            fill(encode_path(item.source), writer, self.watchdog.beat)
        writer.finish()
        return writer.extents, origin

    def _unpack(self, item: StagedItem, archive: Path, slot: CacheSlot, extents: Optional[ExtentLog] = None) -> None:
        least = _least_size(item, str(archive))
        try:
            if self._cache:
                self._cache.make_room(least.bytes, least.files)
        except NoRoomError as error:
            raise StageError(f"cannot unpack `{item.source}`: {error}") from None

        def on_reading(reading: archives.Reading) -> None:
            item.unpacking = reading

        try:
            archives.unpack(archive, item.unpack, slot.begin(), on_reading)
        except archives.ArchiveError as error:
            raise StageError(f"cannot unpack `{item.source}`: {error}") from None
        finally:
            item.unpacking = None
        self._finish(item, slot, None, extents)

    def _finish(
        self, item: StagedItem, slot: CacheSlot, manifest: Optional[Manifest], extents: Optional[ExtentLog]
    ) -> None:
        """Let other jobs use the slot. `extents`, which the next node may be reading, move with it."""
        try:
            slot.finish(manifest, item.source)
        except ValueError as error:
            if self._peer:
                raise PeerLostError(f"{error} was damaged on the way") from None
            raise SourceChangedError(str(error)) from None
        if extents:
            extents.root = encode_path(str(slot.path)) + b"/" + os.path.basename(extents.root)
        if not slot.share():
            raise RestartedError("another job deleted the item")

    def heartbeat(self) -> None:
        """Show other jobs, which may wait for an item, that this job is alive."""
        for slot in [slot for item in self.items for slot in item.slots]:
            slot.heartbeat()

    @property
    def arrived(self) -> Tuple[int, int]:
        sizes = [item.arrived for item in self.items]
        return sum(size for size, _ in sizes), sum(files for _, files in sizes)

    @property
    def progress(self) -> Dict[str, Any]:
        """The fields of JournalEvent.STAGING but the rate: of all items, or of the archive that is being unpacked."""
        size, files = self.arrived
        manifests = [manifest for manifest in [item.manifest for item in self.items] if manifest]
        reading = next(filter(None, [item.unpacking for item in self.items]), None)
        return {
            "bytes": reading.at if reading else size,
            "of": reading.size if reading else sum(manifest.held for manifest in manifests),
            "files": files,
            "of_files": sum(manifest.files for manifest in manifests),
            "waits_for": next((run for run in [item.waits_for for item in self.items] if run is not None), None),
            "unpacks": reading is not None,
        }

    def end_serving(self) -> None:
        for item in self.items:
            item.end_serving()

    def release(self) -> None:
        archives.end()
        for item in self.items:
            item.release()


def _least_size(item: StagedItem, path: str) -> fs_archives.Least:
    try:
        return fs_archives.least(path, item.unpack)
    except ValueError as error:
        raise StageError(f"cannot unpack `{item.source}`: not a complete zip file: {error}") from None
    except OSError as error:
        raise UnreadableError(encode_path(path), error) from None
