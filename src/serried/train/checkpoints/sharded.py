"""State that is sharded over ranks (DTensor: FSDP2, tensor parallelism; and FSDP1), by torch.distributed.checkpoint.

Models and optimizers are saved under the names of parameters, not their numbers, and each tensor as parts of a whole.
So any number of ranks can read them, also into a model that is not sharded.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, Dict, Iterable, Iterator, List, Mapping, Optional

import torch
from torch import nn
from torch.optim import Optimizer

_DTENSOR_HOMES = ("torch.distributed.tensor", "torch.distributed._tensor")


def _dcp() -> Any:
    return importlib.import_module("torch.distributed.checkpoint")


def _sharded_tensors() -> Iterator[type]:
    """DTensor, if a module has imported it already: the import takes a while."""
    for home in _DTENSOR_HOMES:
        found = getattr(sys.modules.get(home), "DTensor", None)
        if found is not None:
            yield found


def is_sharded(obj: Any) -> bool:
    """Whether the state of `obj` is sharded over ranks."""
    if isinstance(obj, nn.Module):
        fsdp = getattr(sys.modules.get("torch.distributed.fsdp"), "FullyShardedDataParallel", ())
        return _holds_shards([*obj.parameters(), *obj.buffers()]) or any(isinstance(m, fsdp) for m in obj.modules())
    if isinstance(obj, Optimizer):
        return _holds_shards(parameter for group in obj.param_groups for parameter in group["params"])
    return bool(tuple(_sharded_tensors())) and _holds_shards(_leaves(obj.state_dict()))


def refuse_flat(name: str, obj: Any) -> None:
    """Raises ValueError if the shards of `obj` are parts of flat parameters, which torch's stager does not copy."""
    fsdp = getattr(sys.modules.get("torch.distributed.fsdp"), "FullyShardedDataParallel", ())
    modules = obj.modules() if isinstance(obj, nn.Module) else ()
    if any(isinstance(module, fsdp) and getattr(module, "_device_mesh", None) is None for module in modules):
        raise ValueError(
            f"`{name}` is a FullyShardedDataParallel without a device mesh, whose state cannot be saved\n"
            "hint: use `fully_shard` (FSDP2), or pass `device_mesh=` to FullyShardedDataParallel"
        )


def _holds_shards(values: Iterable[Any]) -> bool:
    kinds = tuple(_sharded_tensors())
    return bool(kinds) and any(isinstance(value, kinds) for value in values)


def _leaves(state: Any) -> Iterator[Any]:
    if isinstance(state, Mapping):
        for value in state.values():
            yield from _leaves(value)
    elif isinstance(state, (list, tuple)):
        for value in state:
            yield from _leaves(value)
    else:
        yield state


def state_of(name: str, objects: Mapping[str, Any]) -> Dict[str, Any]:
    """The state of one object, by the names of parameters. Collective for models and optimizers."""
    from torch.distributed.checkpoint import state_dict

    obj = objects[name]
    if isinstance(obj, nn.Module):
        return dict(state_dict.get_model_state_dict(obj))
    if isinstance(obj, Optimizer):
        return dict(state_dict.get_optimizer_state_dict(_owner(name, objects), obj))
    return dict(obj.state_dict())


def _owner(name: str, objects: Mapping[str, Any]) -> nn.Module:
    """The model whose parameters the optimizer `name` changes."""
    wanted = {id(parameter) for group in objects[name].param_groups for parameter in group["params"]}
    for obj in objects.values():
        if isinstance(obj, nn.Module) and wanted <= {id(parameter) for parameter in obj.parameters()}:
            return obj
    raise ValueError(
        f"optimizer `{name}` is sharded, and no model has all of its parameters\n"
        "hint: pass the model that it optimizes to `run.checkpoints` too"
    )


def load(path: Path, names: Iterable[str], objects: Mapping[str, Any], group: Any) -> None:
    """Restore the objects `names` from the directory `path`, written by any number of ranks. Collective."""
    from torch.distributed.checkpoint import state_dict

    dcp = _dcp()
    state = {name: state_of(name, objects) for name in names}
    dcp.load(state, storage_reader=dcp.FileSystemReader(path), **_among(group, dcp.load))
    for name, restored in state.items():
        obj = objects[name]
        if isinstance(obj, nn.Module):
            state_dict.set_model_state_dict(obj, restored)
        elif isinstance(obj, Optimizer):
            state_dict.set_optimizer_state_dict(_owner(name, objects), obj, restored)
        else:
            obj.load_state_dict(restored)


def load_full(name: str, state: Mapping[str, Any], objects: Mapping[str, Any]) -> None:
    """Restore a sharded object from a state that ranks without shards have saved. Collective."""
    from torch.distributed.checkpoint import state_dict

    options = state_dict.StateDictOptions(full_state_dict=True)
    obj = objects[name]
    if isinstance(obj, nn.Module):
        state_dict.set_model_state_dict(obj, dict(state), options=options)
    elif isinstance(obj, Optimizer):
        model = _owner(name, objects)
        state_dict.set_optimizer_state_dict(model, obj, _by_name(state, obj, model), options=options)
    else:
        obj.load_state_dict(_spread_like(obj.state_dict(), state))


def _spread_like(own: Any, state: Any) -> Any:
    """`state` with tensors sharded like those of `own`. Collective."""
    if isinstance(own, Mapping):
        return {name: _spread_like(own.get(name), value) for name, value in state.items()}
    if _holds_shards([own]):
        home = next(sys.modules[name] for name in _DTENSOR_HOMES if name in sys.modules)
        return home.distribute_tensor(state.to(own.device), own.device_mesh, own.placements)
    return state


def _by_name(state: Mapping[str, Any], optimizer: Optimizer, model: nn.Module) -> Dict[str, Any]:
    """An optimizer's own state, with the names of parameters in place of their numbers."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    called: Dict[int, str] = {}
    groups = []
    for saved, own in zip(state["param_groups"], optimizer.param_groups):
        called.update(zip(saved["params"], (names[id(parameter)] for parameter in own["params"])))
        groups.append({**saved, "params": [called[number] for number in saved["params"]]})
    return {"state": {called[number]: each for number, each in state["state"].items()}, "param_groups": groups}


def _among(group: Any, function: Any) -> Dict[str, Any]:
    """The option for the ranks that take part. Without a group, torch before 2.7 needs no option."""
    if group is None:
        return {"no_dist": True} if "no_dist" in inspect.signature(function).parameters else {}
    return {"process_group": group}


class Shards:
    """Saves sharded state, in a thread: by a gloo group of its own, and a stager that keeps its memory.

    On the default group, its collectives and those of the training could run in different orders, and hang. Torch's own
    `async_save` does the same, but its arguments change with the version, or it copies nothing on the CPU.
    """

    def __init__(self, *, pinned: bool) -> None:
        from torch import distributed as dist

        if not hasattr(_dcp(), "async_save"):
            raise RuntimeError(
                f"sharded state cannot be saved with torch {torch.__version__}\n"
                "hint: use torch 2.4 or later, or a model that is not sharded, for example in DistributedDataParallel"
            )
        is_distributed = dist.is_available() and dist.is_initialized()
        self.group = dist.new_group(backend="gloo") if is_distributed else None
        self._rank = dist.get_rank() if is_distributed else 0
        staging = importlib.import_module("torch.distributed.checkpoint.staging")
        if hasattr(staging, "DefaultStager"):  # keeps its memory from one save to the next
            self._stager = staging.DefaultStager(staging.StagingOptions(pinned, False, False, pinned))
        else:
            self._stager = _Stager(pinned=pinned)
        self._thread = ThreadPoolExecutor(1, "serried-shards")
        self._future: Any = None

    def save(self, state: Dict[str, Any], path: Path) -> None:
        """Copy `state`, and write it to `path` from then on. One at a time."""
        dcp = _dcp()
        writer = dcp.FileSystemWriter(path, sync_files=True)
        staged = self._stager.stage(state)
        self._future = self._thread.submit(dcp.save, staged, storage_writer=writer, **_among(self.group, dcp.save))

    def is_busy(self, seconds: float = 0.0) -> bool:
        """Whether the save is still in progress after `seconds`."""
        return self._future is not None and bool(wait([self._future], seconds).not_done)

    def finish(self) -> Optional[str]:
        """The problem of the save that has ended, or None."""
        future, self._future = self._future, None
        if future is None:
            return None
        error = future.exception()
        if error is None:
            return None
        # Torch wraps the errors of all ranks into one exception: the first rank's is enough.
        for rank, failure in sorted((getattr(error, "failures", None) or {}).items()):
            return f"rank {rank}: {failure[0] if isinstance(failure, tuple) else failure}"
        return str(error).strip().split("\n")[-1] or type(error).__name__

    def written(self, path: Path) -> List[str]:
        """The names of the files that this rank has written."""
        own = f"__{self._rank}_"
        return sorted(
            entry.name
            for entry in path.iterdir()
            if entry.name.startswith(own) or (entry.name == ".metadata" and self._rank == 0)
        )

    def close(self) -> None:
        self._thread.shutdown(wait=False)
        if hasattr(self._stager, "close"):
            self._stager.close()


class _Stager:
    """As `BlockingAsyncStager` of torch 2.4 to 2.8, which pins memory without CUDA too, and fails."""

    def __init__(self, *, pinned: bool) -> None:
        self._pinned = pinned
        self._kept: Any = None

    def stage(self, state: Dict[str, Any]) -> Any:
        from torch.distributed import _state_dict_utils as copies

        if self._kept is None:
            self._kept = copies._create_cpu_state_dict(state, pin_memory=self._pinned)
        return copies._copy_state_dict(state, self._kept)
