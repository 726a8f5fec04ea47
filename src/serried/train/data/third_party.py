"""Loaders that a script brings along ready: torch's DataLoader, torchdata's StatefulDataLoader, others with a state."""

from __future__ import annotations

import sys
import warnings
from itertools import islice
from typing import Any, Callable, Dict, Iterator, Optional

from serried.train.data.position import Position, Waits
from serried.train.data.workers import WorkerStart, remember, signals_held


def is_loader(data: Any) -> bool:
    """Whether `data` gives batches already. Torchdata's is known by what it does: nothing imports torchdata here."""
    torch_data = sys.modules.get("torch.utils.data")
    if torch_data is None:
        return False
    if isinstance(data, torch_data.DataLoader):
        return True
    keeps_state = all(hasattr(data, name) for name in ("state_dict", "load_state_dict", "__iter__"))
    return keeps_state and not isinstance(data, torch_data.Dataset)


class ForeignLoader:
    """The loader as it is, with its place in checkpoints. What it has beside that is reached through this.

    It is shared out over ranks as its maker decided, so its state is kept for each rank, and goes on in the same world
    only. One without a state of its own goes on by reading again what it had read.
    """

    replicated = False

    def __init__(self, loader: Any, *, rank: int, world_size: int, resume: bool = True) -> None:
        self.loader = loader
        self._rank = rank
        self._world_size = world_size
        self._resume = resume
        self._keeps_state = hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict")
        self._position = Position()  # its samples are batches of this rank
        self._waits = Waits()
        self.on_pass: Callable[[], object] = dict
        """Called when a pass begins."""
        self._loaded: Optional[Dict[str, Any]] = None
        if getattr(loader, "num_workers", 0) and hasattr(loader, "worker_init_fn"):
            loader.worker_init_fn = WorkerStart(loader.worker_init_fn)

    def __getattr__(self, name: str) -> Any:
        if name == "loader":  # not there yet: while it is unpickled
            raise AttributeError(name)
        return getattr(self.loader, name)

    def __len__(self) -> int:
        return len(self.loader)

    @property
    def epoch(self) -> int:
        return self._position.epoch

    @property
    def waited_seconds(self) -> float:
        return self._waits.seconds

    def set_epoch(self, epoch: int) -> None:
        self._position.set_epoch(epoch)

    def __iter__(self) -> Iterator[Any]:
        self.on_pass()
        loaded, self._loaded = self._loaded, None
        something = self._position.begin()
        self._tell_epoch()
        # One that was saved at an epoch's end holds what its next epoch is shuffled by; one that was saved in the
        # middle of an epoch that is not gone on with would begin the next one in the middle.
        goes_on = loaded is not None and not loaded["finished"] and self._stands_where(loaded)
        if loaded is not None and self._keeps_state and (goes_on or loaded["finished"]):
            self.loader.load_state_dict(loaded["loader"])
        if not something:
            return iter(())
        with signals_held():
            batches = iter(self.loader)
        remember(batches)
        if goes_on and not self._keeps_state:
            self._warn_of_a_random_order()
            batches = islice(batches, self._position.samples, None)
        return self._counted(batches)

    def _counted(self, batches: Iterator[Any]) -> Iterator[Any]:
        for batch in self._waits.timed(batches):
            self._position.samples += 1
            yield batch
        self._position.finished = True

    def _stands_where(self, state: Dict[str, Any]) -> bool:
        return (self._position.epoch, self._position.samples) == (state["epoch"], state["samples"])

    def _tell_epoch(self) -> None:
        for name in ("sampler", "batch_sampler", "dataset"):
            part: Any = getattr(self.loader, name, None)
            if hasattr(part, "set_epoch"):
                part.set_epoch(self._position.epoch)

    def _warn_of_a_random_order(self) -> None:
        sampler = getattr(self.loader, "sampler", None)
        if self._rank == 0 and hasattr(sampler, "generator") and getattr(sampler, "generator", None) is None:
            warnings.warn(
                "this loader is shuffled by torch's global generator: the order of the epoch that was begun is lost, "
                "and items of it may come twice or never\nhint: give its dataset to run.loader instead",
                stacklevel=3,
            )

    def state_dict(self) -> Dict[str, Any]:
        if not self._resume:
            return {}
        if self._loaded is not None:
            return self._loaded
        inner = self.loader.state_dict() if self._keeps_state else None
        return {**self._position.state(), "rank": self._rank, "world_size": self._world_size, "loader": inner}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        if not self._resume or not state:
            return
        saved = (int(state["rank"]), int(state["world_size"]))
        if saved != (self._rank, self._world_size):
            raise ValueError(
                f"the position of a ready loader was saved by rank {saved[0]} of {saved[1]}, and this is rank "
                f"{self._rank} of {self._world_size}\nhint: give its dataset to run.loader, which goes on in any world"
            )
        self._position.load(state)
        self._loaded = state
