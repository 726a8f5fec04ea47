"""Uneven inputs: ranks with different numbers of batches.

With DDP, torch's Join lets a rank without batches take part in the all-reduces of the others until they finish too.
Other models stop on all ranks when the first rank runs out. An exception leaves at once on its own rank: a rank that
kept mirroring the others would hide its failure for an epoch, and the others would end as if nothing had happened.

A forward pass without gradients is an evaluation: it communicates nothing, and each rank may make any number of them.
Join would have the others wait for the all-reduces of a backward pass that never comes.

Join mirrors all-reduces, and restores the model's parameters at the end. It does not know the other state that a step
changes: the optimizer's averages, a scheduler, a moving average. A rank that ran out receives that state from a rank
that did not; otherwise the ranks would continue from different states.
"""

from __future__ import annotations

import contextlib
import io
import warnings
from typing import TYPE_CHECKING, Any, Callable, Iterable, Iterator, List, Optional, Sequence, TypeVar

import torch
from torch import nn
from torch.distributed.algorithms.join import Join, Joinable, JoinHook, _JoinConfig
from torch.nn.parallel import DistributedDataParallel

from serried.train.checkpoints.states import ZeroShard
from serried.train.errors import TrainError

if TYPE_CHECKING:
    from serried.train.checkpoints import Checkpoints
    from serried.train.checkpoints.states import Stateful
    from serried.train.group import Group

T = TypeVar("T")


class UnevenInputs:
    """`run.uneven` in one session."""

    def __init__(self, group: Group, checkpoints: Sequence[Checkpoints], leave: Callable[[], None]) -> None:
        self._group, self._checkpoints = group, checkpoints
        self._leave = leave
        """Leaves the script if the checkpoint is saved: a rank without data has no loop to leave."""
        self._now: Optional[MirroredState] = None
        self.is_unmirrored = False
        """A rank may be out of data, and mirror only the model's all-reduces: nothing else can be collective."""

    @contextlib.contextmanager
    def of(self, model: nn.Module, batches: Iterable[T], optimizers: Iterable[Any]) -> Iterator[Iterable[T]]:
        if not self._group.is_open:
            yield batches
            return
        if not isinstance(model, DistributedDataParallel):  # Join cannot serve it
            yield together(batches, self._group.reduce_max)
            return
        self._now = MirroredState(model, optimizers, self._checkpoints, self._group)
        self.is_unmirrored = not self._checkpoints
        saved = (obj for checkpoints in self._checkpoints for obj in checkpoints.objects.values())
        zero = (obj.optimizer for obj in saved if isinstance(obj, ZeroShard))
        stepping = {id(each): each for each in (*optimizers, *zero) if isinstance(each, Joinable)}
        mirrored = [model, *stepping.values(), self._now]
        try:
            with _local_without_gradients(model), warnings.catch_warnings(), Join(mirrored):  # Join changes the filters
                yield batches
        finally:
            self._now, self.is_unmirrored = None, False
        self._leave()

    def catch_up(self, objects: Sequence[Stateful]) -> None:
        """Before rank 0 saves `objects`: it receives their state from another rank if its data ran out. Collective."""
        if self._now is not None:
            self._now.catch_up(objects)


@contextlib.contextmanager
def _local_without_gradients(model: DistributedDataParallel) -> Iterator[None]:
    """Keep forward passes without gradients local: all ranks receive rank 0's buffers once, here. Collective."""
    unchecked: Any = model
    if unchecked.will_sync_module_buffers():
        unchecked._sync_buffers()  # noqa: SLF001 - as DDP does before a forward
    forward = unchecked.forward

    def alone(*args: Any, **options: Any) -> Any:
        if torch.is_grad_enabled():
            if not model.training:
                raise TrainError(
                    "`run.uneven` cannot tell an evaluation from a training: the model is in evaluation mode, and "
                    "gradients are on",
                    "evaluate within `torch.no_grad()`; train after `model.train()`",
                )
            return forward(*args, **options)
        joining, syncing = unchecked._join_config, unchecked.require_forward_param_sync  # noqa: SLF001 - see above
        unchecked._join_config = _JoinConfig(enable=False, throw_on_early_termination=False, is_first_joinable=False)  # noqa: SLF001 - see above
        unchecked.require_forward_param_sync = False
        try:
            return forward(*args, **options)
        finally:
            unchecked._join_config, unchecked.require_forward_param_sync = joining, syncing  # noqa: SLF001 - as above

    unchecked.forward = alone
    try:
        yield
    finally:
        del unchecked.forward


class MirroredState(Joinable):
    """State beside the model that steps change; mirrored once per batch, after the backward pass."""

    def __init__(
        self,
        model: DistributedDataParallel,
        optimizers: Iterable[Stateful],
        checkpoints: Sequence[Checkpoints],
        group: Group,
    ) -> None:
        super().__init__()
        self._model, self._checkpoints, self._group = model, checkpoints, group
        saved = [obj for each in checkpoints for obj in each.replicated]
        self._changing = [*saved, *(each for each in optimizers if each not in saved)]
        """Objects that steps change, and that Join does not mirror."""
        self._has_run_out = False

    def join_hook(self, **_: Any) -> JoinHook:
        return _Hook(self)

    @property
    def join_device(self) -> torch.device:
        device: torch.device = self._model.join_device
        return device

    @property
    def join_process_group(self) -> Any:
        return self._model.join_process_group

    def mirror(self) -> None:
        """This rank ran out, and the others made another step."""
        self._has_run_out = True
        for checkpoints in self._checkpoints:
            checkpoints.step()

    def catch_up(self, objects: Sequence[Stateful]) -> None:
        """Send the state of `objects` to rank 0, if it ran out. Collective."""
        out = self._has_run_out
        _hand_over(objects, self._group, has=not out, lacks=out and self._group.rank == 0)

    def end(self, *, is_last: bool) -> None:
        """All ranks ran out; `is_last`: this rank among the last. After an evaluation no rank has missed a step."""
        _hand_over(self._changing, self._group, has=is_last, lacks=self._has_run_out)


class _Hook(JoinHook):
    def __init__(self, uneven: MirroredState) -> None:
        self._uneven = uneven

    def main_hook(self) -> None:
        self._uneven.mirror()

    def post_hook(self, is_last_joiner: bool) -> None:
        self._uneven.end(is_last=is_last_joiner)


def _hand_over(objects: Sequence[Stateful], group: Group, *, has: bool, lacks: bool) -> None:
    """Send the state of a rank that has it to the ranks that lack it. Collective; free if no rank lacks it."""
    source, someone_lacks = group.reduce_max((group.rank if has else -1, int(lacks)))
    if not someone_lacks:
        return
    handed = [obj for obj in objects if not isinstance(obj, Joinable)]  # Joinables mirror themselves
    box = io.BytesIO()
    if group.rank == source:
        torch.save([obj.state_dict() for obj in handed], box)
    # As bytes: a tensor would be unpickled on the sender's GPU.
    box = io.BytesIO(group.broadcast(box.getvalue(), source))
    if lacks:
        states = torch.load(box, map_location="cpu", weights_only=False)
        for obj, state in zip(handed, states):  # noqa: B905 - as long; Python 3.9
            obj.load_state_dict(state)


def together(batches: Iterable[T], reduce_max: Callable[[Sequence[int]], List[int]]) -> Iterator[T]:
    """`batches`, until a rank has none left; costs a small all-reduce per batch."""
    source = iter(batches)
    while True:
        batch = next(source, _END)
        (someone_is_out,) = reduce_max([batch is _END])
        if someone_is_out:
            return
        yield batch


_END: Any = object()
