"""The outputs of a run: in its working trees, or in the project itself."""

from __future__ import annotations

import itertools
import os
import re
import stat
from collections import deque
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

from serried.fs import tree as file_tree
from serried.fs.tree import states_in
from serried.plan import Plan
from serried.protocol import checkpoint_layouts, checkpoints, outputs
from serried.protocol.layout import RunDirectory
from serried.protocol.outputs import LOOKED, OutputFile, Outputs, Tally, Tree, is_noise
from serried.protocol.times import seconds_of
from serried.records.index import Selection
from serried.records.record import RecordUnreadable


def trees(where: RunDirectory, plan: Plan, task: int | None = None) -> list[Tree]:
    """The working trees of a run, or of one task; empty for a run in the project itself."""
    return outputs.trees(where, plan.to_json(), task)


def of(selection: Selection, most: int | None = LOOKED) -> Outputs:
    """The outputs of a run, those of an array's tasks together; empty if its plan cannot be read."""
    try:
        plan = selection.record.plan
    except RecordUnreadable:
        return Outputs()
    return outputs.describe(trees(selection.record.where, plan, selection.task), most)


class StrayCheckpoint(NamedTuple):
    """A complete checkpoint among the outputs. No attempt resumes from it, because it is not in `{checkpoints}`."""

    path: Path
    framework: str
    """A key of `checkpoint_layouts.OPTIONS`, or another name."""
    shown: str
    """Relative to the project's folder."""
    pattern: str
    """For `checkpoint.watch`: relative to the folder where ranks start; empty if it is outside of that."""


def stray_checkpoint(selection: Selection) -> StrayCheckpoint | None:
    """The newest of them."""
    try:
        plan = selection.record.plan
    except RecordUnreadable:
        return None
    found: dict[Path, StrayCheckpoint] = {}
    looked: set[Path] = set()
    for root, path in _written(selection, plan):
        names = path.split("/")
        if not set(names).isdisjoint(checkpoint_layouts.NEVER_FOLDERS):
            continue
        for depth in range(1, len(names) + 1):
            shown = "/".join(names[:depth])
            place = root / shown
            if place not in looked and (framework := checkpoint_layouts.framework_of(place)):
                pattern = os.path.relpath(re.sub(r"\d+", "*", shown), plan.source.workdir)
                pattern = "" if pattern.startswith(os.pardir) else pattern
                found[place] = StrayCheckpoint(place, framework, shown, pattern)
            looked.add(place)
            if place in found:
                break
    newest = sorted(found, key=checkpoints.changed_within, reverse=True)
    return next((found[path] for path in newest if checkpoint_layouts.is_complete(path)), None)


def _written(selection: Selection, plan: Plan) -> Iterator[tuple[Path, str]]:
    """The outputs, as the folder and the path below it: of a run in the project itself, those that are newer."""
    for tree in trees(selection.record.where, plan, selection.task):
        listed = itertools.islice(tree.walk(lambda _: None), LOOKED)
        yield from ((tree.path, path) for path, _, is_output in listed if is_output)
    project = Path(plan.source.directory)
    if plan.source.snapshot or project in (Path.home(), *Path.home().parents):
        return
    began, own = seconds_of(plan.created) or 0, {str(selection.record.where.path)}
    states = itertools.islice(file_tree.states(str(project), lambda _: None, own), LOOKED)
    yield from ((project, path) for path, state in states if stat.S_ISREG(state.st_mode) and state.st_mtime >= began)


def changed_in_place(project: Path, since: float, leave_out: Path) -> Outputs:
    """Files of the project that have changed `since`: the outputs of a run without a snapshot, as far as one can know.

    Empty for a home, where many programs write. At most `LOOKED` entries are read, those near the top first, without
    caches, virtual environments and the folder `leave_out`. No link is followed.
    """
    from serried.snapshot.listing import CACHES  # readers of other outputs do without the code that takes snapshots

    if project in (Path.home(), *Path.home().parents):
        return Outputs()
    tally, looked, is_all = Tally(), 0, True
    problems: list[OSError] = []
    pending = deque([""])
    while pending and is_all:
        folder = pending.popleft()
        entries = dict(states_in(str(project / folder), problems.append))
        if "pyvenv.cfg" in entries and folder:
            continue
        for name, state in entries.items():
            looked += 1
            if looked > LOOKED:
                is_all = False
                break
            path = f"{folder}/{name}" if folder else name
            if is_noise(name) or any(fnmatchcase(name, pattern) for pattern in CACHES):
                continue
            if stat.S_ISDIR(state.st_mode):
                if not _is(leave_out, state):
                    pending.append(path)
            elif stat.S_ISREG(state.st_mode) and min(state.st_mtime, state.st_ctime) >= since:
                tally.add(OutputFile(path, state.st_size, state.st_mtime_ns))
    return Outputs(tally.files, tally.bytes, newest=tuple(tally.newest), unread=len(problems), is_all=is_all)


def _is(folder: Path, state: os.stat_result) -> bool:
    try:
        return os.path.samestat(folder.stat(), state)
    except OSError:
        return False
