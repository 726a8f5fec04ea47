"""Which rank and worker reads which item, and the position of a loader: the same for all kinds of data.

An epoch is one sequence of items in an order that depends on seed and epoch only. A step takes the next
`global_batch` items, whatever the number of ranks and workers. Of a step's items, rank r has those at r, r + world,
r + 2 world, ...; worker j mod workers reads step j. The consumed items are therefore a prefix of the sequence, and one
number is the position to resume from, in any layout.

With blocks of one item (`batch_size` 1), item i goes to shard i mod (world x workers), where
shard = worker x world + rank.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Callable, Deque, Dict, Iterable, Iterator, List, Optional, Tuple, TypeVar

T = TypeVar("T")

TAILS = ("repeat", "drop", "keep")


@dataclass(frozen=True)
class ReaderLayout:
    """The place of one reader, a worker of a rank, among all readers."""

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
class ReaderStep:
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


def steps(total: int, start: int, layout: ReaderLayout) -> Iterator[ReaderStep]:
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
            yield ReaderStep(first, last, positions)


def count_steps(total: int, layout: ReaderLayout) -> int:
    """Steps of a rank in a whole epoch, with all its workers."""
    whole, rest = divmod(total, layout.global_batch)
    if layout.tail == "drop" or rest == 0 or (layout.tail == "keep" and layout.rank >= rest):
        return whole
    return whole + 1


def count_items(total: int, layout: ReaderLayout) -> int:
    """Items of a rank in a whole epoch, with all its workers."""
    whole, rest = divmod(total, layout.global_batch)
    shared, odd = divmod(0 if layout.tail == "drop" else rest, layout.world_size)
    has_one_more = odd > 0 if layout.tail == "repeat" else layout.rank < odd
    return whole * layout.batch_size + shared + has_one_more


def pick(
    stream: Iterable[T],
    layout: ReaderLayout,
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


class LoaderPosition:
    """The position of a loader: epoch, samples of it that all ranks consumed, and whether its pass has ended.

    Maps passes over the data to epochs. A pass after `set_epoch` starts at the epoch's first item. Without `set_epoch`,
    every pass is a new epoch. The first pass after `load` resumes at the saved position. If the saved pass had ended
    and its epoch is set again, as by a loop over epochs that resumes in the middle of one, the pass is empty.
    """

    def __init__(self) -> None:
        self.epoch = 0
        self.samples = 0
        self.has_ended = False
        self._is_set = False
        self._begun = False
        self._resuming = False

    def set_epoch(self, epoch: int) -> None:
        self._is_set = True
        if epoch != self.epoch:
            self.epoch, self.samples, self.has_ended, self._resuming = epoch, 0, False, False

    def begin(self) -> bool:
        """Begin a pass. Returns whether it has items."""
        resumes = self._resuming and (self._is_set or not self.has_ended)
        if not resumes:
            if (self._begun or self._resuming) and not self._is_set:
                self.epoch += 1
            self.samples, self.has_ended = 0, False
        self._begun, self._resuming = True, False
        return not self.has_ended

    def state(self) -> Dict[str, Any]:
        return {"epoch": self.epoch, "samples": self.samples, "finished": self.has_ended}

    def load(self, state: Dict[str, Any]) -> None:
        self.epoch, self.samples = int(state["epoch"]), int(state["samples"])
        self.has_ended = bool(state["finished"])
        self._is_set, self._begun, self._resuming = False, False, True


class PositionedLoader:
    """What all loaders of a session have: a position, hooks, and how long the training has waited for data."""

    def __init__(self, *, resume: bool) -> None:
        self._resume = resume
        self._position = LoaderPosition()
        self._batches = 0
        """Batches that the script got."""
        self.waited_seconds = 0.0
        """How long training has waited for data so far."""
        self.on_pass: Callable[[], object] = dict
        """Called when a pass begins."""
        self.on_batch: Callable[[Any], object] = id
        """Called with each batch before the script receives it."""

    @property
    def epoch(self) -> int:
        return self._position.epoch

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next pass; without it every pass is a new epoch. `run.epochs` calls this."""
        self._position.set_epoch(epoch)

    def _counted(self, batches: Iterator[Any], advance: Callable[[Any], Any]) -> Iterator[Any]:
        """The batches of a pass; `advance` moves the position by what the loader yields, and returns the batch."""
        while True:
            began = time.perf_counter()
            try:
                batch = next(batches)
            except StopIteration:
                break
            finally:
                self.waited_seconds += time.perf_counter() - began
            self._batches += 1
            batch = advance(batch)
            self.on_batch(batch)
            yield batch
        self._position.has_ended = True
