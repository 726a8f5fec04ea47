"""Where a loader stands: epoch, samples consumed in it by all ranks, and whether its pass came to its end."""

from __future__ import annotations

import time
from typing import Any, Dict, Iterator, TypeVar

T = TypeVar("T")


class Position:
    """The rules by which passes over the data become epochs.

    Whoever calls `set_epoch` decides: a pass in an epoch that has been set begins at its first item. Where nobody
    calls it, every pass is an epoch of its own. The first pass after `load` goes on where the saved one stood; if
    that one was finished and its epoch is set again, as by a loop over epochs that goes on in the middle of one,
    nothing is left.
    """

    def __init__(self) -> None:
        self.epoch = 0
        self.samples = 0
        self.finished = False
        self._told = False
        self._begun = False
        self._resuming = False

    def set_epoch(self, epoch: int) -> None:
        self._told = True
        if epoch != self.epoch:
            self.epoch, self.samples, self.finished, self._resuming = epoch, 0, False, False

    def begin(self) -> bool:
        """Begin a pass; whether there is anything to read in it."""
        goes_on = self._resuming and (self._told or not self.finished)
        if not goes_on:
            if (self._begun or self._resuming) and not self._told:
                self.epoch += 1
            self.samples, self.finished = 0, False
        self._begun, self._resuming = True, False
        return not self.finished

    def state(self) -> Dict[str, Any]:
        return {"epoch": self.epoch, "samples": self.samples, "finished": self.finished}

    def load(self, state: Dict[str, Any]) -> None:
        self.epoch, self.samples = int(state["epoch"]), int(state["samples"])
        self.finished = bool(state["finished"])
        self._told, self._begun, self._resuming = False, False, True


class Waits:
    """How long a loop has waited for its batches."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def timed(self, batches: Iterator[T]) -> Iterator[T]:
        while True:
            began = time.perf_counter()
            try:
                batch = next(batches)
            except StopIteration:
                return
            finally:
                self.seconds += time.perf_counter() - began
            yield batch
