"""The shard of a rank, and of a worker, of data without random access."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Callable, Iterator, List, Optional, Tuple

from serried.train.data.order import Layout, key
from serried.train.data.sources import Shuffle, source_of
from serried.train.data.workers import reseed, worker_of_this_process


class Shard:
    """The value of `serried.train.shard`. Iterates over this rank's items; in a DataLoader worker, the worker's."""

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
        """None leaves the choice to the reader: a loader gives ranks equal lengths, a plain loop does not."""
        self.epoch = 0
        self.start = 0

    def set_epoch(self, epoch: int, start: int = 0) -> None:
        """Set the epoch of the next pass, and the position: the number of items that all ranks consumed."""
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
