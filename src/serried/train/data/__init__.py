"""Data for the ranks of a job: shared out over ranks and workers, in an order that a stopped run goes on with exactly.

`order` says who reads what, `sources` in which order, `position` where a loader stands; `loader` and `foreign` are what
a script iterates. Importing this imports no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Optional, Union

if TYPE_CHECKING:
    from serried.train.data.loader import Loader
    from serried.train.data.shards import Shard
    from serried.train.data.third_party import ForeignLoader

__all__ = ["make_loader", "shard"]


def shard(
    data: Any,
    *,
    rank: Optional[int] = None,
    world_size: Optional[int] = None,
    seed: Optional[int] = None,
    shuffle: Union[bool, int] = False,
    tail: Optional[str] = None,
    batch_size: int = 1,
    transform: Optional[Callable[[Any], Any]] = None,
) -> Shard:
    """This rank's part of `data`, and in a DataLoader's worker the worker's part of that.

    Args:
        data: an iterable, or a function that makes one; or something with `__getitem__` and `__len__`, of which only
            this part is read.
        rank: this process's; by default what `serried.train.identity()` finds, as for `world_size`.
        world_size: how many ranks there are.
        seed: of the order, with the epoch; it must be the same on all ranks. By default that of the loader which reads
            this, and 0 without one.
        shuffle: True for the whole epoch (data with a length), a number for windows of so many items.
        tail: how an epoch ends. `keep`, the default: every item once; `repeat`, `drop`: all ranks have as many items.
        batch_size: how many items in a row a worker reads. With 1, item i is for shard i mod (world x workers), where
            shard = worker x world + rank.
        transform: done to this part's items alone: what is dear (decoding) belongs here.
    """
    from importlib.util import find_spec

    from serried.train.data.order import Layout

    if rank is None or world_size is None:
        from serried.train.identities import identity

        here = identity()
        rank = here.rank if rank is None else rank
        world_size = here.world_size if world_size is None else world_size
    if find_spec("torch") is None:
        from serried.train.data.shards import Shard
    else:
        from serried.train.data.datasets import ShardDataset as Shard
    layout = Layout(rank, world_size, batch_size, tail or "keep")
    return Shard(data, layout=layout, seed=seed, shuffle=shuffle, transform=transform, tail=tail)


def make_loader(
    dataset: Any,
    *,
    batch_size: Optional[int] = 1,
    rank: int,
    world_size: int,
    seed: int = 0,
    shuffle: Optional[Union[bool, int]] = None,
    tail: Optional[str] = None,
    resume: bool = True,
    **options: Any,
) -> Union[Loader, ForeignLoader]:
    """Batches for this rank, from a position that checkpoints keep.

    Args:
        dataset: with `__getitem__` and `__len__`; or an iterable, or a function that makes one, that gives the *whole*
            data to whoever asks; or a `shard`; or a ready loader (torch's DataLoader, torchdata's StatefulDataLoader),
            which passes through.
        batch_size: items of this rank in a step; None where items are batches already.
        rank: this process's.
        world_size: how many ranks there are.
        seed: of the order, with the epoch; it must be the same on all ranks.
        shuffle: True for the whole epoch, the default for data with a length; a number for windows of so many items;
            False for none, the default for other data.
        tail: the last, incomplete step. `repeat`, the default: ranks that lack an item repeat one; `drop`: left out;
            `keep`: every item once, so that some ranks may have one item, and one batch, more.
        resume: False for evaluation, where half a pass would be no result: every pass is whole.
        options: for torch's DataLoader: num_workers, collate_fn, pin_memory, persistent_workers, worker_init_fn …
    """
    from serried.train.data import third_party

    if third_party.is_loader(dataset):
        given = {"shuffle": shuffle, "tail": tail, **options}
        asked = sorted(name for name, value in given.items() if value is not None)
        if asked or batch_size not in (1, getattr(dataset, "batch_size", 1)):
            raise TypeError(
                f"a ready loader takes no options: {', '.join(asked) or 'batch_size'}\nhint: give them to it"
            )
        return third_party.ForeignLoader(dataset, rank=rank, world_size=world_size, resume=resume)
    from serried.train.data.loader import make

    return make(
        dataset,
        batch_size=batch_size,
        rank=rank,
        world_size=world_size,
        seed=seed,
        shuffle=shuffle,
        tail=tail,
        resume=resume,
        options=options,
    )
