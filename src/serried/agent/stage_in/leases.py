"""Cache slots, mounts and archives that a job holds while its ranks run."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Callable, Iterator, List

from serried.agent.stage_in.cache import CacheSlot, StagingCache, Waits


class Leases:
    def __init__(self) -> None:
        self._slots: List[CacheSlot] = []
        self._mounts: List[Callable[[], None]] = []
        self._temporary: List[Path] = []

    @contextlib.contextmanager
    def acquire(self, cache: StagingCache, key: str, waits: Waits) -> Iterator[CacheSlot]:
        """A place in the cache, kept if all goes well."""
        slot = cache.acquire(key, waits)
        self._slots.append(slot)
        try:
            yield slot
        except BaseException:
            self._slots.remove(slot)
            slot.close()
            raise

    def heartbeat(self) -> None:
        """Other jobs may wait for what we put there."""
        for slot in list(self._slots):
            slot.heartbeat()

    def add_mount(self, unmount: Callable[[], None]) -> None:
        self._mounts.append(unmount)

    def add_temporary(self, path: Path) -> None:
        """A file that nobody needs but other nodes, while they stage."""
        self._temporary.append(path)

    def end_serving(self) -> None:
        """No other node will ask any more."""
        for path in self._temporary:
            with contextlib.suppress(OSError):
                path.unlink()
        self._temporary = []
        for slot in self._slots:
            slot.drop_manifest()

    def release(self) -> None:
        """Ranks have ended, or will not begin: what is half done goes."""
        self.end_serving()
        for unmount in self._mounts:
            unmount()
        for slot in self._slots:
            slot.close()
