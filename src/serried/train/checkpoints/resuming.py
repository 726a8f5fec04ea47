"""Resuming: all ranks agree on a checkpoint and restore its states."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

from serried.protocol import checkpoints as layout
from serried.train.checkpoints import serializable, sharded, states, store
from serried.train.context import Context, Stateful

_log = logging.getLogger(__name__)


class CheckpointError(RuntimeError):
    """A checkpoint is missing, could not be saved, or does not fit."""


def find(context: Context, root: Path) -> Optional[store.Checkpoint]:
    """The newest complete checkpoint whose content matches its checksums. Collective.

    Rank 0 lists them and removes partial ones; the ranks share the reading of the files. If `root` has none,
    `context.resume_from` must have one.

    Raises:
        CheckpointError: `context.resume_from` has none either.
    """
    own: List[store.Checkpoint] = []
    if context.is_main:
        own = store.whole(root)
        _report_torn(root)
        store.remove_partial(root)
    found = _first_undamaged(context, own, set_aside=True)
    if found is not None or context.resume_from is None:
        return found
    found = _first_undamaged(context, _named(context.resume_from) if context.is_main else [])
    if found is None:
        raise CheckpointError(f"no complete checkpoint in `{context.resume_from}` to start from{_beside(context)}")
    return found


def _first_undamaged(
    context: Context, checkpoints: List[store.Checkpoint], *, set_aside: bool = False
) -> Optional[store.Checkpoint]:
    """The first of rank 0's `checkpoints` without damage."""
    for checkpoint in context.broadcast_object(checkpoints):
        problem = store.find_damage(checkpoint, _share(checkpoint, context))
        if context.all_reduce_max(0 if problem is None else 1) == 0:
            found: store.Checkpoint = checkpoint
            return found
        if problem is not None:
            _log.warning("skipping checkpoint %s: %s", checkpoint.path, problem)
        if context.is_main and set_aside:
            _set_aside(checkpoint.path)
    return None


def _named(path: Path) -> List[store.Checkpoint]:
    """`path` as a checkpoint, or the checkpoints in it."""
    itself = store.open_checkpoint(path)
    if itself is not None:
        return [itself]
    _report_torn(path)
    return store.whole(path)


def _beside(context: Context) -> str:
    """For the error message: other complete checkpoints in the folder of the named one."""
    named = context.resume_from
    beside = [each.path.name for each in store.whole(named.parent) if each.path != named] if named else []
    return f"; beside it there are {', '.join(beside)}" if beside else ""


def _report_torn(root: Path) -> None:
    for path in layout.torn(root):
        _log.warning("skipping checkpoint %s: it was not written completely", path)


def _share(checkpoint: store.Checkpoint, context: Context) -> List[str]:
    names = sorted(checkpoint.files)
    return names[context.rank :: context.world_size]


def _set_aside(path: Path) -> None:
    """Rename a damaged checkpoint, so that it is neither tried again nor counted by `keep`."""
    try:
        path.rename(path.with_name(f"{path.name}{layout.SET_ASIDE}"))
    except OSError as error:
        _log.warning("checkpoint %s cannot be set aside: %s", path, error.strerror)


def restore(
    checkpoint: store.Checkpoint, context: Context, objects: Mapping[str, Any], spread: Sequence[str], group: Any
) -> Tuple[Dict[str, Any], Dict[int, Dict[str, Any]]]:
    """Restore every object. Returns the state of `Checkpoints` itself, and the loaders' states by number. Collective.

    `spread`: names of the objects that are sharded now, which may differ from when they were saved.
    """
    replicated = serializable.read(checkpoint.path / store.REPLICATED)
    own_file = checkpoint.path / store.rank_file(context.rank)
    is_same_world = checkpoint.world_size == context.world_size
    rank = serializable.read(own_file) if is_same_world else {}
    by_rank = {**rank.get("objects", {}), **_joined(checkpoint, objects, is_same_world)}
    in_shards = [name for name in checkpoint.sharded if name in objects]
    for name, obj in objects.items():
        if name in in_shards:
            continue
        if name in by_rank:
            _give(checkpoint, name, obj, by_rank[name])
        elif name not in replicated:
            _report_afresh(checkpoint, context, name, obj)
        elif name in spread:
            sharded.load_full(name, replicated[name], objects)
        else:
            _give(checkpoint, name, obj, replicated[name])
    _warn_of_unused_states(
        checkpoint, context, {*replicated, *by_rank, *checkpoint.sharded, *checkpoint.shared} - {states.OWN, *objects}
    )
    if in_shards:
        sharded.load(checkpoint.path / store.SHARDED, in_shards, objects, group)
    own = replicated[states.OWN]
    for name, part in context.parts.items():
        if name in own["parts"]:
            part.load_state_dict(own["parts"][name])
    if is_same_world:
        states.set_random_state(rank["random"], context.device)
    else:
        _seed_anew(checkpoint, context)
    return own["checkpoints"], {**own["loaders"], **rank.get("loaders", {})}


def _joined(checkpoint: store.Checkpoint, objects: Mapping[str, Any], is_same_world: bool) -> Dict[str, Any]:
    """The full states of optimizers that were saved as one share per rank, if the own share is not enough."""
    wanted = [name for name in checkpoint.shared if name in objects]
    if is_same_world:
        wanted = [name for name in wanted if not isinstance(objects[name], states.ZeroShard)]
    ranks = range(checkpoint.world_size) if wanted else ()
    files = [serializable.read(checkpoint.path / store.rank_file(rank))["objects"] for rank in ranks]
    return {name: states.joined([file[name] for file in files]) for name in wanted}


def _seed_anew(checkpoint: store.Checkpoint, context: Context) -> None:
    """Seed the generators: per-rank states do not fit another world size. Warn about the consequences."""
    states.reseed_for_new_world(context, checkpoint.step)
    if not context.is_main:
        return
    change = _other_world(checkpoint, context)
    _log.warning("%s: per-rank random states were reset", change)
    for number, position in serializable.read(checkpoint.path / store.rank_file(0))["loaders"].items():
        if position:
            _log.warning(
                "%s: loader %d cannot be resumed mid-epoch; its epoch restarts and some samples repeat\n"
                "hint: give its dataset to run.loader, which resumes with any world size",
                change,
                number,
            )


def _report_afresh(checkpoint: store.Checkpoint, context: Context, name: str, obj: Stateful) -> None:
    if not context.is_main:
        return
    if states.is_replicated(obj, otherwise=True) or checkpoint.world_size == context.world_size:
        _log.warning("checkpoint %s has no state for `%s`, which keeps its initial state", checkpoint.path, name)
    else:
        change = _other_world(checkpoint, context)
        _log.warning("%s: `%s` had a state per rank and keeps its initial state", change, name)


def _warn_of_unused_states(checkpoint: store.Checkpoint, context: Context, names: Iterable[str]) -> None:
    """Warn of objects that the script dropped or renamed: later checkpoints will not contain them."""
    for name in sorted(names) if context.is_main else ():
        _log.warning("checkpoint %s contains unused state `%s`", checkpoint.path, name)


def _other_world(checkpoint: store.Checkpoint, context: Context) -> str:
    return f"checkpoint {checkpoint.path} was saved with {checkpoint.world_size} ranks, now {context.world_size}"


def _give(checkpoint: store.Checkpoint, name: str, obj: Stateful, state: Dict[str, Any]) -> None:
    try:
        obj.load_state_dict(state)
    except (RuntimeError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"`{name}` does not accept its state from checkpoint `{checkpoint.path}`: {error}"
        ) from error
