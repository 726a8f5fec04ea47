"""Finds the newest complete checkpoint in a directory, at submit time and when an attempt begins.

`serried.train` writes `step-N/` with a COMPLETE that names every file and its size. Checkpoints of other programs are
recognised by the layouts of their frameworks (`checkpoint_layouts`), and ordered by the numbers in their names. Of
several series the one that changed last counts. Truncated checkpoints never count.

Whether a checkpoint is complete is decided here for `serried.train`, in `checkpoint_layouts` for other programs, and
for a single file by its format, in `base/file_integrity`. `agent/stage_out/completeness` also waits until no program
writes it.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

from serried.base import file_integrity, tree
from serried.base.files import read_json
from serried.schema import checkpoint_layouts

SCHEMA = 1
COMPLETE = "COMPLETE"
REPLICATED = "replicated.pt"
_STEP = r"step-(\d{1,18})"
_OURS = r"step-\d{1,18}(\.tmp|\.torn\.tmp|\.corrupt)?"
"""Complete, torn, unfinished and corrupt checkpoints of `serried.train`."""
IN_CHECKPOINTS, IN_SCRATCH = "{checkpoints}/", ("$SLURM_TMPDIR/", "${SLURM_TMPDIR}/")
LOCAL = (IN_CHECKPOINTS, *IN_SCRATCH)
"""The beginnings of patterns of `checkpoint.watch` for files on the node's own disk."""
SET_ASIDE = ".corrupt"
"""The suffix of a checkpoint whose files do not agree with its COMPLETE."""
_UNFINISHED = r"\..*|.*(\.tmp|\.part|\.corrupt|~)"


def complete(path: Path) -> Optional[Dict[str, Any]]:
    """The content of COMPLETE; None if the checkpoint in `path` is torn. Compares sizes and reads no other file."""
    document = read_json(path / COMPLETE)
    try:
        if document is None or document["schema"] != SCHEMA:
            return None
        sizes = {name: file["size"] for name, file in document["files"].items()}
        is_complete = all((path / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, KeyError, TypeError, ValueError, AttributeError):
        return None
    return document if is_complete else None


def steps(root: Path) -> List[int]:
    """The steps that have a directory, the newest first, complete or not."""
    numbers = (step_of(name) for name in _names(root))
    return sorted((step for step in numbers if step is not None), reverse=True)


def directory_of(root: Path, step: int) -> Path:
    return root / f"step-{step}"


def step_of(name: str) -> Optional[int]:
    """The step in a directory's name; None for other and unfinished directories."""
    match = re.fullmatch(_STEP, name)
    return int(match[1]) if match else None


def newest(root: Path, watch: Sequence[str] = ()) -> Optional[Path]:
    """The newest complete checkpoint in `root`; None if the directory has none or does not exist.

    `watch` has the patterns by which checkpoints were copied to `root`. They select more precisely than the top level.
    """
    if is_of_train(root):
        wholes = (directory_of(root, step) for step in steps(root))
        return next((path for path in wholes if complete(path) is not None), None)
    return next((path for path in ordered(root, watch) if checkpoint_layouts.is_complete(path, watch)), None)


def torn(root: Path, watch: Sequence[str] = ()) -> List[Path]:
    """The incomplete checkpoints that are newer than the newest complete one, the oldest first."""
    usable = newest(root, watch)
    if not is_of_train(root):
        entries = ordered(root, watch)
        later = entries[: entries.index(usable)] if usable in entries else entries
        return [path for path in reversed(later) if not (path.is_dir() and checkpoint_layouts.has_logs_alone(path))]
    least = step_of(usable.name) if usable is not None else None
    begun = [name for name in _names(root) if re.fullmatch(_OURS, name) and not name.endswith(SET_ASIDE)]
    steps_begun = sorted((step_of(name.partition(".")[0]) or 0, root / name) for name in begun)
    return [path for step, path in steps_begun if least is None or step > least]


def ordered(root: Path, watch: Sequence[str] = ()) -> List[Path]:
    """The checkpoints of other programs in `root`, complete or not, the newest first.

    Within a series the numbers in names decide, because copies have the times of copying. Between series the times
    decide.
    """
    entries = [
        path
        for path in sorted(set(_watched(root, watch)) or set(_entries(root)))
        if not (is_unfinished(path.name) or checkpoint_layouts.is_no_checkpoint(path.name, watch))
    ]
    series: Dict[str, List[Path]] = {}
    for path in entries:
        if not re.match(checkpoint_layouts.LAST, path.name):
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
    """The entries at the top, and the checkpoints of known frameworks in folders."""
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
    """Whether `last.ckpt` belongs to a numbered series such as `epoch=3-step=400.ckpt`: beside it, with its suffix."""
    matched, name = re.match(checkpoint_layouts.LAST, path.name), series[0].name
    if matched is None or checkpoint_layouts.is_secondary(name) or not any(map(str.isdigit, name)):
        return False
    return name.endswith(path.name[matched.end() :]) and any(path.parent == member.parent for member in series)


def _order(root: Path, path: Path) -> Tuple[float, ...]:
    return checkpoint_layouts.order_of(_relative(root, path))


def _order_of_last(root: Path, path: Path, other: Path) -> Tuple[float, ...]:
    """The order by the counters in its content, in the terms of the names beside it; without them after all others."""
    above = checkpoint_layouts.order_of(_relative(root, path.parent / "last"))
    counters = file_integrity.counters(path)
    step = counters.get("global_step", counters.get("iter_num", counters.get("step")))
    values = {"epoch": counters.get("epoch"), "step": step}
    needed = [values[term] for term in checkpoint_layouts.terms(other.name)]
    known = tuple(value for value in needed if value is not None)
    return (*above, *known) if known and len(known) == len(needed) else (*above, float("inf"))


def _watched(root: Path, watch: Sequence[str]) -> Iterator[Path]:
    """The copies of watched checkpoints, which are below `node-N` if another node has copied the same name before."""
    for pattern in map(_published_pattern, watch):
        for place in (pattern, f"node-*/{pattern}"):
            yield from (root / path for path, _ in tree.find(str(root), place, lambda _: None))


def _published_pattern(watch: str) -> str:
    """The pattern of the copies' names in the run directory: from the first wildcard on."""
    below = next((watch[len(prefix) :] for prefix in LOCAL if watch.startswith(prefix)), watch)
    return below[len(tree.beginning(below)) :].lstrip("/")


def changed_within(path: Path) -> int:
    """The newest time of `path` and its files, because a rewritten folder may keep the names of its files."""
    files = (changed(Path(folder, name)) for folder, name in checkpoint_layouts.inside(path))
    return max(changed(path), max(files, default=0))


def is_of_train(root: Path) -> bool:
    """Whether the checkpoints in `root` are those of `serried.train`. Other programs use the name `step-N` too."""
    content = _names(root)
    begun = [name for name in content if re.fullmatch(_OURS, name)]
    named = [name for name in begun if step_of(name) is not None]
    if any(not {COMPLETE, REPLICATED}.isdisjoint(_names(root / name)) for name in named):
        return True
    return bool(content) and begun == content and not named


def is_unfinished(name: str) -> bool:
    """Whether a name marks an unfinished or corrupt file, by the conventions of Serried and of most programs."""
    return re.fullmatch(_UNFINISHED, name) is not None


def changed(path: Path) -> int:
    """The modification time of `path` in nanoseconds, by the file server's clock; 0 if it does not exist."""
    try:
        return path.lstat().st_mtime_ns
    except OSError:
        return 0


def _names(root: Path) -> List[str]:
    try:
        return os.listdir(root)  # noqa: PTH208 - no stat
    except OSError:
        return []
