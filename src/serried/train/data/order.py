"""Which rank and worker reads which item: arithmetic on positions in an epoch, the same for all kinds of data.

An epoch is one sequence of items in an order that depends on seed and epoch only. A step takes the next
`global_batch` items, whatever the number of ranks and workers. Of a step's items, rank r has those at r, r + world,
r + 2 world, ...; worker j mod workers reads step j. The consumed items are therefore a prefix of the sequence, and one
number is the position to resume from, in any layout.

With blocks of one item (`batch_size` 1), item i goes to shard i mod (world x workers), where
shard = worker x world + rank.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from hashlib import blake2b
from typing import Callable, Deque, Iterable, Iterator, List, Optional, Tuple, TypeVar

T = TypeVar("T")

TAILS = ("repeat", "drop", "keep")


@dataclass(frozen=True)
class Layout:
    """One of the readers: a worker of a rank."""

    rank: int
    world_size: int
    batch_size: int = 1
    """Items per step on a rank."""
    tail: str = "keep"
    """The last, incomplete step of an epoch. `repeat`: ranks without an item repeat one, at most world_size - 1 in all;
    `drop`: the step is skipped; `keep`: every item once, and some ranks have one more."""
    worker: int = 0
    workers: int = 1

    def __post_init__(self) -> None:
        if self.tail not in TAILS:
            raise ValueError(f"tail is {self.tail!r}\nhint: one of {', '.join(TAILS)}")
        if self.batch_size < 1:
            raise ValueError(f"batch_size is {self.batch_size}; it must be 1 or more")
        if not 0 <= self.rank < self.world_size:
            raise ValueError(f"rank {self.rank} of {self.world_size}: ranks count from 0 to world_size - 1")

    @property
    def global_batch(self) -> int:
        return self.world_size * self.batch_size

    def reads(self, step: int) -> bool:
        """Whether this worker reads a step; steps count from the start of the pass."""
        return step % self.workers == self.worker


@dataclass(frozen=True)
class Step:
    """One reader's items of one step, as positions in the epoch's sequence."""

    first: int
    last: int
    """One past the last item that the step consumes, over all ranks."""
    positions: List[int]


def key(*parts: object) -> int:
    """A seed below 2**63 from the values that identify a random choice, such as (seed, epoch).

    Adjacent inputs give unrelated seeds.
    """
    return int.from_bytes(blake2b(repr(parts).encode(), digest_size=8).digest(), "big") >> 1


def stand_in(position: int, total: int, world_size: int) -> int:
    """The item to repeat at `position`, past the end: the rank's own previous item, if it has one."""
    return position - world_size if position >= world_size else position % total


def steps(total: int, start: int, layout: Layout) -> Iterator[Step]:
    """A reader's steps over a sequence of `total` items, from `start` on."""
    stride = layout.global_batch
    for first in range(start + layout.worker * stride, total, layout.workers * stride):
        last = min(first + stride, total)
        if last - first < stride and layout.tail == "drop":
            return
        positions = list(range(first + layout.rank, last, layout.world_size))
        lacking = first + layout.rank + len(positions) * layout.world_size
        if layout.tail == "repeat" and len(positions) < -(-(last - first) // layout.world_size):
            positions.append(stand_in(lacking, total, layout.world_size))
        if positions:
            yield Step(first, last, positions)


def count_steps(total: int, layout: Layout) -> int:
    """Steps of a rank in a whole epoch, with all its workers."""
    whole, rest = divmod(total, layout.global_batch)
    if layout.tail == "drop" or rest == 0 or (layout.tail == "keep" and layout.rank >= rest):
        return whole
    return whole + 1


def pick(
    stream: Iterable[T],
    layout: Layout,
    *,
    start: int = 0,
    behind: Iterable[T] = (),
    begin: Optional[Callable[[int], object]] = None,
) -> Iterator[Tuple[int, List[T]]]:
    """As `steps`, for a sequence of unknown length: yields (one past the step's last position, items).

    `stream` starts at position `start`; `behind` holds up to `world_size` items before it. `begin` is called with the
    first position of each step that this worker reads, before the first item is read.
    """
    recent: Deque[T] = deque(behind, maxlen=layout.world_size)
    stride, repeat = layout.global_batch, layout.tail == "repeat"
    own: List[T] = []
    items = iter(stream)
    position = start
    while True:
        step, slot = divmod(position - start, stride)
        reads = layout.reads(step)
        if slot == 0 and reads and begin is not None:
            begin(position)
        try:
            item = next(items)
        except StopIteration:
            break
        if reads and slot % layout.world_size == layout.rank:
            own.append(item)
        if repeat:
            recent.append(item)
        position += 1
        if slot == stride - 1 and reads:
            yield position, own
            own = []
    if slot == 0 or not reads or layout.tail == "drop":
        return
    lacking = position - slot + layout.rank + len(own) * layout.world_size
    if repeat and len(own) < -(-slot // layout.world_size):
        own.append(recent[stand_in(lacking, position, layout.world_size) - (position - len(recent))])
    if own:
        yield position, own
