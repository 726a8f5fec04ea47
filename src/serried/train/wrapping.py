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
    """`asked`, else a GPU by local rank or the only one visible, else Apple's where there is one rank, else the CPU."""
    device = torch.device(asked) if asked is not None else _best(who)
    if device.type == "cuda":
        device = torch.device("cuda", _index(who) if device.index is None else device.index)
        torch.cuda.set_device(device)
    elif device.type == "mps" and who.world_size > 1:
        raise DeviceError("Apple's GPU serves one rank, and there are more", "use `device='cpu'`, or one rank")
    return device


def _best(who: Identity) -> torch.device:
    if torch.cuda.device_count():
        return torch.device("cuda")
    if who.world_size == 1 and torch.backends.mps.is_available():
        return torch.device("mps")
    return torch.device("cpu")


def _index(who: Identity) -> int:
    """A launcher that gives each rank its own GPU shows it as number 0 to every one of them."""
    visible = torch.cuda.device_count()
    if visible == 0:
        raise DeviceError("a GPU was asked for, and this rank sees none", "see `CUDA_VISIBLE_DEVICES`")
    if visible == 1:
        return 0
    if visible < who.local_world_size:
        raise DeviceError(
            f"{who.local_world_size} ranks on this node see {visible} GPUs",
            "start one rank for each GPU, or let each rank see only its own",
        )
    return who.local_rank


def wrap(
    model: nn.Module, who: Identity, device: torch.device, parallel: Optional[str] = None, **options: Any
) -> nn.Module:
    """`model` on `device`, made parallel where there is something to share the work with.

    What is parallel already, or sharded, passes through. `options` go to DistributedDataParallel.
    """
    if parallel not in PARALLEL:
        raise ValueError(f"`parallel={parallel!r}` is none of `ddp`, `dp`, `none`")
    if isinstance(model, (DistributedDataParallel, DataParallel)) or is_sharded(model):
        return model
    model = model.to(device)
    if parallel == "dp":
        if who.world_size > 1:
            raise DeviceError("DataParallel is for one process, and there are more", "leave `parallel` out")
        return DataParallel(model) if torch.cuda.device_count() > 1 else model
    has_gradients = any(parameter.requires_grad for parameter in model.parameters())
    if parallel == "none" or who.world_size == 1 or not has_gradients:
        return model
    return DistributedDataParallel(model, device_ids=[device] if device.type == "cuda" else None, **options)


def is_sharded(model: nn.Module) -> bool:
    """FSDP, version 1 or 2, or anything else whose parameters are spread over the ranks."""
    for kind in (type(module).__mro__ for module in model.modules()):
        if any(base.__name__ in ("FSDPModule", "FullyShardedDataParallel") for base in kind):
            return True
    return any(type(parameter).__name__ == "DTensor" for parameter in model.parameters())
