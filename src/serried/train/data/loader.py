"""A loader that knows how many samples all ranks have consumed, and goes on from there in any layout."""

from __future__ import annotations

import warnings
from typing import Any, Callable, Dict, Iterator, MutableSequence, Optional, Tuple, cast

import torch
from torch.utils.data import DataLoader, Dataset

from serried.train.data.datasets import Blocks, Collate, Picked, Picks
from serried.train.data.order import Layout, count_steps, key
from serried.train.data.position import Position, Waits
from serried.train.data.shards import Shard
from serried.train.data.sources import Indexed, is_indexed
from serried.train.data.workers import WorkerStart, remember, signals_held

OURS = {
    "sampler": "the order is by seed and epoch, so that it can go on where it stopped",
    "batch_sampler": "the order is by seed and epoch, so that it can go on where it stopped",
    "generator": "the order and the workers' random numbers follow the seed",
    "drop_last": 'say tail="drop"',
    "in_order": "batches out of order have no position to go on from",
}


class Loader:
    """Batches of this rank, pass after pass. Make it with `run.loader` or `make_loader`.

    Its state is the same on every rank: epoch, samples that all ranks have consumed of it, seed, global batch.
    """

    replicated = True

    def __init__(
        self, shard: Shard, layout: Layout, *, batched: bool, by_index: bool, resume: bool, options: Dict[str, Any]
    ) -> None:
        _refuse(options)
        self._shard = shard
        self._layout = layout
        self._resume = resume
        self._seed = shard.seed
        self._position = Position()
        self._waits = Waits()
        self.on_pass: Callable[[], object] = dict
        """Called when a pass begins."""
        self._generator = torch.Generator()
        self._clock: Any = [0, 0, 0]
        """Seed, epoch and position, as the next pass begins."""
        if options.get("persistent_workers") and not by_index:
            self._clock = torch.zeros(3, dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]
        data, sampler = (
            _by_index(shard, layout, self._clock) if by_index else (Blocks(shard, layout, self._clock), None)
        )
        self._loader: DataLoader[Any] = DataLoader(
            data,
            batch_size=None,
            sampler=sampler,
            collate_fn=cast("Any", Collate(options.pop("collate_fn", None), batched=batched)),
            worker_init_fn=WorkerStart(options.pop("worker_init_fn", None)),
            generator=self._generator,
            **options,
        )

    @property
    def dataset(self) -> Any:
        return self._shard.source.data

    @property
    def batch_size(self) -> int:
        """Items that this rank takes in a step."""
        return self._layout.batch_size

    @property
    def global_batch(self) -> int:
        """Items that all ranks together take in a step."""
        return self._layout.global_batch

    @property
    def num_workers(self) -> int:
        return self._loader.num_workers

    @property
    def epoch(self) -> int:
        return self._position.epoch

    @property
    def samples(self) -> int:
        """How many items of this epoch all ranks together have consumed."""
        return self._position.samples

    @property
    def waited_seconds(self) -> float:
        """How long training has waited for data so far."""
        return self._waits.seconds

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch the next pass is; without it every pass is the next. `run.epochs` does this."""
        self._position.set_epoch(epoch)

    def __len__(self) -> int:
        """Batches of this rank in a whole epoch, also where a pass goes on in the middle of one."""
        length = self._shard.source.length()
        if length is None:
            raise TypeError("data without a length: how many batches there are is known when they have been read")
        return count_steps(length, self._layout)

    def __iter__(self) -> Iterator[Any]:
        self.on_pass()
        if not self._position.begin():
            return iter(())
        position = self._position
        self._clock[0], self._clock[1], self._clock[2] = self._seed, position.epoch, position.samples
        # Or the loader would draw the workers' seed from the generator that the model draws from: a pass that is
        # begun anew in the middle of an epoch would shift every dropout after it.
        self._generator.manual_seed(key(self._seed, position.epoch, position.samples, self._layout.rank))
        with signals_held():
            batches = iter(self._loader)
        remember(batches)
        return self._counted(batches)

    def _counted(self, batches: Iterator[Any]) -> Iterator[Any]:
        for samples, batch in self._waits.timed(batches):
            self._position.samples = int(samples)
            yield batch
        self._position.finished = True

    def state_dict(self) -> Dict[str, Any]:
        """The position after the batch that was handed out last; batches that workers hold ready do not count."""
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
        """Go on from there. The seed is the saved one's: the order of the epoch is the one in which it began."""
        if not self._resume or not state:
            return
        for name, now in (("length", self._shard.source.length()), ("shuffle", self._shard.source.shuffle)):
            if state.get(name, now) != now:
                self._warn(
                    f"the data's {name} was {state[name]} and is {now}: their order is another, and items of the epoch "
                    "that was begun may come twice or never"
                )
        if state["global_batch"] != self.global_batch:
            self._warn(_changed_batch(int(state["global_batch"]), self._layout))
        self._seed = int(state["seed"])
        self._position.load(state)

    def _warn(self, message: str) -> None:
        if self._layout.rank == 0:
            warnings.warn(message, stacklevel=3)


def _refuse(options: Dict[str, Any]) -> None:
    for name in sorted(OURS.keys() & options.keys()):
        raise TypeError(f"`{name}` is not for this loader: {OURS[name]}\nhint: a DataLoader of your own passes through")


def _by_index(shard: Shard, layout: Layout, clock: MutableSequence[int]) -> Tuple[Dataset[Any], Any]:
    return Picked(shard.source.data), Picks(cast("Indexed", shard.source), layout, clock)


def _changed_batch(before: int, layout: Layout) -> str:
    ranks = f"{layout.world_size} ranks of {layout.batch_size}"
    message = (
        f"the global batch was {before} and is {layout.global_batch} ({ranks}): "
        "items come in the same order, but steps are other ones"
    )
    each, rest = divmod(before, layout.world_size)
    return message if rest else f"{message}\nhint: batch_size={each} keeps it"


def make(
    data: Any,
    *,
    batch_size: Optional[int],
    rank: int,
    world_size: int,
    seed: int,
    shuffle: Any,
    tail: Optional[str],
    resume: bool,
    options: Dict[str, Any],
) -> Loader:
    """A `Loader`, or TypeError for what is no data."""
    if isinstance(data, Shard):
        if shuffle is not None:
            raise TypeError("a shard has an order of its own\nhint: say shuffle= to serried.train.shard")
        shard = data
    else:
        shard = Shard(data, layout=Layout(0, 1), shuffle=is_indexed(data) if shuffle is None else shuffle)
    if not shard.is_seeded:
        shard.seed = seed
    return Loader(
        shard,
        Layout(rank, world_size, 1 if batch_size is None else batch_size, tail or shard.tail or "repeat"),
        batched=batch_size is not None,
        by_index=shard is not data and isinstance(shard.source, Indexed),
        resume=resume,
        options=dict(options),
    )
