"""The states in a checkpoint, of the objects, of the session and of each rank: collected, and restored."""

from __future__ import annotations

import logging
import random
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, Iterable, List, Mapping, Optional, Protocol, Sequence, Tuple

import torch
from torch import nn
from torch.optim import Optimizer

from serried.schema import checkpoints as layout
from serried.train.checkpoints import sharded, store
from serried.train.checkpoints.shared_memory import read_file

if TYPE_CHECKING:
    from serried.train.run import Session

_log = logging.getLogger(__name__)

OWN = "serried"
"""The key of the session's own state, beside the objects' names."""

_ZERO_HOME = "torch.distributed.optim.zero_redundancy_optimizer"
"""If no module has imported it, the script has no such optimizer."""


class CheckpointError(RuntimeError):
    """A checkpoint is missing, could not be saved, or does not fit."""


class Stateful(Protocol):
    """An object that checkpoints can save: a model, an optimizer, a loader, a counter."""

    def state_dict(self) -> Dict[str, Any]: ...

    def load_state_dict(self, state: Dict[str, Any]) -> Any: ...


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


def own_state(run: Session) -> Dict[str, Any]:
    """The session's state that is the same on all ranks."""
    loaders = {
        number: loader.state_dict()
        for number, loader in enumerate(run.loaders)
        if is_replicated(loader, otherwise=False)
    }
    return {"parts": {name: part.state_dict() for name, part in run.parts.items()}, "loaders": loaders}


def rank_state(run: Session, objects: Mapping[str, Stateful]) -> Dict[str, Any]:
    """The state of this rank alone."""
    loaders = {
        number: loader.state_dict()
        for number, loader in enumerate(run.loaders)
        if not is_replicated(loader, otherwise=False)
    }
    own = {name: obj.state_dict() for name, obj in objects.items()}
    return {"random": random_state(run.device), "loaders": loaders, "objects": own}


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


# Resuming: all ranks agree on a checkpoint, and restore its states.


def find(run: Session, root: Path) -> Optional[store.Checkpoint]:
    """The newest complete checkpoint whose content matches its checksums. Collective.

    Rank 0 lists them and removes partial ones; the ranks share the reading of the files. If `root` has none,
    `run.resume_from` must have one.

    Raises:
        CheckpointError: `run.resume_from` has none either.
    """
    own: List[store.Checkpoint] = []
    if run.is_main:
        own = store.whole(root)
        _report_torn(root)
        store.remove_partial(root)
    found = _first_undamaged(run, own, set_aside=True)
    if found is not None or run.resume_from is None:
        return found
    found = _first_undamaged(run, _named(run.resume_from) if run.is_main else [])
    if found is None:
        raise CheckpointError(f"no complete checkpoint in `{run.resume_from}` to start from{_beside(run)}")
    return found


def _first_undamaged(
    run: Session, checkpoints: List[store.Checkpoint], *, set_aside: bool = False
) -> Optional[store.Checkpoint]:
    """The first of rank 0's `checkpoints` without damage."""
    for checkpoint in run.broadcast_object(checkpoints):
        share = sorted(checkpoint.files)[run.rank :: run.world_size]
        problem = store.find_damage(checkpoint, share)
        if run.all_reduce_max(0 if problem is None else 1) == 0:
            undamaged: store.Checkpoint = checkpoint
            return undamaged
        if problem is not None:
            _log.warning("skipping checkpoint %s: %s", checkpoint.path, problem)
        if run.is_main and set_aside:
            _set_aside(checkpoint.path)
    return None


def _named(path: Path) -> List[store.Checkpoint]:
    """`path` as a checkpoint, or the checkpoints in it."""
    itself = store.open_checkpoint(path)
    if itself is not None:
        return [itself]
    _report_torn(path)
    return store.whole(path)


def _beside(run: Session) -> str:
    """For the error message: other complete checkpoints in the folder of the named one."""
    named = run.resume_from
    beside = [each.path.name for each in store.whole(named.parent) if each.path != named] if named else []
    return f"; beside it there are {', '.join(beside)}" if beside else ""


def _report_torn(root: Path) -> None:
    for path in layout.torn(root):
        _log.warning("skipping checkpoint %s: it was not written completely", path)


def _set_aside(path: Path) -> None:
    """Rename a damaged checkpoint, so that it is neither tried again nor counted by `keep`."""
    try:
        path.rename(path.with_name(f"{path.name}{layout.SET_ASIDE}"))
    except OSError as error:
        _log.warning("checkpoint %s cannot be set aside: %s", path, error.strerror)


def restore(
    checkpoint: store.Checkpoint, run: Session, objects: Mapping[str, Any], spread: Sequence[str], group: Any
) -> Tuple[Dict[str, Any], Dict[int, Dict[str, Any]]]:
    """Restore every object. Returns the state of `Checkpoints` itself, and the loaders' states by number. Collective.

    `spread`: names of the objects that are sharded now, which may differ from when they were saved.
    """
    replicated = read_file(checkpoint.path / layout.REPLICATED)
    own_file = checkpoint.path / store.rank_file(run.rank)
    is_same_world = checkpoint.world_size == run.world_size
    rank = read_file(own_file) if is_same_world else {}
    by_rank = {**rank.get("objects", {}), **_joined(checkpoint, objects, is_same_world)}
    in_shards = [name for name in checkpoint.sharded if name in objects]
    for name, obj in objects.items():
        if name in in_shards:
            continue
        if name in by_rank:
            _give(checkpoint, name, obj, by_rank[name])
        elif name not in replicated:
            _warn_of_missing_state(checkpoint, run, name, obj)
        elif name in spread:
            sharded.load_full(name, replicated[name], objects)
        else:
            _give(checkpoint, name, obj, replicated[name])
    _warn_of_unused_states(
        checkpoint, run, {*replicated, *by_rank, *checkpoint.sharded, *checkpoint.shared} - {OWN, *objects}
    )
    if in_shards:
        sharded.load(checkpoint.path / store.SHARDED, in_shards, objects, group)
    own = replicated[OWN]
    for name, part in run.parts.items():
        if name in own["parts"]:
            part.load_state_dict(own["parts"][name])
    if is_same_world:
        set_random_state(rank["random"], run.device)
    else:
        _reseed(checkpoint, run)
    return own["checkpoints"], {**own["loaders"], **rank.get("loaders", {})}


def _joined(checkpoint: store.Checkpoint, objects: Mapping[str, Any], is_same_world: bool) -> Dict[str, Any]:
    """The full states of optimizers that were saved as one share per rank, if the own share is not enough."""
    wanted = [name for name in checkpoint.shared if name in objects]
    if is_same_world:
        wanted = [name for name in wanted if not isinstance(objects[name], ZeroShard)]
    ranks = range(checkpoint.world_size) if wanted else ()
    files = [read_file(checkpoint.path / store.rank_file(rank))["objects"] for rank in ranks]
    return {name: joined([file[name] for file in files]) for name in wanted}


def _reseed(checkpoint: store.Checkpoint, run: Session) -> None:
    """Seed the generators, because states per rank do not fit another world size. Warn about the consequences.

    The seed has the step in it, so that a rank does not repeat the numbers of step 0.
    """
    generator = random.Random(f"{run.seed} {run.rank} {run.world_size} {checkpoint.step}")  # noqa: S311 - a training's seed
    torch.manual_seed(generator.getrandbits(63))
    random.seed(generator.getrandbits(63))
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(generator.getrandbits(32))
    if not run.is_main:
        return
    change = _other_world(checkpoint, run)
    _log.warning("%s: per-rank random states were reset", change)
    for number, position in read_file(checkpoint.path / store.rank_file(0))["loaders"].items():
        if position:
            _log.warning(
                "%s: loader %d cannot be resumed mid-epoch; its epoch restarts and some samples repeat\n"
                "hint: give its dataset to run.loader, which resumes with any world size",
                change,
                number,
            )


def _warn_of_missing_state(checkpoint: store.Checkpoint, run: Session, name: str, obj: Stateful) -> None:
    if not run.is_main:
        return
    if is_replicated(obj, otherwise=True) or checkpoint.world_size == run.world_size:
        _log.warning("checkpoint %s has no state for `%s`, which keeps its initial state", checkpoint.path, name)
    else:
        change = _other_world(checkpoint, run)
        _log.warning("%s: `%s` had a state per rank and keeps its initial state", change, name)


def _warn_of_unused_states(checkpoint: store.Checkpoint, run: Session, names: Iterable[str]) -> None:
    """Warn of objects that the script dropped or renamed: later checkpoints will not contain them."""
    for name in sorted(names) if run.is_main else ():
        _log.warning("checkpoint %s contains unused state `%s`", checkpoint.path, name)


def _other_world(checkpoint: store.Checkpoint, run: Session) -> str:
    return f"checkpoint {checkpoint.path} was saved with {checkpoint.world_size} ranks, now {run.world_size}"


def _give(checkpoint: store.Checkpoint, name: str, obj: Stateful, state: Dict[str, Any]) -> None:
    try:
        obj.load_state_dict(state)
    except (RuntimeError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"`{name}` does not accept its state from checkpoint `{checkpoint.path}`: {error}"
        ) from error
