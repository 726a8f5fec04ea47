"""The states in a checkpoint: of the objects, of the session, and of each rank."""

from __future__ import annotations

import random
import sys
from typing import Any, Dict, List, Mapping, Sequence

import torch
from torch import nn
from torch.optim import Optimizer

from serried.train.context import Context, Stateful

OWN = "serried"
"""The key of the session's own state, beside the objects' names."""

_ZERO_HOME = "torch.distributed.optim.zero_redundancy_optimizer"
"""If no module has imported it, the script has no such optimizer."""


def unwrapped(obj: Any) -> Any:
    """A model without DDP, DataParallel and torch.compile around it, so that its state fits the bare model."""
    while isinstance(obj, nn.Module):
        if isinstance(obj, (nn.parallel.DistributedDataParallel, nn.parallel.DataParallel)):
            obj = obj.module
        elif hasattr(obj, "_orig_mod"):  # torch.compile
            obj = obj._orig_mod  # noqa: SLF001 - its only name
        else:
            break
    return obj


class ZeroShard:
    """This rank's shard of a ZeroRedundancyOptimizer. All shards together are the state of a plain optimizer."""

    replicated = False

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer

    def state_dict(self) -> Dict[str, Any]:
        own = {id(parameter): state for parameter, state in self.optimizer.optim.state.items()}
        numbered = enumerate(_parameters(self.optimizer))
        state = {number: own[id(parameter)] for number, parameter in numbered if id(parameter) in own}
        return {"state": state, "param_groups": Optimizer.state_dict(self.optimizer)["param_groups"]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load this rank's shard from the full state, or from the shard itself."""
        optimizer = self.optimizer
        numbers = {id(parameter): number for number, parameter in enumerate(_parameters(optimizer))}
        wanted = [numbers[id(parameter)] for parameter in _parameters(optimizer.optim)]
        own = {place: state["state"][number] for place, number in enumerate(wanted) if number in state["state"]}
        optimizer.optim.load_state_dict({"state": own, "param_groups": optimizer.optim.state_dict()["param_groups"]})
        for target in (optimizer, optimizer.optim):
            for group, saved in zip(target.param_groups, state["param_groups"]):  # noqa: B905 - Python 3.9
                group.update({name: value for name, value in saved.items() if name != "params"})


def shared(obj: Any) -> Any:
    """A ZeroRedundancyOptimizer as this rank's shard; other objects as they are.

    Raises:
        ValueError: with `overlap_with_ddp` the optimizer skips its first steps, while it learns DDP's buckets.
    """
    zero = getattr(sys.modules.get(_ZERO_HOME), "ZeroRedundancyOptimizer", None)
    if zero is None or not isinstance(obj, zero):
        return obj
    if obj._overlap_with_ddp:  # noqa: SLF001 - there is no public way to know
        raise ValueError(
            "a ZeroRedundancyOptimizer with `overlap_with_ddp=True` skips its first updates, again after each "
            "restart\nhint: leave that option out"
        )
    return ZeroShard(obj)


def joined(shares: Sequence[Mapping[str, Any]]) -> Dict[str, Any]:
    """The full optimizer state from the shards of all ranks."""
    state = {number: each for share in shares for number, each in share["state"].items()}
    return {"state": dict(sorted(state.items())), "param_groups": shares[0]["param_groups"]}


def _parameters(optimizer: Any) -> List[Any]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def is_replicated(obj: Any, otherwise: bool) -> bool:
    """Whether the state of `obj` is the same on all ranks: its attribute `replicated`, or else `otherwise`."""
    return bool(getattr(obj, "replicated", otherwise))


def own_state(context: Context) -> Dict[str, Any]:
    """The session's state that is the same on all ranks."""
    loaders = {
        number: loader.state_dict()
        for number, loader in enumerate(context.loaders)
        if is_replicated(loader, otherwise=False)
    }
    return {"parts": {name: part.state_dict() for name, part in context.parts.items()}, "loaders": loaders}


def rank_state(context: Context, objects: Mapping[str, Stateful]) -> Dict[str, Any]:
    """The state of this rank alone."""
    loaders = {
        number: loader.state_dict()
        for number, loader in enumerate(context.loaders)
        if not is_replicated(loader, otherwise=False)
    }
    own = {name: obj.state_dict() for name, obj in objects.items()}
    return {"random": random_state(context.device), "loaders": loaders, "objects": own}


def load_loaders(loaders: Sequence[Stateful], states: Mapping[int, Dict[str, Any]]) -> None:
    for number, state in states.items():
        if number < len(loaders):
            loaders[number].load_state_dict(state)


def random_state(device: torch.device) -> Dict[str, Any]:
    """The states of all random generators that a training script uses, as tensors and numbers."""
    version, words, gauss = random.getstate()
    state: Dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "python": [version, torch.tensor(words, dtype=torch.int64), gauss],
    }
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        name, keys, position, has_gauss, cached = numpy.random.get_state()
        state["numpy"] = [name, torch.from_numpy(keys.astype("int64")), int(position), int(has_gauss), float(cached)]
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    elif device.type == "mps":
        state["mps"] = torch.mps.get_rng_state()
    return state


def set_random_state(state: Mapping[str, Any], device: torch.device) -> None:
    torch.set_rng_state(state["torch"])
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words.tolist()), gauss))
    numpy = sys.modules.get("numpy")
    if numpy is not None and "numpy" in state:
        name, keys, *rest = state["numpy"]
        numpy.random.set_state((name, keys.numpy().astype("uint32"), *rest))
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)
    elif device.type == "mps" and "mps" in state:
        torch.mps.set_rng_state(state["mps"])


def reseed_for_new_world(context: Context, step: int) -> None:
    """Seed a rank without saved random states by the step, so that it does not repeat the numbers of step 0."""
    generator = random.Random(f"{context.seed} {context.rank} {context.world_size} {step}")  # noqa: S311 - a training's seed
    torch.manual_seed(generator.getrandbits(63))
    random.seed(generator.getrandbits(63))
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(generator.getrandbits(32))
