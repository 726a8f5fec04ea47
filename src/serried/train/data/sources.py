"""Data in the order of an epoch: by index if they have a length, else in sequence. And the shard of a reader."""

from __future__ import annotations

import random
import sys
from dataclasses import replace
from itertools import islice
from typing import Any, Callable, Iterator, List, Optional, Set, Tuple, Union

from serried.train.data.order import ReaderLayout, ReaderStep, count_items, key, pick, steps
from serried.train.data.workers import reseed, worker_of_this_process

Shuffle = Union[bool, int]
"""True: the whole epoch; a number: within windows of that many items; False: in the given order."""
Begin = Callable[[int], object]

MOST_PARTS = 64
"""Data sets within a data set that are compared."""


class Shard:
    """The value of `serried.train.shard`. Iterates over this rank's items; in a DataLoader worker, the worker's."""

    def __init__(
        self,
        data: Any,
        *,
        layout: ReaderLayout,
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

    def __len__(self) -> int:
        """This rank's items in a whole epoch, with all its workers. Raises TypeError if the data have no length."""
        length = self.source.length()
        if length is None:
            raise TypeError("data without a length: the number of items is unknown until they have been read")
        return count_items(length, self.layout)

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Iterator[Any]:
        return (item for _, block in self.blocks(self.layout, self.seed, self.epoch, self.start) for item in block)

    def blocks(self, layout: ReaderLayout, seed: int, epoch: int, start: int) -> Iterator[Tuple[int, List[Any]]]:
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


def is_indexed(data: Any) -> bool:
    """Whether `data` can be read by index. An IterableDataset of torch has a `__getitem__` that only raises."""
    torch_data = sys.modules.get("torch.utils.data")
    if torch_data is not None and isinstance(data, torch_data.IterableDataset):
        return False
    return hasattr(data, "__getitem__") and hasattr(data, "__len__")


def source_of(data: Any, shuffle: Shuffle) -> Union[Indexed, Streamed]:
    """Raises TypeError if `data` cannot be read once per epoch."""
    if not isinstance(shuffle, int) or shuffle < 0:
        raise TypeError(f"shuffle is {shuffle!r}\nhint: True, False, or the size of a window in items")
    if is_indexed(data):
        return Indexed(data, shuffle)
    if isinstance(data, Iterator) and type(data).__module__ in {"builtins", "itertools", "_io"}:
        raise TypeError(
            f"a {type(data).__name__} can be read only once, and an epoch needs to read it again\n"
            "hint: pass the function that creates it, or an object whose `__iter__` restarts"
        )
    if not hasattr(data, "__iter__") and not callable(data):
        raise TypeError(
            f"a {type(data).__name__} cannot be read: it has neither `__getitem__` with `__len__`, nor `__iter__`"
        )
    if shuffle is True:
        raise TypeError(
            "data without `__getitem__` and `__len__` cannot be shuffled as a whole\n"
            "hint: shuffle=10000 shuffles within windows of 10000 items, which are kept in memory"
        )
    return Streamed(data, shuffle)


def window_order(size: int, seed: int, epoch: int, window: int) -> List[int]:
    order = list(range(size))
    random.Random(key(seed, epoch, window)).shuffle(order)  # noqa: S311 - an order, not a secret
    return order


class Indexed:
    """Data with a length. A reader reads its own items only."""

    def __init__(self, data: Any, shuffle: Shuffle) -> None:
        self.data = data
        self.shuffle = shuffle

    def length(self) -> int:
        return len(self.data)

    def indices(self, seed: int, epoch: int) -> Callable[[List[int]], List[int]]:
        """A function from positions in the epoch to indices into the data."""
        total = self.length()
        if self.shuffle is True:
            return _permutation(total, seed, epoch)
        if self.shuffle:
            return _windows(total, int(self.shuffle), seed, epoch)
        return lambda positions: positions

    def picked(self, layout: ReaderLayout, seed: int, epoch: int, start: int) -> Iterator[Tuple[ReaderStep, List[int]]]:
        indices = self.indices(seed, epoch)
        for step in steps(self.length(), start, layout):
            yield step, indices(step.positions)

    def blocks(
        self, layout: ReaderLayout, seed: int, epoch: int, start: int, begin: Optional[Begin] = None
    ) -> Iterator[Tuple[int, List[Any]]]:
        for step, indices in self.picked(layout, seed, epoch, start):
            if begin is not None:
                begin(step.first)
            yield step.last, fetch(self.data, indices)


class Streamed:
    """Data that every reader reads from the start, keeping its own items.

    `data` is an iterable, or a function without arguments that returns one. With a method `iter_from(position)` a
    reader resumes by that method; otherwise it reads up to the position. A method `set_epoch` is called first.
    """

    def __init__(self, data: Any, shuffle: Shuffle) -> None:
        self.data = data
        self.shuffle = shuffle

    def length(self) -> Optional[int]:
        """The length that the data report. Only for warnings: a stream's length is often a guess."""
        try:
            return len(self.data)
        except (TypeError, NotImplementedError):
            return None

    def blocks(
        self, layout: ReaderLayout, seed: int, epoch: int, start: int, begin: Optional[Begin] = None
    ) -> Iterator[Tuple[int, List[Any]]]:
        before = max(0, start - layout.world_size) if layout.tail == "repeat" else start
        size = int(self.shuffle)
        if size:
            stream: Iterator[Any] = islice(self._by_windows(size, seed, epoch, before // size), before % size, None)
        else:
            stream = self._opened(epoch, before)
        behind = list(islice(stream, start - before))
        return pick(stream, layout, start=start, behind=behind, begin=begin)

    def _by_windows(self, size: int, seed: int, epoch: int, number: int) -> Iterator[Any]:
        stream = self._opened(epoch, number * size)
        while True:
            window = list(islice(stream, size))
            if not window:
                return
            for index in window_order(len(window), seed, epoch, number):
                yield window[index]
            number += 1

    def _opened(self, epoch: int, start: int) -> Iterator[Any]:
        data = self.data if hasattr(self.data, "__iter__") else self.data()
        if hasattr(data, "set_epoch"):
            data.set_epoch(epoch)
        if start and hasattr(data, "iter_from"):
            return iter(data.iter_from(start))
        return islice(iter(data), start, None)


def fetch(data: Any, indices: List[int]) -> List[Any]:
    """Items by index, all at once if the data have `__getitems__`, as torch's own loader reads them."""
    at_once = getattr(data, "__getitems__", None)
    return list(at_once(indices)) if at_once is not None else [data[index] for index in indices]


def _permutation(total: int, seed: int, epoch: int) -> Callable[[List[int]], List[int]]:
    import torch  # Python's own shuffle takes seconds for millions of items

    order = torch.randperm(total, generator=torch.Generator().manual_seed(key(seed, epoch)))
    return lambda positions: [int(index) for index in order[torch.tensor(positions, dtype=torch.int64)].tolist()]


def _windows(total: int, size: int, seed: int, epoch: int) -> Callable[[List[int]], List[int]]:
    known: List[Tuple[int, List[int]]] = []  # the last window: positions come in order

    def index_at(position: int) -> int:
        number, offset = divmod(position, size)
        if not known or known[0][0] != number:
            known[:] = [(number, window_order(min(size, total - number * size), seed, epoch, number))]
        return number * size + known[0][1][offset]

    return lambda positions: [index_at(position) for position in positions]


# Whether all ranks have the same data.


def outline(data: Any) -> Any:
    """What tells the shares of ranks apart, without `data[i]`: lengths, and lists of whole numbers.

    Of an object it covers the sequences of its own length and the data sets among its attributes: a Subset's indices,
    the parts of a ConcatDataset. Contents do not count: ranks may fill caches, or create data at random.
    """
    return _outline(data, set())


def _outline(data: Any, seen: Set[int]) -> Any:
    if id(data) in seen or len(seen) > MOST_PARTS:
        return None
    seen.add(id(data))
    if _is_sequence(data):
        return _outline_of_sequence(data)
    length = len(data) if is_indexed(data) else None
    inner: List[Any] = [length]
    attributes = [getattr(data, "__dict__", {})]
    attributes += [value for value in attributes[0].values() if isinstance(value, dict)]
    for name, value in (each for names in attributes for each in names.items()):
        values = value if isinstance(value, (list, tuple)) else [value]
        if values and all(map(_is_dataset, values)):
            inner.append([str(name), [_outline(each, seen) for each in values]])
        elif _is_sequence(value) and len(value) == length:
            inner.append([str(name), _outline_of_sequence(value)])
    return inner


def _outline_of_sequence(data: Any) -> Any:
    is_whole = isinstance(data, range) or (isinstance(data, list) and all(type(each) is int for each in data))
    return [len(data), key(data)] if is_whole else [len(data)]


def _is_sequence(value: Any) -> bool:
    """Whether `value[i]` costs nothing: a list or the like, a tensor, an array, a data frame."""
    is_array = (hasattr(value, "dtype") or hasattr(value, "iloc")) and getattr(value, "ndim", 0) > 0
    return isinstance(value, (list, tuple, range)) or is_array


def _is_dataset(value: Any) -> bool:
    torch_data = sys.modules.get("torch.utils.data")
    if torch_data is not None and isinstance(value, torch_data.Dataset):
        return True
    return hasattr(value, "__dict__") and is_indexed(value) and not _is_sequence(value) and not callable(value)
