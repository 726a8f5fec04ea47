"""The progress of a script: its epoch and its step of metrics."""

from __future__ import annotations

import contextlib
from typing import Any, Callable, Dict, Iterator

from serried.train.errors import TrainError


class Progress:
    """Epoch and step of metrics. They are the same on every rank, so a checkpoint holds one copy."""

    replicated = True

    def __init__(self, on_resume: Callable[[int], None]) -> None:
        self._on_resume = on_resume
        """Called with the step that the training resumes from."""
        self.epoch = 0
        self.step = 0
        self.is_done = False
        """The last loop over epochs has ended."""
        self._is_within = False
        self._counts = [0]
        """The epoch counts of this process's loops."""

    def until(self, count: int) -> Iterator[None]:
        """Yield while there is an epoch left of `count`.

        Raises TrainError if an earlier loop used up these epochs: this loop would train nothing, and exit with 0.
        """
        if self.epoch >= count and count <= max(self._counts):
            more = f"`run.epochs({max(self._counts) + count})` for {count} more"
            raise TrainError(
                f"`run.epochs({count})` has none left: an earlier loop ran {self.epoch}",
                f"epochs are counted over the whole training: {more}",
            )
        self._counts.append(count)
        self.is_done = False
        while self.epoch < count:
            yield
        self.is_done = True

    @contextlib.contextmanager
    def within(self) -> Iterator[int]:
        """While the script is in this epoch."""
        self._is_within = True
        try:
            yield self.epoch
        finally:
            self._is_within = False

    def tell(self, loader: Any) -> None:
        """Set the epoch of `loader`."""
        if hasattr(loader, "set_epoch"):
            loader.set_epoch(self.epoch)

    def register(self, loader: Any, *, resume: bool) -> bool:
        """Whether checkpoints keep the position of a new loader."""
        if not self._is_within:
            return True
        if resume:
            raise TrainError(
                "`run.loader` is called within an epoch: a resumed run could not match loaders to their positions",
                "call it once, before `run.epochs`; within an epoch, an evaluation needs `resume=False`",
            )
        self.tell(loader)
        return False

    def state_dict(self) -> Dict[str, Any]:
        return {"epoch": self.epoch, "step": self.step}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        self.epoch, self.step = int(state["epoch"]), int(state["step"])
        self._on_resume(self.step)
