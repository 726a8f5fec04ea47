"""An item of staged data on this node: its source, what of it has arrived, and what this job holds until it ends.

One thread stages the items and changes them. The threads that serve the next node, and the thread that reports
progress, read them.
"""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path
from typing import Callable, Iterator, List, Optional, Tuple, Union

from serried.agent.stage_in.archives import Reading
from serried.agent.stage_in.cache import CacheSlot
from serried.agent.stage_in.tree_writer import ExtentLog
from serried.base.manifest import Manifest

Bytes = Union[bytes, bytearray]


class StageError(Exception):
    """The data cannot be staged on this node. `str` is one sentence."""


class RestartedError(Exception):
    """The source changed while it was read, so the item is staged again from its beginning."""


class UnavailableError(Exception):
    """This node will not have the item. `str` says why."""


class Availability:
    """What this node can serve of an item: its key, then its manifest, then its extents.

    Each of them grows, so the next node never waits for a complete one. The thread that stages adds to it; each thread
    that serves waits for `seconds` at most, and gets RestartedError, UnavailableError or TimeoutError.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._key = ""
        self._manifest = bytearray()
        self._manifest_bytes: Optional[int] = None
        self._extents: Optional[ExtentLog] = None
        self._problem: Optional[Exception] = None

    @contextlib.contextmanager
    def _change(self) -> Iterator[None]:
        with self._changed:
            yield
            self._changed.notify_all()

    def announce(self, key: str) -> None:
        """Set the key. A node that has an item of this key already does not wait for more."""
        with self._change():
            self._key = key

    def expect(self, manifest_bytes: int) -> None:
        """Set the length of the manifest."""
        with self._change():
            self._manifest_bytes = manifest_bytes

    def add_manifest(self, piece: Bytes) -> None:
        with self._change():
            self._manifest += piece

    def set_extents(self, extents: ExtentLog) -> None:
        with self._change():
            self._extents = extents

    def set_complete(self, extents: ExtentLog) -> None:
        """Set all three at once, where the manifest is known."""
        manifest = extents.manifest.to_bytes()
        with self._change():
            self._key, self._manifest_bytes, self._extents = extents.manifest.key, len(manifest), extents
            self._manifest += manifest

    def fail(self, problem: Exception) -> None:
        """End with RestartedError or UnavailableError. The key of an unavailable item is served further on."""
        with self._change():
            self._problem = problem
            if self._extents:
                self._extents.fail(str(problem))

    def wait_for_key(self, seconds: float) -> str:
        with self._changed:
            if not (self._key and isinstance(self._problem, UnavailableError)):
                self._wait_for(lambda: bool(self._key), seconds)
            return self._key

    def wait_for_manifest_length(self, seconds: float) -> int:
        with self._changed:
            self._wait_for(lambda: self._manifest_bytes is not None, seconds)
            return self._manifest_bytes or 0

    def manifest_from(self, offset: int, seconds: float) -> bytes:
        """The manifest beyond `offset` as far as it is known, at least one byte."""
        with self._changed:
            self._wait_for(lambda: len(self._manifest) > offset, seconds)
            return bytes(self._manifest[offset:])

    def wait_for_extents(self, seconds: float) -> ExtentLog:
        with self._changed:
            self._wait_for(lambda: self._extents is not None, seconds)
            if self._extents is None:
                raise AssertionError
            return self._extents

    def raise_problem(self) -> None:
        with self._changed:
            if self._problem:
                raise self._problem

    def _wait_for(self, condition: Callable[[], bool], seconds: float) -> None:
        if not self._changed.wait_for(lambda: bool(self._problem) or condition(), seconds):
            raise TimeoutError
        if self._problem:
            raise self._problem


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
        """Bytes and files."""
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

    def heartbeat(self) -> None:
        """Show other jobs, which may wait for this item, that this job is alive."""
        for slot in list(self.slots):
            slot.heartbeat()

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
