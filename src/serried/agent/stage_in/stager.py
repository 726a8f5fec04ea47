"""Stages every item of the plan on this node: from the node's cache, the node before this one, or the source."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import Callable, Iterator, List, Optional, Tuple

from serried.agent.stage_in import archives, source, space_check
from serried.agent.stage_in.availability import Availability, ItemAvailability, RestartedError, UnavailableError
from serried.agent.stage_in.cache import FULL, CacheSlot, NoRoomError
from serried.agent.stage_in.data_client import PeerLostError, Predecessor, PredecessorState
from serried.agent.stage_in.extents import ExtentLog
from serried.agent.stage_in.item import NodeStorage, StagedItem, StageError
from serried.agent.stage_in.leases import Leases
from serried.agent.stage_in.progress import StagingProgress
from serried.agent.stage_in.space_check import UNPACKED
from serried.agent.stage_in.tree_writer import TreeWriter
from serried.agent.stage_in.watchdog import Watchdog
from serried.fs import scan
from serried.fs.manifest import Manifest
from serried.protocol.events import JournalEvent

MOST_CHANGES = 3
"""As often a source may be another thing at the end than at the beginning."""
MOST_PROBLEMS = 5
"""Of an item's links that lead out and the like: there may be one for each of its files."""
RESTARTING = (RestartedError, PeerLostError, source.ChangedError)
"""After which an item is begun again, by those behind us too."""
ARCHIVE = "archive"
SOURCE, PEER, CACHED = "source", "peer", "cache"
"""Where an item came from."""


class Stager:
    def __init__(
        self,
        items: List[StagedItem],
        storage: NodeStorage,
        availability: Availability,
        log_event: Callable[..., None],
        *,
        hashed: bool,
    ) -> None:
        self._items = items
        self._storage = storage
        self._availability = availability
        self._log_event = log_event
        self._hashed = hashed
        self._predecessor = PredecessorState(None, log_event)
        self._leases = Leases()
        self.watchdog = Watchdog()
        self.progress = StagingProgress()

    def stage_all(self, predecessor: Optional[Predecessor]) -> None:
        """All of them. Raises StageError."""
        self._predecessor = PredecessorState(predecessor, self._log_event)
        self._storage.view.mkdir(mode=0o700, parents=True)
        try:
            if predecessor is None:
                self._check_space()
            for number, item in enumerate(self._items):
                with self._naming(item):
                    self._stage(number, item)
        except (scan.UnreadableError, NoRoomError) as error:
            raise StageError(str(error)) from None
        finally:
            self._predecessor.close()

    @contextlib.contextmanager
    def _naming(self, item: StagedItem) -> Iterator[None]:
        try:
            yield
        except (scan.UnreadableError, NoRoomError):
            raise
        except OSError as error:
            what = "the disk is full" if error.errno in FULL else scan.reason(error)
            where = self._storage.cache.folder if self._storage.cache else self._storage.view
            raise StageError(f"`{item.source}` cannot be copied to {where}: {what}") from error

    def _check_space(self) -> None:
        """At all items, before the first is copied: what lacks room for all need not begin."""
        wanted = [number for number, item in enumerate(self._items) if self._is_copied(item)]
        for number in wanted:
            self._scan(number)
        if self._storage.cache:
            scanned = [(self._items[number], self.progress.manifests[number]) for number in wanted]
            space_check.make_room(self._storage.cache, scanned, self.watchdog)

    def _is_copied(self, item: StagedItem) -> bool:
        return bool(self._storage.cache) and (self._storage.has_disk or bool(item.unpack))

    def _scan(self, number: int) -> Manifest:
        if number not in self.progress.manifests:
            path = self._items[number].source
            with self.watchdog.watch(path):
                manifest = scan.scan(path, hashed=self._hashed, anchored=True, beat=self.watchdog.beat)
            self.progress.manifests[number] = manifest
            more = len(manifest.problems) - MOST_PROBLEMS
            for problem in (*manifest.problems[:MOST_PROBLEMS], *([f"so it is with {more} more"] if more > 0 else [])):
                self._log_event(JournalEvent.STAGING_PROBLEM, item=self._items[number].to, problem=problem)
        return self.progress.manifests[number]

    def _stage(self, number: int, item: StagedItem) -> None:
        began_at = time.monotonic()
        if not self._is_copied(item):
            self._use_in_place(item)
            return
        changes = 0
        self._predecessor.next_item()
        while True:
            try:
                path, origin = self._stage_unpacked(number, item) if item.unpack else self._stage_plain(number)
                break
            except RestartedError:
                self._restart_item(number)
            except PeerLostError as error:
                self._predecessor.drop(error)
                self._restart_item(number)
            except source.ChangedError as error:
                changes += 1
                if changes == MOST_CHANGES:
                    raise StageError(f"`{error}` changes while it is read") from None
                self._restart_item(number)
        self._link(item, path)
        size, files = self.progress.finish_item(number)
        seconds = round(time.monotonic() - began_at, 2)
        self._log_event(JournalEvent.ITEM_STAGED, item=item.to, origin=origin, bytes=size, files=files, seconds=seconds)

    def _use_in_place(self, item: StagedItem) -> None:
        if item.unpack:
            raise StageError(f"there is no disk here to unpack `{item.source}` on")
        try:
            with self.watchdog.watch(item.source):
                os.stat(item.source)
        except OSError as error:
            raise StageError(f"`{item.source}` {scan.problem(error)}") from None
        self._link(item, Path(os.path.realpath(item.source)))
        self._log_event(JournalEvent.ITEM_STAGED, item=item.to, origin="in place", bytes=0, files=0, seconds=0.0)

    def _restart_item(self, number: int) -> None:
        self.progress.restart(number)
        self._availability.restart(number)

    # One item.

    def _key(self, number: int, suffix: str = "") -> str:
        """What it is by now. Who is behind us need not wait while we look at what may be here."""
        key = self._predecessor.peer.item_key(number) if self._predecessor.peer else self._scan(number).key
        if self._storage.cache and self._storage.cache.has(key + suffix):
            self._availability[number].announce(key)
        return key

    def _stage_plain(self, number: int) -> Tuple[Path, str]:
        """Where it is, and where it came from."""
        key = self._key(number)
        with self._slot(number, key) as slot:
            availability = self._availability[number]
            if slot.manifest is not None:
                self.progress.current = ExtentLog.complete(slot.manifest, scan.encode(str(slot.tree)))
                self.progress.manifests[number] = slot.manifest
                availability.set_complete(self.progress.current)
                return slot.tree, CACHED
            manifest = self._manifest(number, key, availability)
            writer = slot.target(manifest)
            origin = self._fill(number, writer, availability)
            self._finish(number, slot, manifest, writer.extents)
        return slot.tree, origin

    def _manifest(self, number: int, key: str, availability: ItemAvailability) -> Manifest:
        """What is to come, and room for it."""
        if self._predecessor.peer:
            availability.announce(key)
            try:
                manifest = Manifest.from_bytes(self._predecessor.peer.manifest(number, key, availability))
            except ValueError as error:
                raise PeerLostError(str(error)) from None
            if manifest.key != key:
                raise PeerLostError("its manifest is another's")
            self.progress.manifests[number] = manifest
        manifest = self._scan(number)
        if self._storage.cache:
            self._storage.cache.make_room(manifest.blocks, manifest.inodes)
        return manifest

    def _fill(self, number: int, writer: TreeWriter, availability: ItemAvailability) -> str:
        """All its files; who is behind us gets them from now on. Returns where they came from."""
        self.progress.current = writer.extents
        origin = SOURCE
        if self._predecessor.peer:
            availability.set_extents(writer.extents)
            try:
                self._predecessor.peer.receive_into(writer)
                origin = PEER
            except PeerLostError as error:
                self._predecessor.drop(error)
        else:
            availability.set_complete(writer.extents)
        path = self._items[number].source
        with self.watchdog.watch(path):
            source.fill(scan.encode(path), writer, self.watchdog.beat)
        writer.finish()
        return origin

    def _finish(
        self, number: int, slot: CacheSlot, manifest: Optional[Manifest], extents: Optional[ExtentLog] = None
    ) -> None:
        try:
            slot.finish(manifest, self._items[number].source)
        except ValueError as error:  # it is not what was read
            if self._predecessor.peer:
                raise PeerLostError(f"{error} came other than it was") from None
            raise source.ChangedError(str(error)) from None
        if extents:  # who is behind us may be reading it
            extents.root = scan.encode(str(slot.path)) + b"/" + os.path.basename(extents.root)
        if not slot.share():
            raise RestartedError("it was taken from us")

    def _stage_unpacked(self, number: int, item: StagedItem) -> Tuple[Path, str]:
        if item.unpack == "squashfs":
            image, origin = self._stage_plain(number)
            with contextlib.suppress(archives.ArchiveError):
                folder = self._storage.view.with_name(f"mount-{number}")
                self._leases.add_mount(archives.mount(image, folder))
                return folder, origin
            with self._slot(number, image.parent.name + UNPACKED) as slot:
                if slot.manifest is None:
                    self._unpack(number, image, slot)
            return slot.tree, origin
        key = self._key(number, UNPACKED)
        with self._slot(number, key + UNPACKED) as slot:
            availability = self._availability[number]
            availability.announce(key)
            if slot.manifest is not None:
                availability.fail(UnavailableError("it has it unpacked already"))
                return slot.tree, CACHED
            manifest = self._manifest(number, key, availability)
            archive = slot.begin().with_name(ARCHIVE)
            writer = TreeWriter(scan.encode(str(archive)), manifest)
            origin = self._fill(number, writer, availability)
            self._unpack(number, archive, slot, writer.extents)
            self._leases.add_temporary(slot.tree.with_name(ARCHIVE))
        return slot.tree, origin

    def _unpack(self, number: int, archive: Path, slot: CacheSlot, extents: Optional[ExtentLog] = None) -> None:
        """Into the slot, which others may use then."""
        item = self._items[number]
        if self._storage.cache:
            space_check.make_room_to_unpack(self._storage.cache, item, archive)
        try:
            archives.unpack(archive, item.unpack, slot.begin(), self._on_unpacking)
        except archives.ArchiveError as error:
            raise StageError(f"cannot unpack `{item.source}`: {error}") from None
        finally:
            self.progress.unpacking = None
        self._finish(number, slot, None, extents)

    def _on_unpacking(self, archive: archives.Reading) -> None:
        self.progress.unpacking = archive

    @contextlib.contextmanager
    def _slot(self, number: int, key: str) -> Iterator[CacheSlot]:
        if self._storage.cache is None:
            raise StageError("there is no disk here")

        def wait(run: Optional[str]) -> None:
            self.progress.waits_for = run
            if run is not None:
                self._log_event(JournalEvent.STAGING_WAITS, item=self._items[number].to, run=run)

        with self._leases.acquire(self._storage.cache, key, wait) as slot:
            try:
                yield slot
            except RESTARTING:
                self._availability.restart(number)  # before what is half done goes, which may take long
                raise

    def heartbeat(self) -> None:
        """Say to jobs that wait for what we put there that we are still at work."""
        self._leases.heartbeat()

    def _link(self, item: StagedItem, path: Path) -> None:
        """Where ranks look for it."""
        link = self._storage.view / item.to
        link.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        link.symlink_to(path)

    # Afterwards.

    def end_serving(self) -> None:
        """No other node will ask any more."""
        self._leases.end_serving()
        self.progress.forget()
        self._availability = Availability(len(self._items))

    def release(self) -> None:
        """Ranks have ended, or will not begin."""
        archives.end()
        self.end_serving()
        self._leases.release()
