"""Data for ranks and workers, in an order that an interrupted run resumes exactly.

`order` computes which rank reads which item, and `sources` the order of items. Scripts iterate over a `loader` or a
`third_party` loader. Importing this package loads no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Optional, Union

if TYPE_CHECKING:
    from serried.train.data.loader import Loader
    from serried.train.data.sources import Shard
    from serried.train.data.third_party import ThirdPartyLoader

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
    """This rank's shard of `data`; in a DataLoader worker, the worker's shard of that.

    Args:
        data: an iterable, or a function that returns one; or an object with `__getitem__` and `__len__`, of which
            only this shard is read.
        rank: this process's rank; by default from `serried.train.identity()`, as is `world_size`.
        world_size: the number of ranks.
        seed: seed of the order, together with the epoch; the same on all ranks. By default the seed of the loader that
            reads the shard, or 0 without a loader.
        shuffle: True for the whole epoch (data with a length), a number for windows of that many items.
        tail: the end of an epoch. `keep`, the default: every item once; `repeat`, `drop`: equal numbers on all ranks.
        batch_size: how many consecutive items a worker reads. With 1, item i belongs to shard i mod (world x workers),
            where shard = worker x world + rank.
        transform: applied to the items of this shard only; put expensive work (decoding) here.

    Raises:
        TypeError: `data` cannot be read once per epoch.
        ValueError: an option is out of range.
    """
    from importlib.util import find_spec

    from serried.train.data.order import ReaderLayout

    if rank is None or world_size is None:
        from serried.train.identities import identity

        here = identity()
        rank = here.rank if rank is None else rank
        world_size = here.world_size if world_size is None else world_size
    if find_spec("torch") is None:
        from serried.train.data.sources import Shard
    else:
        from serried.train.data.loader import ShardDataset as Shard
    layout = ReaderLayout(rank, world_size, batch_size, tail or "keep")
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
    drop_last: bool = False,
    resume: bool = True,
    **options: Any,
) -> Union[Loader, ThirdPartyLoader]:
    """Batches for this rank. Checkpoints keep the position.

    Args:
        dataset: an object with `__getitem__` and `__len__`; or an iterable (or a function that returns one) over the
            *whole* data, the same on all ranks; or a `shard`; or a ready loader (torch's DataLoader, torchdata's
            StatefulDataLoader), which passes through.
        batch_size: items per step on this rank; None if items are batches already.
        rank: this process's rank.
        world_size: the number of ranks.
        seed: seed of the order, together with the epoch; the same on all ranks.
        shuffle: True for the whole epoch, the default for data with a length; a number for windows of that many items;
            False for no shuffling, the default for other data.
        tail: the last, incomplete step. `repeat`, the default: ranks without an item repeat one; `drop`: the step is
            skipped; `keep`: every item once, so that some ranks may have one item, and one batch, more.
        drop_last: True as `tail="drop"`.
        resume: False for evaluation, where a part of a pass has no meaning: every pass starts at its first item.
        options: passed to torch's DataLoader: num_workers, collate_fn, pin_memory, persistent_workers, …

    Raises:
        TypeError: `dataset` cannot be read once per epoch, or an option does not apply.
    """
    from serried.train.data import third_party

    if third_party.is_loader(dataset):
        given = {"shuffle": shuffle, "tail": tail, "drop_last": drop_last or None, **options}
        options_given = sorted(name for name, value in given.items() if value is not None)
        if options_given or batch_size not in (1, getattr(dataset, "batch_size", 1)):
            raise TypeError(
                f"a ready loader takes no options: {', '.join(options_given) or 'batch_size'}\n"
                "hint: pass them where the loader is created"
            )
        return third_party.ThirdPartyLoader(dataset, rank=rank, world_size=world_size, resume=resume)
    from serried.train.data.loader import Loader
    from serried.train.data.order import ReaderLayout
    from serried.train.data.sources import Indexed, Shard, is_indexed

    if drop_last and tail not in (None, "drop"):
        raise TypeError(f"`drop_last=True` is `tail='drop'`, and not `tail={tail!r}`")
    tail = "drop" if drop_last else tail
    if isinstance(dataset, Shard):
        if shuffle is not None:
            raise TypeError("a shard has an order of its own\nhint: pass shuffle= to serried.train.shard")
        shard = dataset
    else:
        shard = Shard(dataset, layout=ReaderLayout(0, 1), shuffle=is_indexed(dataset) if shuffle is None else shuffle)
    if not shard.is_seeded:
        shard.seed = seed
    return Loader(
        shard,
        ReaderLayout(rank, world_size, 1 if batch_size is None else batch_size, tail or shard.tail or "repeat"),
        batched=batch_size is not None,
        by_index=shard is not dataset and isinstance(shard.source, Indexed),
        resume=resume,
        options=options,
    )
