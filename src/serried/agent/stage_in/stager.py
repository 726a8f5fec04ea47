"""Brings every item of the plan to this node: from its own disk, from the node before it, or from the source."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import Callable, Iterator, List, Optional, Tuple

from serried.agent.stage_in import archives, source, space_check
from serried.agent.stage_in.availability import FailedError, Holding, Holdings, VoidError
from serried.agent.stage_in.cache import FULL, NoRoomError, Slot
from serried.agent.stage_in.data_client import Before, BrokenError, Predecessor
from serried.agent.stage_in.extents import Arrived
from serried.agent.stage_in.item import Item, Place, StageError
from serried.agent.stage_in.leases import Kept
from serried.agent.stage_in.progress import Far
from serried.agent.stage_in.space_check import UNPACKED
from serried.agent.stage_in.tree_writer import Target
from serried.agent.stage_in.watchdog import Pulse
from serried.fs import scan
from serried.fs.manifest import Manifest

TRIES = 3
"""As often a source may be another thing at the end than at the beginning."""
MOST_SAID = 5
"""Of an item's links that lead out and the like: there may be one for each of its files."""
AGAIN = (VoidError, BrokenError, source.ChangedError)
"""After which an item is begun again, by those behind us too."""
ARCHIVE = "archive"
SOURCE, PEER, HERE = "source", "peer", "cache"
"""Where an item came from."""


class Items:
    def __init__(
        self, items: List[Item], place: Place, holdings: Holdings, note: Callable[..., None], *, hashed: bool
    ) -> None:
        self._items = items
        self._place = place
        self._holdings = holdings
        self._note = note
        self._hashed = hashed
        self._before = Before(None, note)
        self._kept = Kept()
        self.pulse = Pulse()
        self.far = Far()

    def bring(self, before: Optional[Predecessor]) -> None:
        """All of them. Raises StageError."""
        self._before = Before(before, self._note)
        self._place.view.mkdir(mode=0o700, parents=True)
        try:
            if before is None:
                self._look_ahead()
            for number, item in enumerate(self._items):
                with self._naming(item):
                    self._bring(number, item)
        except (scan.UnreadableError, NoRoomError) as error:
            raise StageError(str(error)) from None
        finally:
            self._before.close()

    @contextlib.contextmanager
    def _naming(self, item: Item) -> Iterator[None]:
        try:
            yield
        except (scan.UnreadableError, NoRoomError):
            raise
        except OSError as error:
            what = "the disk is full" if error.errno in FULL else scan.reason(error)
            where = self._place.cache.folder if self._place.cache else self._place.view
            raise StageError(f"`{item.source}` cannot be copied to {where}: {what}") from error

    def _look_ahead(self) -> None:
        """At all items, before the first is copied: what lacks room for all need not begin."""
        wanted = [number for number, item in enumerate(self._items) if self._is_copied(item)]
        for number in wanted:
            self._scan(number)
        if self._place.cache:
            looked_at = [(self._items[number], self.far.manifests[number]) for number in wanted]
            space_check.make_room(self._place.cache, looked_at, self.pulse)

    def _is_copied(self, item: Item) -> bool:
        return bool(self._place.cache) and (self._place.has_disk or bool(item.unpack))

    def _scan(self, number: int) -> Manifest:
        if number not in self.far.manifests:
            path = self._items[number].source
            with self.pulse.of(path):
                manifest = scan.scan(path, hashed=self._hashed, anchored=True, beat=self.pulse.beat)
            self.far.manifests[number] = manifest
            more = len(manifest.problems) - MOST_SAID
            for problem in (*manifest.problems[:MOST_SAID], *([f"so it is with {more} more"] if more > 0 else [])):
                self._note("staging-problem", item=self._items[number].to, problem=problem)
        return self.far.manifests[number]

    def _bring(self, number: int, item: Item) -> None:
        began = time.monotonic()
        if not self._is_copied(item):
            self._use_in_place(item)
            return
        changes = 0
        self._before.begin()
        while True:
            try:
                path, origin = self._unpacked(number, item) if item.unpack else self._plain(number)
                break
            except VoidError:
                self._begin_again(number)
            except BrokenError as error:
                self._before.lose(error)
                self._begin_again(number)
            except source.ChangedError as error:
                changes += 1
                if changes == TRIES:
                    raise StageError(f"`{error}` changes while it is read") from None
                self._begin_again(number)
        self._show(item, path)
        size, files = self.far.end(number)
        seconds = round(time.monotonic() - began, 2)
        self._note("staged-item", item=item.to, origin=origin, bytes=size, files=files, seconds=seconds)

    def _use_in_place(self, item: Item) -> None:
        if item.unpack:
            raise StageError(f"there is no disk here to unpack `{item.source}` on")
        try:
            with self.pulse.of(item.source):
                os.stat(item.source)
        except OSError as error:
            raise StageError(f"`{item.source}` {scan.problem(error)}") from None
        self._show(item, Path(os.path.realpath(item.source)))
        self._note("staged-item", item=item.to, origin="in place", bytes=0, files=0, seconds=0.0)

    def _begin_again(self, number: int) -> None:
        self.far.again(number)
        self._holdings.renew(number)

    # One item.

    def _key(self, number: int, suffix: str = "") -> str:
        """What it is by now. Who is behind us need not wait while we look at what may be here."""
        key = self._before.peer.what(number) if self._before.peer else self._scan(number).key
        if self._place.cache and self._place.cache.has(key + suffix):
            self._holdings[number].announce(key)
        return key

    def _plain(self, number: int) -> Tuple[Path, str]:
        """Where it is, and where it came from."""
        key = self._key(number)
        with self._slot(number, key) as slot:
            holding = self._holdings[number]
            if slot.manifest is not None:
                self.far.coming = Arrived.whole(slot.manifest, scan.encode(str(slot.tree)))
                self.far.manifests[number] = slot.manifest
                holding.offer(self.far.coming)
                return slot.tree, HERE
            manifest = self._manifest(number, key, holding)
            target = slot.target(manifest)
            origin = self._fill(number, target, holding)
            self._finish(number, slot, manifest, target.arrived)
        return slot.tree, origin

    def _manifest(self, number: int, key: str, holding: Holding) -> Manifest:
        """What is to come, and room for it."""
        if self._before.peer:
            holding.announce(key)
            try:
                manifest = Manifest.from_bytes(self._before.peer.manifest(number, key, holding))
            except ValueError as error:
                raise BrokenError(str(error)) from None
            if manifest.key != key:
                raise BrokenError("its manifest is another's")
            self.far.manifests[number] = manifest
        manifest = self._scan(number)
        if self._place.cache:
            self._place.cache.make_room(manifest.blocks, manifest.inodes)
        return manifest

    def _fill(self, number: int, target: Target, holding: Holding) -> str:
        """All its files; who is behind us gets them from now on. Returns where they came from."""
        self.far.coming = target.arrived
        origin = SOURCE
        if self._before.peer:
            holding.follow(target.arrived)
            try:
                self._before.peer.bring(target)
                origin = PEER
            except BrokenError as error:
                self._before.lose(error)
        else:
            holding.offer(target.arrived)
        path = self._items[number].source
        with self.pulse.of(path):
            source.fill(scan.encode(path), target, self.pulse.beat)
        target.finish()
        return origin

    def _finish(self, number: int, slot: Slot, manifest: Optional[Manifest], arrived: Optional[Arrived] = None) -> None:
        try:
            slot.finish(manifest, self._items[number].source)
        except ValueError as error:  # it is not what was read
            if self._before.peer:
                raise BrokenError(f"{error} came other than it was") from None
            raise source.ChangedError(str(error)) from None
        if arrived:  # who is behind us may be reading it
            arrived.root = scan.encode(str(slot.path)) + b"/" + os.path.basename(arrived.root)
        if not slot.share():
            raise VoidError("it was taken from us")

    def _unpacked(self, number: int, item: Item) -> Tuple[Path, str]:
        if item.unpack == "squashfs":
            image, origin = self._plain(number)
            with contextlib.suppress(archives.ArchiveError):
                folder = self._place.view.with_name(f"mount-{number}")
                self._kept.mounted(archives.mount(image, folder))
                return folder, origin
            with self._slot(number, image.parent.name + UNPACKED) as slot:
                if slot.manifest is None:
                    self._unpack(number, image, slot)
            return slot.tree, origin
        key = self._key(number, UNPACKED)
        with self._slot(number, key + UNPACKED) as slot:
            holding = self._holdings[number]
            holding.announce(key)
            if slot.manifest is not None:
                holding.fail(FailedError("it has it unpacked already"))
                return slot.tree, HERE
            manifest = self._manifest(number, key, holding)
            archive = slot.begin().with_name(ARCHIVE)
            target = Target(scan.encode(str(archive)), manifest)
            origin = self._fill(number, target, holding)
            self._unpack(number, archive, slot, target.arrived)
            self._kept.spent(slot.tree.with_name(ARCHIVE))
        return slot.tree, origin

    def _unpack(self, number: int, archive: Path, slot: Slot, arrived: Optional[Arrived] = None) -> None:
        """Into the slot, which others may use then."""
        item = self._items[number]
        if self._place.cache:
            space_check.make_room_to_unpack(self._place.cache, item, archive)
        try:
            archives.unpack(archive, item.unpack, slot.begin(), self._reads)
        except archives.ArchiveError as error:
            raise StageError(f"cannot unpack `{item.source}`: {error}") from None
        finally:
            self.far.unpacks = None
        self._finish(number, slot, None, arrived)

    def _reads(self, archive: archives.Reading) -> None:
        self.far.unpacks = archive

    @contextlib.contextmanager
    def _slot(self, number: int, key: str) -> Iterator[Slot]:
        if self._place.cache is None:
            raise StageError("there is no disk here")

        def wait(run: Optional[str]) -> None:
            self.far.waits_for = run
            if run is not None:
                self._note("staging-waits", item=self._items[number].to, run=run)

        with self._kept.slot(self._place.cache, key, wait) as slot:
            try:
                yield slot
            except AGAIN:
                self._holdings.renew(number)  # before what is half done goes, which may take long
                raise

    def live(self) -> None:
        """Say to jobs that wait for what we put there that we are still at work."""
        self._kept.live()

    def _show(self, item: Item, path: Path) -> None:
        """Where ranks look for it."""
        link = self._place.view / item.to
        link.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        link.symlink_to(path)

    # Afterwards.

    def forget(self) -> None:
        """No other node will ask any more."""
        self._kept.forget()
        self.far.forget()
        self._holdings = Holdings(len(self._items))

    def release(self) -> None:
        """Ranks have ended, or will not begin."""
        archives.end()
        self.forget()
        self._kept.release()
