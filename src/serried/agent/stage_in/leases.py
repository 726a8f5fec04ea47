"""What a job holds of the disk as long as its ranks run: places in the cache, mounts, archives for who is next."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Callable, Iterator, List

from serried.agent.stage_in.cache import Cache, Slot, Waits


class Kept:
    def __init__(self) -> None:
        self._slots: List[Slot] = []
        self._mounts: List[Callable[[], None]] = []
        self._spent: List[Path] = []

    @contextlib.contextmanager
    def slot(self, cache: Cache, key: str, waits: Waits) -> Iterator[Slot]:
        """A place in the cache, kept if all goes well."""
        slot = cache.take(key, waits)
        self._slots.append(slot)
        try:
            yield slot
        except BaseException:
            self._slots.remove(slot)
            slot.close()
            raise

    def live(self) -> None:
        """Other jobs may wait for what we put there."""
        for slot in list(self._slots):
            slot.live()

    def mounted(self, unmount: Callable[[], None]) -> None:
        self._mounts.append(unmount)

    def spent(self, path: Path) -> None:
        """A file that nobody needs but other nodes, while they stage."""
        self._spent.append(path)

    def forget(self) -> None:
        """No other node will ask any more."""
        for path in self._spent:
            with contextlib.suppress(OSError):
                path.unlink()
        self._spent = []
        for slot in self._slots:
            slot.forget()

    def release(self) -> None:
        """Ranks have ended, or will not begin: what is half done goes."""
        self.forget()
        for unmount in self._mounts:
            unmount()
        for slot in self._slots:
            slot.close()
