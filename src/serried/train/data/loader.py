"""A loader that counts the samples that all ranks consumed, and resumes there with any number of ranks.

Torch's DataLoader reads its datasets: each yields (one past a step's last position, items).
"""

from __future__ import annotations

import warnings
from typing import Any, Callable, Dict, Iterator, List, MutableSequence, Optional, Tuple, cast

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate, default_convert

from serried.train.data.order import PositionedLoader, ReaderLayout, count_steps, key
from serried.train.data.sources import Indexed, Shard, fetch
from serried.train.data.workers import WorkerStart, remember, reseed, signals_blocked

OURS = {
    "sampler": "`shuffle` and the seed decide the order, so that it can be resumed; use a `Subset` to select items",
    "batch_sampler": "`batch_size` and `shuffle` decide, so that it can be resumed; `batch_size=None` for batches",
    "generator": "the order and the workers' random numbers follow from `st.session(seed=…)`",
    "in_order": "batches out of order have no position to resume from",
}


Pick = Tuple[int, int, List[int]]
"""A seed, one past the step's last position, and indices."""


class ShardDataset(Shard, IterableDataset[Any]):
    """Wraps a shard as torch's IterableDataset."""


class StepSampler:
    """The sampler: a rank's steps, from the position that `clock` has when a pass begins."""

    def __init__(self, source: Indexed, layout: ReaderLayout, clock: MutableSequence[int]) -> None:
        self.source = source
        self.layout = layout
        self.clock = clock

    def __iter__(self) -> Iterator[Pick]:
        seed, epoch, start = self.clock
        for step, indices in self.source.picked(self.layout, seed, epoch, start):
            yield key(seed, epoch, step.first, self.layout.rank), step.last, indices


class IndexedDataset(Dataset[Any]):
    def __init__(self, data: Any) -> None:
        self.users_data = data

    def __getitem__(self, pick: Pick) -> Tuple[int, List[Any]]:
        seed, last, indices = pick
        reseed(seed)
        return last, fetch(self.users_data, indices)


class BlockDataset(IterableDataset[Any]):
    """A shard step by step. `clock` is shared memory if workers outlive a pass: they read it when the next begins."""

    def __init__(self, shard: Shard, layout: ReaderLayout, clock: Any) -> None:
        self.shard = shard
        self.users_data = shard.source.data
        self.layout = layout
        self.clock = clock

    def __iter__(self) -> Iterator[Tuple[int, List[Any]]]:
        seed, epoch, start = (int(value) for value in self.clock)
        return self.shard.blocks(self.layout, seed, epoch, start)


class Collate:
    """Creates a batch from a step's items, and keeps its position beside it."""

    def __init__(self, collate: Optional[Callable[[Any], Any]], *, batched: bool) -> None:
        self.collate = collate or (default_collate if batched else default_convert)
        self.batched = batched

    def __call__(self, block: Tuple[int, List[Any]]) -> Tuple[int, Any]:
        last, items = block
        return last, self.collate(items if self.batched else items[0])


class Loader(PositionedLoader):
    """Batches of this rank, pass after pass. Create it with `run.loader` or `make_loader`.

    Its state is the same on every rank: epoch, samples of it that all ranks consumed, seed, global batch size.
    """

    replicated = True

    def __init__(
        self,
        shard: Shard,
        layout: ReaderLayout,
        *,
        batched: bool,
        by_index: bool,
        resume: bool,
        options: Dict[str, Any],
    ) -> None:
        for name in sorted(OURS.keys() & options.keys()):
            raise TypeError(f"this loader does not take `{name}`: {OURS[name]}\nhint: or pass your own DataLoader")
        super().__init__(resume=resume)
        self.dataset = shard.source.data
        self.batch_size = layout.batch_size
        """Items per step on this rank."""
        self.global_batch = layout.global_batch
        """Items per step on all ranks together."""
        self._shard = shard
        self._layout = layout
        self._is_batched = batched
        self._seed = shard.seed
        self._generator = torch.Generator()
        self._clock: Any = [0, 0, 0]
        """Seed, epoch and position, as the next pass begins."""
        if options.get("persistent_workers") and not by_index:
            self._clock = torch.zeros(3, dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]
        data: Dataset[Any] = BlockDataset(shard, layout, self._clock)
        sampler: Any = None
        if by_index:
            data = IndexedDataset(shard.source.data)
            sampler = StepSampler(cast("Indexed", shard.source), layout, self._clock)
        self._loader: DataLoader[Any] = DataLoader(
            data,
            batch_size=None,
            sampler=sampler,
            collate_fn=cast("Any", Collate(options.pop("collate_fn", None), batched=batched)),
            worker_init_fn=WorkerStart(options.pop("worker_init_fn", None)),
            generator=self._generator,
            **options,
        )
        self.num_workers = self._loader.num_workers

    @property
    def samples(self) -> int:
        """Items of this epoch that all ranks together have consumed."""
        return self._position.samples

    @property
    def read_samples(self) -> Optional[int]:
        """Items that this rank has read for training so far; None for evaluation, and if items are batches already."""
        return self._batches * self.batch_size if self._resume and self._is_batched else None

    @property
    def steps(self) -> Optional[int]:
        """Steps of this epoch that have been read for training; None for evaluation."""
        return -(-self.samples // self.global_batch) if self._resume else None

    def __len__(self) -> int:
        """Batches of this rank in a whole epoch, even if the pass resumes in its middle."""
        length = self._shard.source.length()
        if length is None:
            raise TypeError("data without a length: the number of batches is unknown until they have been read")
        return count_steps(length, self._layout)

    def __iter__(self) -> Iterator[Any]:
        self.on_pass()
        if not self._position.begin():
            return iter(())
        position = self._position
        self._clock[0], self._clock[1], self._clock[2] = self._seed, position.epoch, position.samples
        # Else torch would draw the workers' seed from the model's generator, and resuming in the middle of an epoch
        # would shift every later dropout.
        self._generator.manual_seed(key(self._seed, position.epoch, position.samples, self._layout.rank))
        with signals_blocked():
            batches = iter(self._loader)
        remember(batches)

        def advance(positioned: Tuple[int, Any]) -> Any:
            position.samples = int(positioned[0])
            return positioned[1]

        return self._counted(batches, advance)

    def state_dict(self) -> Dict[str, Any]:
        """The position after the last batch that the script received; prefetched batches do not count."""
        if not self._resume:
            return {}
        return {
            **self._position.state(),
            "seed": self._seed,
            "global_batch": self.global_batch,
            "shuffle": self._shard.source.shuffle,
            "length": self._shard.source.length(),
        }

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Resume at the saved position. The seed is the saved one, so the order of the epoch stays."""
        if not self._resume or not state:
            return
        for name, now in (("length", self._shard.source.length()), ("shuffle", self._shard.source.shuffle)):
            if state.get(name, now) != now:
                self._warn(
                    f"the data's {name} changed from {state[name]} to {now}: the order changes too, and items of the "
                    "current epoch may repeat or be missing"
                )
        if state["global_batch"] != self.global_batch:
            self._warn(_changed_batch(int(state["global_batch"]), self._layout))
        self._seed = int(state["seed"])
        self._position.load(state)

    def _warn(self, message: str) -> None:
        if self._layout.rank == 0:
            warnings.warn(message, stacklevel=3)


def _changed_batch(before: int, layout: ReaderLayout) -> str:
    ranks = f"{layout.world_size} ranks of {layout.batch_size}"
    message = (
        f"the global batch size changed from {before} to {layout.global_batch} ({ranks}): "
        "sample order is unchanged, but step boundaries differ"
    )
    each, rest = divmod(before, layout.world_size)
    return message if rest else f"{message}\nhint: batch_size={each} keeps it"
