"""The states in a checkpoint, of the objects, of the session and of each rank: collected, and restored."""

from __future__ import annotations

import logging
import random
import sys
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Protocol, Sequence, Set, Tuple

import torch
from torch import nn
from torch.optim import Optimizer

from serried.schema import checkpoints as layout
from serried.train.checkpoints import sharded, store
from serried.train.checkpoints.shared_memory import read_file

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


class KeptCopies(Protocol):
    """Copies of saves in memory that outlived their ranks: `Saver` has them."""

    def publish_kept(self) -> None: ...
    def held(self, checkpoint: store.Checkpoint) -> Dict[str, memoryview]: ...


class SessionLike(Protocol):
    """What checkpoints and the trace of a resume check need of a session."""

    rank: int
    local_rank: int
    world_size: int
    is_main: bool
    device: torch.device
    seed: int
    attempt: int
    directory: Optional[Path]
    resume_from: Optional[Path]
    _loaders: List[Stateful]
    _parts: Dict[str, Stateful]
    _all_checkpoints: List[Any]
    _smoke: Any
    _buckets: Any

    def broadcast_object(self, obj: Any) -> Any: ...
    def all_reduce_max(self, value: int) -> int: ...
    def flush(self) -> None: ...
    def _catch_up(self, objects: List[Stateful]) -> None: ...
    def stop_reason(self) -> Optional[str]: ...
    def _await_stop(self, seconds: float) -> None: ...
    def saved_for_stop(self, step: int) -> None: ...


def unwrapped(obj: Any) -> Any:
    """A model without DDP, DataParallel and torch.compile around it, so that its state fits the bare model."""
    while isinstance(obj, nn.Module):
        if isinstance(obj, (nn.parallel.DistributedDataParallel, nn.parallel.DataParallel)):
            obj = obj.module
        elif hasattr(obj, "_orig_mod"):  # torch.compile
            obj = obj._orig_mod
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
            for group, saved in zip(target.param_groups, state["param_groups"]):
                group.update({name: value for name, value in saved.items() if name != "params"})


def shared(obj: Any) -> Any:
    """A ZeroRedundancyOptimizer as this rank's shard; other objects as they are.

    Raises:
        ValueError: with `overlap_with_ddp` the optimizer skips its first steps, while it learns DDP's buckets.
    """
    zero = getattr(sys.modules.get(_ZERO_HOME), "ZeroRedundancyOptimizer", None)
    if zero is None or not isinstance(obj, zero):
        return obj
    if obj._overlap_with_ddp:
        raise ValueError(
            "a ZeroRedundancyOptimizer with `overlap_with_ddp=True` skips its first updates, again after each "
            "restart\nhint: leave that option out"
        )
    return ZeroShard(obj)


def _parameters(optimizer: Any) -> List[Any]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def is_replicated(obj: Any, otherwise: bool) -> bool:
    """Whether the state of `obj` is the same on all ranks: its attribute `replicated`, or else `otherwise`."""
    return bool(getattr(obj, "replicated", otherwise))


def collect(run: SessionLike, objects: Mapping[str, Any], spread: Sequence[str], epochs: int) -> Dict[str, Any]:
    """The states for a checkpoint, by file: this rank's own, and on rank 0 those that are the same on all ranks.

    `spread`: names of sharded objects, which torch saves.
    """
    by_rank: Dict[str, Any] = {"loaders": {}, "objects": {}}
    own: Dict[str, Any] = {"parts": {}, "loaders": {}, "checkpoints": {"epochs": epochs}}
    for number, loader in enumerate(run._loaders):
        holder = own if is_replicated(loader, otherwise=False) else by_rank
        holder["loaders"][number] = loader.state_dict()
    replicated: Dict[str, Any] = {}
    for name, obj in objects.items():
        if not is_replicated(obj, otherwise=True) and name not in spread:
            by_rank["objects"][name] = obj.state_dict()
        elif run.is_main and name not in spread:
            replicated[name] = obj.state_dict()
    by_rank["random"] = random_state(run.device)  # last: `state_dict` may draw, as a StatefulDataLoader's does
    files = {store.rank_file(run.rank): by_rank}
    if run.is_main:
        own["parts"] = {name: part.state_dict() for name, part in run._parts.items()}
        files[layout.REPLICATED] = {**replicated, OWN: own}
    return files


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


def find(run: SessionLike, root: Path, kept: Optional[KeptCopies] = None) -> Optional[store.Checkpoint]:
    """The newest complete checkpoint whose content matches its checksums. Collective.

    Rank 0 lists them and removes partial ones; the ranks share the reading of the files. If `root` has none,
    `run.resume_from` must have one: it names a checkpoint, or a directory of checkpoints.

    Raises:
        CheckpointError: `run.resume_from` has none either, or ranks of a later round have begun.
    """
    own: List[store.Checkpoint] = []
    if run.broadcast_object(run.is_main and not store.take(root)):
        raise CheckpointError(f"`{root}` belongs to ranks that started after this one")
    if run.is_main:
        own = _list(root)
        store.remove_partial(root)
    if kept is not None:
        kept.publish_kept()
        own = store.whole(root) if run.is_main else []
    found = _first_undamaged(run, own, kept, set_aside=True)
    named = run.resume_from
    if found is not None or named is None:
        return found
    itself = store.open_checkpoint(named) if run.is_main else None
    found = _first_undamaged(run, [itself] if itself else _list(named) if run.is_main else [])
    if found is None:
        beside = [each.path.name for each in store.whole(named.parent) if each.path != named]
        others = f"; beside it there are {', '.join(beside)}" if beside else ""
        raise CheckpointError(f"no complete checkpoint in `{named}` to start from{others}")
    return found


def _list(root: Path) -> List[store.Checkpoint]:
    for path in layout.torn(root):
        _log.warning("skipping checkpoint %s: it was not written completely", path)
    return store.whole(root)


def _first_undamaged(
    run: SessionLike,
    checkpoints: List[store.Checkpoint],
    kept: Optional[KeptCopies] = None,
    *,
    set_aside: bool = False,
) -> Optional[store.Checkpoint]:
    """The first of rank 0's `checkpoints` without damage.

    `set_aside`: rename a damaged one, so that it is neither tried again nor counted by `keep`.
    """
    checkpoint: store.Checkpoint
    for checkpoint in run.broadcast_object(checkpoints):
        left = set(checkpoint.files) - _not_to_be_read(checkpoint, run, kept)
        share = sorted(left)[run.rank :: run.world_size]
        problem = store.find_damage(checkpoint, share)
        if run.all_reduce_max(0 if problem is None else 1) == 0:
            return checkpoint
        path = checkpoint.path
        if problem is not None:
            _log.warning("skipping checkpoint %s: %s", path, problem)
        if run.is_main and set_aside:
            try:
                path.rename(path.with_name(f"{path.name}{layout.SET_ASIDE}"))
            except OSError as error:
                _log.warning("checkpoint %s cannot be set aside: %s", path, error.strerror)
    return None


def _not_to_be_read(checkpoint: store.Checkpoint, run: SessionLike, kept: Optional[KeptCopies]) -> Set[str]:
    """The files that every rank which needs them has in memory. Collective."""
    if kept is None:
        return set()
    held = kept.held(checkpoint)
    have_own, have_replicated = (
        run.all_reduce_max(int(name not in held)) == 0 for name in (store.rank_file(run.rank), layout.REPLICATED)
    )
    ranks = range(run.world_size) if have_own and not checkpoint.shared else ()
    return {*map(store.rank_file, ranks), *([layout.REPLICATED] if have_replicated else [])}


def restore(
    checkpoint: store.Checkpoint,
    run: SessionLike,
    objects: Mapping[str, Any],
    spread: Sequence[str],
    group: Any,
    *,
    held: Mapping[str, memoryview],
) -> Tuple[Dict[str, Any], Dict[int, Dict[str, Any]]]:
    """Restore every object. Returns the state of `Checkpoints` itself, and the loaders' states by number. Collective.

    `spread`: names of the objects that are sharded now, which may differ from when they were saved. `held`: files that
    are in memory.
    """
    is_same_world = checkpoint.world_size == run.world_size
    own = store.rank_file(run.rank)
    replicated = read_file(held.get(layout.REPLICATED, checkpoint.path / layout.REPLICATED))
    rank = read_file(held.get(own, checkpoint.path / own)) if is_same_world else {}
    by_rank = {**rank.get("objects", {}), **_joined(checkpoint, objects, is_same_world)}
    in_shards = [name for name in checkpoint.sharded if name in objects]
    for name, obj in objects.items():
        if name in in_shards:
            continue
        if name in spread and name in replicated and name not in by_rank:
            sharded.load_full(name, replicated[name], objects)
        elif name in by_rank or name in replicated:
            try:
                obj.load_state_dict(by_rank[name] if name in by_rank else replicated[name])
            except (RuntimeError, ValueError, KeyError, TypeError) as error:
                raise CheckpointError(
                    f"`{name}` does not accept its state from checkpoint `{checkpoint.path}`: {error}"
                ) from error
    saved = {*replicated, *by_rank, *checkpoint.sharded, *checkpoint.shared} - {OWN}
    _warn_of_mismatch(checkpoint, run, saved, objects)
    if in_shards:
        sharded.load(checkpoint.path / store.SHARDED, in_shards, objects, group)
    session = replicated[OWN]
    for name, part in run._parts.items():
        if name in session["parts"]:
            part.load_state_dict(session["parts"][name])
    if is_same_world:
        set_random_state(rank["random"], run.device)
    else:
        _reseed(checkpoint, run)
    return session["checkpoints"], {**session["loaders"], **rank.get("loaders", {})}


def _other_world(checkpoint: store.Checkpoint, run: SessionLike) -> str:
    return f"checkpoint {checkpoint.path} was saved with {checkpoint.world_size} ranks, now {run.world_size}"


def _warn_of_mismatch(
    checkpoint: store.Checkpoint, run: SessionLike, saved: Set[str], objects: Mapping[str, Any]
) -> None:
    if not run.is_main:
        return
    is_same_world = checkpoint.world_size == run.world_size
    for name in sorted(objects.keys() - saved):
        if not is_same_world and not is_replicated(objects[name], otherwise=True):
            change = _other_world(checkpoint, run)
            _log.warning("%s: `%s` had a state per rank and keeps its initial state", change, name)
        else:
            _log.warning("checkpoint %s has no state for `%s`, which keeps its initial state", checkpoint.path, name)
    for name in sorted(saved - objects.keys()):  # dropped or renamed by the script: later checkpoints lack them
        _log.warning("checkpoint %s contains unused state `%s`", checkpoint.path, name)


def _joined(checkpoint: store.Checkpoint, objects: Mapping[str, Any], is_same_world: bool) -> Dict[str, Any]:
    """The full states of optimizers that were saved as one shard per rank, if the own shard is not enough."""
    wanted = [name for name in checkpoint.shared if name in objects]
    if is_same_world:
        wanted = [name for name in wanted if not isinstance(objects[name], ZeroShard)]
    ranks = range(checkpoint.world_size) if wanted else ()
    files = [read_file(checkpoint.path / store.rank_file(rank))["objects"] for rank in ranks]
    joined = {}
    for name in wanted:
        state = {number: each for file in files for number, each in file[name]["state"].items()}
        joined[name] = {"state": dict(sorted(state.items())), "param_groups": files[0][name]["param_groups"]}
    return joined


def _reseed(checkpoint: store.Checkpoint, run: SessionLike) -> None:
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
