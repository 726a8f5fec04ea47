"""Ready loaders of other libraries: torch's DataLoader, torchdata's StatefulDataLoader, others with a state."""

from __future__ import annotations

import sys
import warnings
from itertools import islice
from typing import Any, Dict, Iterator, Optional

from serried.train.data.order import PositionedLoader
from serried.train.data.workers import WorkerStart, remember, signals_blocked


def is_loader(data: Any) -> bool:
    """Whether `data` yields batches already. Torchdata's loader is recognised by its methods, without an import."""
    torch_data = sys.modules.get("torch.utils.data")
    if torch_data is None:
        return False
    if isinstance(data, torch_data.DataLoader):
        return True
    keeps_state = all(hasattr(data, name) for name in ("state_dict", "load_state_dict", "__iter__"))
    return keeps_state and not isinstance(data, torch_data.Dataset)


class ThirdPartyLoader(PositionedLoader):
    """A ready loader whose position is kept in checkpoints. Other attributes are those of the loader.

    The script decides how it is split over ranks, so its state is saved per rank and resumes with the same world size
    only. A loader without a state resumes by skipping the batches that were already read.
    """

    replicated = False

    def __init__(self, loader: Any, *, rank: int, world_size: int, resume: bool = True) -> None:
        super().__init__(resume=resume)  # the samples of its position are batches of this rank
        self.loader = loader
        self._rank = rank
        self._world_size = world_size
        self._keeps_state = hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict")
        self._loaded: Optional[Dict[str, Any]] = None
        if getattr(loader, "num_workers", 0) and hasattr(loader, "worker_init_fn"):
            loader.worker_init_fn = WorkerStart(loader.worker_init_fn)

    def __getattr__(self, name: str) -> Any:
        if name == "loader":  # not set yet while unpickling
            raise AttributeError(name)
        return getattr(self.loader, name)

    def __len__(self) -> int:
        return len(self.loader)

    @property
    def read_samples(self) -> Optional[int]:
        """As of a Loader, if the loader has a batch size."""
        size = getattr(self.loader, "batch_size", None)
        return self._batches * size if self._resume and isinstance(size, int) else None

    @property
    def steps(self) -> Optional[int]:
        return self._position.samples if self._resume else None

    def __iter__(self) -> Iterator[Any]:
        self.on_pass()
        loaded, self._loaded = self._loaded, None
        has_items = self._position.begin()
        for name in ("sampler", "batch_sampler", "dataset"):
            part: Any = getattr(self.loader, name, None)
            if hasattr(part, "set_epoch"):
                part.set_epoch(self._position.epoch)
        at = (self._position.epoch, self._position.samples)
        # A state from the end of an epoch holds the shuffling of the next one. A state from the middle of an epoch
        # that is not resumed would start the next epoch in its middle.
        resumes = loaded is not None and not loaded["finished"] and at == (loaded["epoch"], loaded["samples"])
        if loaded is not None and self._keeps_state and (resumes or loaded["finished"]):
            self.loader.load_state_dict(loaded["loader"])
        if not has_items:
            return iter(())
        with signals_blocked():
            batches = iter(self.loader)
        remember(batches)
        if resumes and not self._keeps_state:
            self._warn_of_lost_order()
            batches = islice(batches, self._position.samples, None)

        def advance(batch: Any) -> Any:
            self._position.samples += 1
            return batch

        return self._counted(batches, advance)

    def _warn_of_lost_order(self) -> None:
        sampler = getattr(self.loader, "sampler", None)
        if self._rank == 0 and hasattr(sampler, "generator") and getattr(sampler, "generator", None) is None:
            warnings.warn(
                "torch's global generator shuffles this loader: the order of the interrupted epoch is lost, and items "
                "may repeat or be missing\nhint: give its dataset to run.loader instead",
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
                f"{self._rank} of {self._world_size}\n"
                "hint: give its dataset to run.loader, which resumes with any world size"
            )
        self._position.load(state)
        self._loaded = state
