"""What this node can serve of each staged item: its key, then its manifest, then its extents.

Each of them grows, so the next node does not wait for any of them to be complete.
"""

from __future__ import annotations

import threading
from typing import Any, Callable, List, Optional, Union

from serried.agent.stage_in.extents import ExtentLog

Bytes = Union[bytes, bytearray]


class RestartedError(Exception):
    """What was held is not what the item is by now: begin it again."""


class UnavailableError(Exception):
    """The item will not come from here, and why."""


class ItemAvailability:
    """One item. Who brings it here adds; threads that serve it wait."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._key = ""
        self._manifest = bytearray()
        self._manifest_bytes: Optional[int] = None
        self._extents: Optional[ExtentLog] = None
        self._problem: Optional[Exception] = None

    # Who brings it here.

    def announce(self, key: str) -> None:
        """What it is: its content's key. Who has that already need not wait for more."""
        with self._changed:
            self._key = key
            self._changed.notify_all()

    def expect(self, manifest_bytes: int) -> None:
        """How long its manifest will be."""
        with self._changed:
            self._manifest_bytes = manifest_bytes
            self._changed.notify_all()

    def add_manifest(self, piece: Bytes) -> None:
        with self._changed:
            self._manifest += piece
            self._changed.notify_all()

    def set_extents(self, extents: ExtentLog) -> None:
        """The files themselves, whole or as they come."""
        with self._changed:
            self._extents = extents
            self._changed.notify_all()

    def set_complete(self, extents: ExtentLog) -> None:
        """All at once, for who knows the manifest."""
        manifest = extents.manifest.to_bytes()
        self.announce(extents.manifest.key)
        self.expect(len(manifest))
        self.add_manifest(manifest)
        self.set_extents(extents)

    def fail(self, problem: Exception) -> None:
        """VoidError where the item is begun again, FailedError where it will not come from here; its key is known."""
        with self._changed:
            self._problem = problem
            if self._extents:
                self._extents.fail(str(problem))
            self._changed.notify_all()

    # Who serves it. Each waits `seconds` at most, and raises VoidError, FailedError or TimeoutError.

    def wait_for_key(self, seconds: float) -> str:
        """Its key."""
        with self._changed:
            if self._key and isinstance(self._problem, UnavailableError):
                return self._key
            self._wait_for(lambda: bool(self._key), seconds)
            return self._key

    def wait_for_manifest_length(self, seconds: float) -> int:
        """How long its manifest is."""
        with self._changed:
            self._wait_for(lambda: self._manifest_bytes is not None, seconds)
            return self._manifest_bytes or 0

    def manifest_from(self, offset: int, seconds: float) -> bytes:
        """What is known of the manifest beyond `offset`, something at least."""
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
        def is_resolved() -> Any:
            return self._problem or condition()

        if not self._changed.wait_for(is_resolved, seconds):
            raise TimeoutError
        if self._problem:
            raise self._problem


class Availability:
    """Those of all items, in the order of the plan."""

    def __init__(self, items: int) -> None:
        self._items: List[ItemAvailability] = [ItemAvailability() for _ in range(items)]

    def __getitem__(self, item: int) -> ItemAvailability:
        return self._items[item]

    def restart(self, item: int) -> ItemAvailability:
        """Begin `item` again: the source was changed while it was read. The nodes behind us are told."""
        old, self._items[item] = self._items[item], ItemAvailability()
        old.fail(RestartedError("it is begun again"))
        return self._items[item]
