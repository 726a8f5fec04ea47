"""The outputs of a run: in its working trees, or in the project itself."""

from __future__ import annotations

import os
import stat
from collections import deque
from fnmatch import fnmatchcase
from pathlib import Path

from serried.base.tree import states_in
from serried.records.index import Selection
from serried.records.record import RecordUnreadable
from serried.schema import outputs
from serried.schema.layout import RunDirectory
from serried.schema.outputs import CACHES, LOOKED, OutputFile, Outputs, Place, Tally, Tree, is_noise
from serried.schema.plan import Plan


def trees(where: RunDirectory, plan: Plan, task: int | None = None) -> list[Tree]:
    """The working trees of a run, or of one task; empty for a run in the project itself."""
    return outputs.trees(where, plan, task)


def places(where: RunDirectory, plan: Plan, task: int | None = None) -> list[Place]:
    """Where outputs of a run, or of one task, are: its working trees, and models among its checkpoints."""
    return [*trees(where, plan, task), *outputs.final_models(where, plan, task)]


def of(selection: Selection, most: int | None = LOOKED) -> Outputs:
    """The outputs of a run, those of an array's tasks together; empty if its plan cannot be read."""
    try:
        plan = selection.record.plan
    except RecordUnreadable:
        return Outputs()
    return outputs.describe(places(selection.record.where, plan, selection.task), most)


def changed_in_place(project: Path, since: float, leave_out: Path) -> Outputs:
    """Files of the project that have changed `since`: the outputs of a run without a snapshot, as far as one can know.

    Empty for a home, where many programs write. At most `LOOKED` entries are read, those near the top first, without
    caches, virtual environments and the folder `leave_out`. No link is followed.
    """
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
