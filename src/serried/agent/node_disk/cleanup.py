"""The role `tidy`: deletes folders of ended jobs on this node, beside an agent or in a small job of its own."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import List, Optional

from serried.agent import system
from serried.agent.attempt import Attempt, run_directory, set_umask
from serried.agent.node_disk import base_dirs, stale_dirs
from serried.fs import files
from serried.protocol import names
from serried.protocol.events import JournalEvent

NICE = 19
FREE_SECONDS = 120.0
DRY = "--dry-run"


def start(work: Attempt) -> None:
    """Start a process that removes what has been left here, if anything has: in no way of the ranks."""
    if not any(stale_dirs.is_any(own) for own in base_dirs.rooms(work)):
        return
    import signal

    null = os.open(os.devnull, os.O_RDWR)
    child = system.spawn(
        system.agent_command("tidy"),
        system.environment(),
        (null, null, 2),
        directory="/",
        parent_death=signal.SIGKILL,
    )
    system.HELPER_PIDS.add(child.pid)
    os.close(null)


def free() -> None:
    """The same here and now, for who lacks room."""
    stale_dirs.sweep(_work(), time.monotonic() + FREE_SECONDS)


def main(arguments: List[str]) -> int:
    """`tidy` beside an agent, `tidy JOURNAL [--dry-run] TOKEN` as an errand. The environment says the rest."""
    with contextlib.suppress(OSError):
        os.nice(NICE)
    work = _work()
    set_umask(work)
    if not arguments:
        stale_dirs.sweep(work)
        return 0
    journal, token = files.Journal(Path(arguments[0])), arguments[-1]
    journal.append({"token": token, "event": JournalEvent.BEGUN})
    found = stale_dirs.sweep(work, dry=DRY in arguments, alone=True)
    journal.append({"token": token, "event": JournalEvent.ENDED, "found": [list(each) for each in found]})
    return 0


def _work() -> Attempt:
    element: Optional[str] = os.environ.get(names.ELEMENT)
    number = int(os.environ.get(names.ATTEMPT) or 0)
    return Attempt.load(run_directory(), int(element) if element else None, number)
