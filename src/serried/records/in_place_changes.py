"""What changed in a project while a run was in it: all that is known of the outputs of a run without a snapshot."""

from __future__ import annotations

import os
import stat
from collections import deque
from fnmatch import fnmatchcase
from pathlib import Path

from serried.protocol.outputs import LOOKED, Output, Outputs, Tally, is_noise, states_in
from serried.snapshot.listing import CACHES


def changed(project: Path, since: float, leave_out: Path) -> Outputs:
    """Files of the project that have changed `since`, by whomever; none of a home, where many programs write.

    Looked at are `LOOKED` entries, those near the top first. Caches, virtual environments and the folder `leave_out`
    are none of them, and no link is followed.
    """
    if project in (Path.home(), *Path.home().parents):
        return Outputs()
    tally, looked, is_all = Tally(), 0, True
    problems: list[OSError] = []
    pending = deque([""])
    while pending and is_all:
        folder = pending.popleft()
        entries = dict(states_in(project / folder, problems.append))
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
                tally.add(Output(path, state.st_size, state.st_mtime_ns))
    return Outputs(tally.files, tally.bytes, newest=tuple(tally.newest), unread=len(problems), is_all=is_all)


def _is(folder: Path, state: os.stat_result) -> bool:
    try:
        return os.path.samestat(folder.stat(), state)
    except OSError:
        return False
