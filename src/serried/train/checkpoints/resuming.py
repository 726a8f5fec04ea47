"""Which checkpoint to go on from, agreed by all ranks, and how its states come back."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

from serried.protocol import checkpoints as layout
from serried.train.checkpoints import serializable, sharded, states, store
from serried.train.context import Context, Stateful

_log = logging.getLogger(__name__)


class CheckpointError(RuntimeError):
    """A checkpoint is needed, and there is none, or it does not fit."""


def find(context: Context, root: Path) -> Optional[store.Checkpoint]:
    """The newest whole checkpoint whose content agrees with its checksums. Collective.

    Rank 0 looks, and clears away what writers that died have left; the ranks share the reading of the files.
    Where `root` has none, `context.resume_from` must have one.
    """
    own: List[store.Checkpoint] = []
    if context.is_main:
        own = store.whole(root)
        _report_torn(root)
        store.sweep(root)
    found = _first_undamaged(context, own, set_aside=True)
    if found is not None or context.resume_from is None:
        return found
    found = _first_undamaged(context, _named(context.resume_from) if context.is_main else [])
    if found is None:
        raise CheckpointError(f"no whole checkpoint in `{context.resume_from}` to begin from{_beside(context)}")
    return found


def _first_undamaged(
    context: Context, checkpoints: List[store.Checkpoint], *, set_aside: bool = False
) -> Optional[store.Checkpoint]:
    """Of rank 0's `checkpoints`."""
    for checkpoint in context.broadcast_object(checkpoints):
        problem = store.damaged(checkpoint, _share(checkpoint, context))
        if context.all_reduce_max(0 if problem is None else 1) == 0:
            found: store.Checkpoint = checkpoint
            return found
        if problem is not None:
            _log.warning("checkpoint %s is passed over: %s", checkpoint.path, problem)
        if context.is_main and set_aside:
            _set_aside(checkpoint.path)
    return None


def _named(path: Path) -> List[store.Checkpoint]:
    """The checkpoints that `path` means: it is one, or has them in it."""
    itself = store.open_checkpoint(path)
    if itself is not None:
        return [itself]
    _report_torn(path)
    return store.whole(path)


def _beside(context: Context) -> str:
    """The whole ones beside the one that was named and is damaged or gone, for whoever reads why it failed."""
    named = context.resume_from
    beside = [each.path.name for each in store.whole(named.parent) if each.path != named] if named else []
    return f"; beside it there are {', '.join(beside)}" if beside else ""


def _report_torn(root: Path) -> None:
    for path in layout.torn(root):
        _log.warning("checkpoint %s is passed over: its writing was cut short", path)


def _share(checkpoint: store.Checkpoint, context: Context) -> List[str]:
    names = sorted(checkpoint.files)
    return names[context.rank :: context.world_size]


def _set_aside(path: Path) -> None:
    """A damaged checkpoint must neither be tried again nor count among those that are kept."""
    try:
        path.rename(path.with_name(f"{path.name}{layout.SET_ASIDE}"))
    except OSError as error:
        _log.warning("checkpoint %s cannot be set aside: %s", path, error.strerror)


def restore(
    checkpoint: store.Checkpoint, context: Context, objects: Mapping[str, Any], spread: Sequence[str], group: Any
) -> Tuple[Dict[str, Any], Dict[int, Dict[str, Any]]]:
    """Give every object its state back; return what the checkpoints keep for themselves, and the loaders' states.

    `spread`: the objects that are sharded now, whatever they were when they were saved. Collective.
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
    _tell_of_the_rest(
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
    """The whole states of optimizers of which each rank has saved its share, where a rank's own share will not do."""
    wanted = [name for name in checkpoint.shared if name in objects]
    if is_same_world:
        wanted = [name for name in wanted if not isinstance(objects[name], states.Share)]
    ranks = range(checkpoint.world_size) if wanted else ()
    files = [serializable.read(checkpoint.path / store.rank_file(rank))["objects"] for rank in ranks]
    return {name: states.joined([file[name] for file in files]) for name in wanted}


def _seed_anew(checkpoint: store.Checkpoint, context: Context) -> None:
    """What each rank kept for itself is nobody's in another world: say so, and what it means."""
    states.seed_anew(context, checkpoint.step)
    if not context.is_main:
        return
    said = _other_world(checkpoint, context)
    _log.warning("%s: random numbers begin anew", said)
    for number, position in serializable.read(checkpoint.path / store.rank_file(0))["loaders"].items():
        if position:
            _log.warning(
                "%s: loader %d, which the script brought ready, begins its epoch anew, and items of it come again\n"
                "hint: give its dataset to run.loader, which goes on in any world",
                said,
                number,
            )


def _report_afresh(checkpoint: store.Checkpoint, context: Context, name: str, obj: Stateful) -> None:
    if not context.is_main:
        return
    if states.is_replicated(obj, otherwise=True) or checkpoint.world_size == context.world_size:
        _log.warning("checkpoint %s has no state for `%s`, which begins afresh", checkpoint.path, name)
    else:
        said = _other_world(checkpoint, context)
        _log.warning("%s: `%s`, of which each rank had its own, begins afresh", said, name)


def _tell_of_the_rest(checkpoint: store.Checkpoint, context: Context, names: Iterable[str]) -> None:
    """What was left out of the script, or has another name now, will be in no further checkpoint."""
    for name in sorted(names) if context.is_main else ():
        _log.warning("checkpoint %s has a state for `%s`, which nobody takes", checkpoint.path, name)


def _other_world(checkpoint: store.Checkpoint, context: Context) -> str:
    return f"checkpoint {checkpoint.path} is of {checkpoint.world_size} ranks, and there are {context.world_size} now"


def _give(checkpoint: store.Checkpoint, name: str, obj: Stateful, state: Dict[str, Any]) -> None:
    try:
        obj.load_state_dict(state)
    except (RuntimeError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"`{name}` does not accept its state from checkpoint `{checkpoint.path}`: {error}"
        ) from error
