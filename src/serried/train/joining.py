"""Ranks with different numbers of batches.

Where torch's Join serves (DDP), a rank that has run out takes part in the others' all-reduces until they have too.
Elsewhere all ranks stop with the first that has run out. An exception leaves at once, on its own rank: a rank that
goes on mirroring the others hides for an epoch that it has failed, and they end as if nothing had been.
"""

from __future__ import annotations

import contextlib
import warnings
from typing import Any, Callable, Iterable, Iterator, List, Optional, TypeVar

import torch
from torch import nn
from torch.distributed.algorithms.join import Join, Joinable, JoinHook
from torch.nn.parallel import DistributedDataParallel

T = TypeVar("T")


class _Mirror(JoinHook):
    def __init__(self, step: Callable[[], None]) -> None:
        self._step = step

    def main_hook(self) -> None:
        self._step()


class _Steps(Joinable):
    """What the others do besides the model's own all-reduces: once a batch, after its backward."""

    def __init__(self, step: Callable[[], None], model: DistributedDataParallel) -> None:
        super().__init__()
        self._step = step
        self._model = model

    def join_hook(self, **_: Any) -> JoinHook:
        return _Mirror(self._step)

    @property
    def join_device(self) -> torch.device:
        device: torch.device = self._model.join_device
        return device

    @property
    def join_process_group(self) -> Any:
        return self._model.join_process_group


def joinables(model: nn.Module, optimizers: Iterable[Any]) -> List[Joinable]:
    """What Join can mirror; empty where it cannot serve this model."""
    if not isinstance(model, DistributedDataParallel):
        return []
    return [model, *(optimizer for optimizer in optimizers if isinstance(optimizer, Joinable))]


@contextlib.contextmanager
def join(model: DistributedDataParallel, found: List[Joinable], mirror: Callable[[], None]) -> Iterator[None]:
    """Torch's Join; `mirror` is what a rank that has run out does for each further batch of the others."""
    with warnings.catch_warnings(), Join([*found, _Steps(mirror, model)]):
        yield


def together(batches: Iterable[T], reduce_max: Optional[Callable[[List[int]], List[int]]]) -> Iterator[T]:
    """`batches`, as long as every rank has one: one small all-reduce for each."""
    if reduce_max is None:
        yield from batches
        return
    source = iter(batches)
    while True:
        batch = next(source, _END)
        (someone_is_out,) = reduce_max([batch is _END])
        if someone_is_out:
            return
        yield batch


_END: Any = object()
