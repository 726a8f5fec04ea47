"""What this node can give the next one of each item that is staged: first what it is, then its manifest, then itself.

All of it grows: who serves the next node need not wait for the whole of anything.
"""

from __future__ import annotations

import threading
from typing import Any, Callable, List, Optional, Union

from serried.agent.stage_in.extents import Arrived

Bytes = Union[bytes, bytearray]


class VoidError(Exception):
    """What was held is not what the item is by now: begin it again."""


class FailedError(Exception):
    """The item will not come from here, and why."""


class Holding:
    """One item. Who brings it here adds; threads that serve it wait."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._key = ""
        self._manifest = bytearray()
        self._manifest_bytes: Optional[int] = None
        self._arrived: Optional[Arrived] = None
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

    def follow(self, arrived: Arrived) -> None:
        """The files themselves, whole or as they come."""
        with self._changed:
            self._arrived = arrived
            self._changed.notify_all()

    def offer(self, arrived: Arrived) -> None:
        """All at once, for who knows the manifest."""
        manifest = arrived.manifest.to_bytes()
        self.announce(arrived.manifest.key)
        self.expect(len(manifest))
        self.add_manifest(manifest)
        self.follow(arrived)

    def fail(self, problem: Exception) -> None:
        """VoidError where the item is begun again, FailedError where it will not come from here; its key is known."""
        with self._changed:
            self._problem = problem
            if self._arrived:
                self._arrived.fail(str(problem))
            self._changed.notify_all()

    # Who serves it. Each waits `seconds` at most, and raises VoidError, FailedError or TimeoutError.

    def what(self, seconds: float) -> str:
        """Its key."""
        with self._changed:
            if self._key and isinstance(self._problem, FailedError):
                return self._key
            self._await(lambda: bool(self._key), seconds)
            return self._key

    def length(self, seconds: float) -> int:
        """How long its manifest is."""
        with self._changed:
            self._await(lambda: self._manifest_bytes is not None, seconds)
            return self._manifest_bytes or 0

    def manifest_from(self, offset: int, seconds: float) -> bytes:
        """What is known of the manifest beyond `offset`, something at least."""
        with self._changed:
            self._await(lambda: len(self._manifest) > offset, seconds)
            return bytes(self._manifest[offset:])

    def arrived(self, seconds: float) -> Arrived:
        with self._changed:
            self._await(lambda: self._arrived is not None, seconds)
            if self._arrived is None:
                raise AssertionError
            return self._arrived

    def check(self) -> None:
        with self._changed:
            if self._problem:
                raise self._problem

    def _await(self, condition: Callable[[], bool], seconds: float) -> None:
        def is_settled() -> Any:
            return self._problem or condition()

        if not self._changed.wait_for(is_settled, seconds):
            raise TimeoutError
        if self._problem:
            raise self._problem


class Holdings:
    """Those of all items, in the order of the plan."""

    def __init__(self, items: int) -> None:
        self._holdings: List[Holding] = [Holding() for _ in range(items)]

    def __getitem__(self, item: int) -> Holding:
        return self._holdings[item]

    def renew(self, item: int) -> Holding:
        """Begin `item` again: the source was changed while it was read. The nodes behind us are told."""
        void, self._holdings[item] = self._holdings[item], Holding()
        void.fail(VoidError("it is begun again"))
        return self._holdings[item]
