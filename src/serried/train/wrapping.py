"""The device of this rank, and the model on it."""

from __future__ import annotations

from typing import Any, Optional, Union

import torch
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from serried.train.errors import DeviceError
from serried.train.identities import Identity

PARALLEL = (None, "ddp", "dp", "none")


def choose_device(who: Identity, asked: Union[str, torch.device, None] = None) -> torch.device:
    """`asked`, else the GPU of the local rank or the only visible one, else Apple's for one rank, else the CPU."""
    device = torch.device(asked) if asked is not None else _best(who)
    if device.type == "cuda":
        device = torch.device("cuda", _index(who) if device.index is None else device.index)
        torch.cuda.set_device(device)
    elif device.type == "mps" and who.world_size > 1:
        raise DeviceError("Apple's GPU serves one rank only", "use `device='cpu'`, or one rank")
    return device


def _best(who: Identity) -> torch.device:
    if torch.cuda.device_count():
        return torch.device("cuda")
    if who.world_size == 1 and torch.backends.mps.is_available():
        return torch.device("mps")
    return torch.device("cpu")


def _index(who: Identity) -> int:
    """This rank's GPU. A launcher that gives each rank a GPU of its own shows it to each rank as number 0."""
    visible = torch.cuda.device_count()
    if visible == 0:
        raise DeviceError("this rank needs a GPU and sees none", "check `CUDA_VISIBLE_DEVICES`")
    if visible == 1:
        return 0
    if visible < who.local_world_size:
        raise DeviceError(
            f"{who.local_world_size} ranks on this node see {visible} GPUs",
            "start one rank per GPU, or let each rank see only its own",
        )
    return who.local_rank


def wrap(
    model: nn.Module, who: Identity, device: torch.device, parallel: Optional[str] = None, **options: Any
) -> nn.Module:
    """Move `model` to `device` and wrap it for data parallelism if there are several ranks or GPUs.

    Parallel and sharded models pass through. `options` go to DistributedDataParallel.

    Raises:
        ValueError: `parallel` is unknown.
        DeviceError: DataParallel with several ranks.
    """
    if parallel not in PARALLEL:
        raise ValueError(f"`parallel` must be `ddp`, `dp` or `none`, not {parallel!r}")
    if isinstance(model, (DistributedDataParallel, DataParallel)) or is_sharded(model):
        return model
    model = model.to(device)
    if parallel == "dp":
        if who.world_size > 1:
            raise DeviceError("DataParallel works in one process only", "leave `parallel` out")
        return DataParallel(model) if torch.cuda.device_count() > 1 else model
    has_gradients = any(parameter.requires_grad for parameter in model.parameters())
    if parallel == "none" or who.world_size == 1 or not has_gradients:
        return model
    return DistributedDataParallel(model, device_ids=[device] if device.type == "cuda" else None, **options)


def is_sharded(model: nn.Module) -> bool:
    """Whether parameters are sharded over the ranks: FSDP 1 or 2, or DTensors."""
    for kind in (type(module).__mro__ for module in model.modules()):
        if any(base.__name__ in ("FSDPModule", "FullyShardedDataParallel") for base in kind):
            return True
    return any(type(parameter).__name__ == "DTensor" for parameter in model.parameters())
