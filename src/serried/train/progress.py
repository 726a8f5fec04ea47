"""How far a script has come."""

from __future__ import annotations

import contextlib
from typing import Any, Callable, Dict, Iterator

from serried.train.errors import TrainError


class Progress:
    """Its epoch, and its step of metrics; the same on every rank, so one copy goes into a checkpoint."""

    replicated = True

    def __init__(self, on_resume: Callable[[int], None]) -> None:
        self._on_resume = on_resume
        """Told the step that is gone on from."""
        self.epoch = 0
        self.step = 0
        self.is_done = False
        """Every epoch of the last loop over them was gone through."""
        self._is_within = False
        self._counts = [0]
        """What this process's loops over epochs were given."""

    def until(self, count: int) -> Iterator[None]:
        """As long as there is an epoch left of `count`.

        Raises TrainError where another loop has gone through them already: this one would train nothing, with success.
        """
        if self.epoch >= count and count <= max(self._counts):
            more = f"`run.epochs({max(self._counts) + count})` for {count} more"
            raise TrainError(
                f"`run.epochs({count})` has none left: a loop before this one has gone through {self.epoch}",
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
        """Which epoch it is."""
        if hasattr(loader, "set_epoch"):
            loader.set_epoch(self.epoch)

    def admit(self, loader: Any, *, resume: bool) -> bool:
        """Whether a new loader is one of those that checkpoints number, and that each epoch is told to."""
        if not self._is_within:
            return True
        if resume:
            raise TrainError(
                "`run.loader` is called within an epoch: a run that goes on could not tell which loader is which",
                "make it once, before `run.epochs`; one for an evaluation may be made here with `resume=False`",
            )
        self.tell(loader)
        return False

    def state_dict(self) -> Dict[str, Any]:
        return {"epoch": self.epoch, "step": self.step}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        self.epoch, self.step = int(state["epoch"]), int(state["step"])
        self._on_resume(self.step)
