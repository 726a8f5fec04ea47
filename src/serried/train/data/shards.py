"""A rank's and a worker's part of data that are read one after the other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Callable, Iterator, List, Optional, Tuple

from serried.train.data.order import Layout, key
from serried.train.data.sources import Shuffle, source_of
from serried.train.data.workers import reseed, worker_of_this_process


class Shard:
    """What `serried.train.shard` makes. It gives this rank's items; in a DataLoader's worker, the worker's."""

    def __init__(
        self,
        data: Any,
        *,
        layout: Layout,
        seed: Optional[int] = None,
        shuffle: Shuffle = False,
        transform: Optional[Callable[[Any], Any]] = None,
        tail: Optional[str] = None,
    ) -> None:
        self.source = source_of(data, shuffle)
        self.layout = layout
        self.is_seeded = seed is not None
        self.seed = seed or 0
        self.transform = transform
        self.tail = tail
        """What was asked for; None leaves it to the reader: a loader makes ranks equally long, a plain loop not."""
        self.epoch = 0
        self.start = 0

    def set_epoch(self, epoch: int, start: int = 0) -> None:
        """The next pass is over this epoch, from the item on that follows the `start` ones that all ranks consumed."""
        self.epoch, self.start = epoch, start

    def __iter__(self) -> Iterator[Any]:
        return (item for _, block in self.blocks(self.layout, self.seed, self.epoch, self.start) for item in block)

    def blocks(self, layout: Layout, seed: int, epoch: int, start: int) -> Iterator[Tuple[int, List[Any]]]:
        """(one past the step's last position, this reader's items), step after step."""
        worker = worker_of_this_process()
        if worker is not None:
            layout = replace(layout, worker=worker.id, workers=worker.num_workers)
        blocks = self.source.blocks(
            layout, seed, epoch, start, begin=lambda first: reseed(key(seed, epoch, first, layout.rank))
        )
        if self.transform is None:
            return blocks
        transform = self.transform
        return ((last, [transform(item) for item in block]) for last, block in blocks)
