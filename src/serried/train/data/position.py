"""The position of a loader: epoch, samples of it that all ranks consumed, and whether its pass has ended."""

from __future__ import annotations

import time
from typing import Any, Dict, Iterator, TypeVar

T = TypeVar("T")


class Position:
    """Maps passes over the data to epochs.

    A pass after `set_epoch` starts at the epoch's first item. Without `set_epoch`, every pass is a new epoch. The
    first pass after `load` resumes at the saved position. If the saved pass had ended and its epoch is set again, as
    by a loop over epochs that resumes in the middle of one, the pass is empty.
    """

    def __init__(self) -> None:
        self.epoch = 0
        self.samples = 0
        self.finished = False
        self._is_set = False
        self._begun = False
        self._resuming = False

    def set_epoch(self, epoch: int) -> None:
        self._is_set = True
        if epoch != self.epoch:
            self.epoch, self.samples, self.finished, self._resuming = epoch, 0, False, False

    def begin(self) -> bool:
        """Begin a pass. Returns whether it has items."""
        resumes = self._resuming and (self._is_set or not self.finished)
        if not resumes:
            if (self._begun or self._resuming) and not self._is_set:
                self.epoch += 1
            self.samples, self.finished = 0, False
        self._begun, self._resuming = True, False
        return not self.finished

    def state(self) -> Dict[str, Any]:
        return {"epoch": self.epoch, "samples": self.samples, "finished": self.finished}

    def load(self, state: Dict[str, Any]) -> None:
        self.epoch, self.samples = int(state["epoch"]), int(state["samples"])
        self.finished = bool(state["finished"])
        self._is_set, self._begun, self._resuming = False, False, True


class DataWait:
    """The time that a loop has waited for its batches."""

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
