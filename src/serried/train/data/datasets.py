"""The same as datasets of torch, for its DataLoader to read. Each gives (one past a step's last position, items)."""

from __future__ import annotations

from typing import Any, Callable, Iterator, List, MutableSequence, Optional, Tuple

from torch.utils.data import Dataset, IterableDataset, default_collate, default_convert

from serried.train.data.order import Layout, key
from serried.train.data.shards import Shard
from serried.train.data.sources import Indexed, fetch
from serried.train.data.workers import reseed

Pick = Tuple[int, int, List[int]]
"""A seed, one past the step's last position, and indices."""


class ShardDataset(Shard, IterableDataset[Any]):
    """A shard that torch's DataLoader knows as data to iterate."""


class StepSampler:
    """The sampler: a rank's steps, from the position that the clock shows when a pass begins."""

    def __init__(self, source: Indexed, layout: Layout, clock: MutableSequence[int]) -> None:
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
    """A shard step by step. `clock` is shared memory where workers outlive a pass: they read it as the next begins."""

    def __init__(self, shard: Shard, layout: Layout, clock: Any) -> None:
        self.shard = shard
        self.users_data = shard.source.data
        self.layout = layout
        self.clock = clock

    def __iter__(self) -> Iterator[Tuple[int, List[Any]]]:
        seed, epoch, start = (int(value) for value in self.clock)
        return self.shard.blocks(self.layout, seed, epoch, start)


class Collate:
    """Make a batch of a step's items, and let its position travel with it."""

    def __init__(self, collate: Optional[Callable[[Any], Any]], *, batched: bool) -> None:
        self.collate = collate or (default_collate if batched else default_convert)
        self.batched = batched

    def __call__(self, block: Tuple[int, List[Any]]) -> Tuple[int, Any]:
        last, items = block
        return last, self.collate(items if self.batched else items[0])
