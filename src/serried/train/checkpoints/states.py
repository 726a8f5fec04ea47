"""What goes into a checkpoint and comes out again: the objects' states, the session's, and each rank's own."""

from __future__ import annotations

import random
import sys
from typing import Any, Dict, Mapping, Sequence

import torch
from torch import nn

from serried.train.context import Context, Stateful

OWN = "serried"
"""The key, beside the objects' names, of what the session and the checkpoints keep for themselves."""


def unwrapped(obj: Any) -> Any:
    """A model without what is around it to make it parallel or fast: its state is to fit without, too."""
    while isinstance(obj, nn.Module):
        if isinstance(obj, (nn.parallel.DistributedDataParallel, nn.parallel.DataParallel)):
            obj = obj.module
        elif hasattr(obj, "_orig_mod"):  # torch.compile
            obj = obj._orig_mod  # noqa: SLF001 - its only name
        else:
            break
    return obj


def is_replicated(obj: Any, otherwise: bool) -> bool:
    """Whether the state of `obj` is the same on all ranks; an object may say so by an attribute `replicated`."""
    return bool(getattr(obj, "replicated", otherwise))


def own_state(context: Context) -> Dict[str, Any]:
    """What the session keeps, the same on all ranks."""
    loaders = {
        number: loader.state_dict()
        for number, loader in enumerate(context.loaders)
        if is_replicated(loader, otherwise=False)
    }
    return {"parts": {name: part.state_dict() for name, part in context.parts.items()}, "loaders": loaders}


def rank_state(context: Context, objects: Mapping[str, Stateful]) -> Dict[str, Any]:
    """What only this rank has."""
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
    """The states of all the generators that a training script draws from, as tensors and numbers."""
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


def seed_anew(context: Context, step: int) -> None:
    """For ranks whose random states nobody has kept: not the numbers from the beginning again."""
    generator = random.Random(f"{context.seed} {context.rank} {context.world_size} {step}")  # noqa: S311 - a training's seed
    torch.manual_seed(generator.getrandbits(63))
    random.seed(generator.getrandbits(63))
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(generator.getrandbits(32))
