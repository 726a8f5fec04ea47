"""Which checkpoint in a directory is the newest whole one. Both sides look: at submit, and where a rank begins.

What `serried.train` writes is `step-N/` with a COMPLETE that names every file and its size. What other programs write
is known by the layouts of their frameworks (`layouts`), and by the numbers in the names; of several series the one that
changed last counts. Nothing that looks cut short does (`whole`).
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

from serried.fs import file_integrity, tree
from serried.fs.files import read_json
from serried.protocol import checkpoint_layouts

SCHEMA = 1
COMPLETE = "COMPLETE"
REPLICATED = "replicated.pt"
_STEP = re.compile(r"step-(\d{1,18})")
_OURS = re.compile(r"step-\d{1,18}(\.tmp|\.torn\.tmp|\.corrupt)?")
"""Whole, torn, being written, set aside."""
IN_CHECKPOINTS, IN_SCRATCH = "{checkpoints}/", ("$SLURM_TMPDIR/", "${SLURM_TMPDIR}/")
LOCAL = (IN_CHECKPOINTS, *IN_SCRATCH)
"""What a pattern of `checkpoint.watch` begins with that names files on the node's own disk."""
SET_ASIDE = ".corrupt"
"""Its files do not agree with its COMPLETE."""
_UNFINISHED = re.compile(r"\..*|.*(\.tmp|\.part|\.corrupt|~)")


def complete(path: Path) -> Optional[Dict[str, Any]]:
    """What COMPLETE says of the checkpoint in `path`; None where it is torn. Content is not read, only sizes."""
    document = read_json(path / COMPLETE)
    try:
        if document is None or document["schema"] != SCHEMA:
            return None
        sizes = {name: file["size"] for name, file in document["files"].items()}
        is_whole = all((path / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, KeyError, TypeError, ValueError, AttributeError):
        return None
    return document if is_whole else None


def steps(root: Path) -> List[int]:
    """The steps that have a directory, newest first, whole or not."""
    found = (step_of(name) for name in _names(root))
    return sorted((step for step in found if step is not None), reverse=True)


def directory_of(root: Path, step: int) -> Path:
    return root / f"step-{step}"


def step_of(name: str) -> Optional[int]:
    """The step of a directory of this name; None where it has no step, or was not finished."""
    match = _STEP.fullmatch(name)
    return int(match[1]) if match else None


def newest(root: Path, watch: Sequence[str] = ()) -> Optional[Path]:
    """The newest whole checkpoint in `root`; None where there is none, or no such directory.

    `watch`: the patterns by which checkpoints were brought there, which name them more closely than the top does.
    """
    if is_of_train(root):
        wholes = (directory_of(root, step) for step in steps(root))
        return next((path for path in wholes if complete(path) is not None), None)
    return next((path for path in ordered(root, watch) if checkpoint_layouts.is_whole(path, watch)), None)


def torn(root: Path, watch: Sequence[str] = ()) -> List[Path]:
    """What is newer than the newest whole one, and was begun and not finished; the oldest first."""
    found = newest(root, watch)
    if not is_of_train(root):
        entries = ordered(root, watch)
        later = entries[: entries.index(found)] if found in entries else entries
        return [path for path in reversed(later) if not (path.is_dir() and checkpoint_layouts.has_logs_alone(path))]
    least = step_of(found.name) if found is not None else None
    begun = [name for name in _names(root) if _OURS.fullmatch(name) and not name.endswith(SET_ASIDE)]
    steps_begun = sorted((step_of(name.partition(".")[0]) or 0, root / name) for name in begun)
    return [path for step, path in steps_begun if least is None or step > least]


def ordered(root: Path, watch: Sequence[str] = ()) -> List[Path]:
    """What other programs have left in `root`, the newest first; not what is no checkpoint by its name.

    Within a series the numbers in names decide, as copies have the times of copying; between series the times.
    """
    found = sorted(set(_watched(root, watch)) or set(_entries(root)))
    entries = [
        path
        for path in found
        if not (is_unfinished(path.name) or checkpoint_layouts.is_no_checkpoint(path.name, watch))
    ]
    series: Dict[str, List[Path]] = {}
    for path in entries:
        if not checkpoint_layouts.LAST.match(path.name):
            series.setdefault(checkpoint_layouts.series(_relative(root, path)), []).append(path)
    ages = {path: changed_within(path) for path in entries}
    ranks: Dict[Path, Tuple[Any, ...]] = {}
    for name, members in series.items():
        last = [path for path in entries if path not in ranks and _is_last_of(path, members)]
        main = (
            not checkpoint_layouts.is_secondary(members[0].name),
            max(ages[path] for path in (*members, *last)),
            name,
        )
        ranks.update({path: (*main, _order(root, path), ages[path]) for path in members})
        ranks.update({path: (*main, _order_of_last(root, path, members[0]), ages[path]) for path in last})
    alone = (path for path in entries if path not in ranks)
    ranks.update({path: (True, ages[path], path.name, (), 0) for path in alone})
    return sorted(entries, key=ranks.__getitem__, reverse=True)


def _entries(root: Path) -> Iterator[Path]:
    """What is at the top, and what known frameworks have put into folders of theirs."""
    for name in _names(root):
        path = root / name
        if name.startswith(".") or name in checkpoint_layouts.NEVER_FOLDERS:
            continue
        is_folder = path.is_dir() and not is_unfinished(name)
        below = (
            list(checkpoint_layouts.recognised(path)) if is_folder and not checkpoint_layouts.of_folder(path) else []
        )
        yield from below or [path]


def _relative(root: Path, path: Path) -> str:
    return path.relative_to(root).as_posix()


def _is_last_of(path: Path, series: Sequence[Path]) -> bool:
    """Whether `last.ckpt` goes with `epoch=3-step=400.ckpt`: beside it, with its ending, and numbered at all."""
    matched, one = checkpoint_layouts.LAST.match(path.name), series[0]
    if matched is None or checkpoint_layouts.is_secondary(one.name) or not any(map(str.isdigit, one.name)):
        return False
    return one.name.endswith(path.name[matched.end() :]) and any(path.parent == each.parent for each in series)


def _order(root: Path, path: Path) -> Tuple[float, ...]:
    return checkpoint_layouts.order_of(_relative(root, path))


def _order_of_last(root: Path, path: Path, other: Path) -> Tuple[float, ...]:
    """By what it says itself, in the terms of the names beside it; beyond them where it does not say."""
    above = checkpoint_layouts.order_of(_relative(root, path.parent / "last"))
    said = file_integrity.counters(path)
    step = said.get("global_step", said.get("iter_num", said.get("step")))
    terms = {"epoch": said.get("epoch"), "step": step}
    told = [terms[term] for term in checkpoint_layouts.terms(other.name)]
    known = tuple(each for each in told if each is not None)
    return (*above, *known) if known and len(known) == len(told) else (*above, float("inf"))


def _watched(root: Path, watch: Sequence[str]) -> Iterator[Path]:
    """What has a name that a watched checkpoint gets, also where another node had brought one of that name before."""
    for pattern in map(brought_as, watch):
        for each in (pattern, f"node-*/{pattern}"):
            yield from (root / path for path, _ in tree.find(str(root), each, lambda _: None))


def brought_as(watch: str) -> str:
    """The pattern of the names that checkpoints have among the run's own: from the first folder that is left open."""
    below = next((watch[len(prefix) :] for prefix in LOCAL if watch.startswith(prefix)), watch)
    return below[len(tree.beginning(below)) :].lstrip("/")


def changed_within(path: Path) -> int:
    """When `path` or a file in it was changed: a folder that is written anew may keep the names of its files."""
    files = (changed(Path(folder, name)) for folder, name in checkpoint_layouts.inside(path))
    return max(changed(path), max(files, default=0))


def is_of_train(root: Path) -> bool:
    """Whether the checkpoints in `root` are those of `serried.train`; others call theirs `step-N` too."""
    found = _names(root)
    begun = [name for name in found if _OURS.fullmatch(name)]
    named = [name for name in begun if step_of(name) is not None]
    if any(not {COMPLETE, REPLICATED}.isdisjoint(_names(root / name)) for name in named):
        return True
    return bool(found) and begun == found and not named


def is_unfinished(name: str) -> bool:
    """Whether what is called so was never finished, or was set aside: by the words of Serried and of most programs."""
    return _UNFINISHED.fullmatch(name) is not None


def changed(path: Path) -> int:
    """When `path` was changed, nanoseconds since the epoch by the file server's clock; 0 where it is not there."""
    try:
        return path.lstat().st_mtime_ns
    except OSError:
        return 0


def _names(root: Path) -> List[str]:
    try:
        return os.listdir(root)  # noqa: PTH208 - no stat
    except OSError:
        return []
