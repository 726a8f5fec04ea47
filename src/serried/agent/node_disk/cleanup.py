"""Deletes files of ended jobs on this node: only this user's, and only if their job is known to be dead.

The role `tidy` does so beside an agent, or in a small job of its own.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import Any, Dict, List, Optional

from serried.agent import system
from serried.agent.attempt import Attempt, run_directory, set_umask
from serried.agent.node_disk import folder, shared_cache
from serried.base import NamedTuple, files, locks
from serried.schema import names, successor_commands
from serried.schema.events import JournalEvent

NICE = 19
UNKNOWN_SECONDS = 86400.0
"""From its beginning, a folder whose job may be alive stays so long."""
CLEAR_SECONDS = 5.0
FREE_SECONDS = 120.0
DRY = "--dry-run"


class StaleFolder(NamedTuple):
    name: str
    stays: str
    """Why it is not deleted; empty if it may be."""


def start(attempt: Attempt) -> None:
    """Start a process that deletes what dead jobs have left, if there may be any. It does not slow the ranks."""
    if not any(has_any(room) for room in folder.rooms(attempt)):
        return
    import signal

    null = os.open(os.devnull, os.O_RDWR)
    command, environment = system.agent_command("tidy"), system.environment()
    child = system.spawn(command, environment, (null, null, 2), directory="/", parent_death=signal.SIGKILL)
    system.HELPER_PIDS.add(child.pid)
    os.close(null)


def free() -> None:
    """Delete what dead jobs have left, now and in this process, because the disk is full."""
    sweep(_load_attempt(), time.monotonic() + FREE_SECONDS)


def main(arguments: List[str]) -> int:
    """`tidy` beside an agent, `tidy JOURNAL [--dry-run] TOKEN` in a job of its own. The environment names the run."""
    with contextlib.suppress(OSError):
        os.nice(NICE)
    attempt = _load_attempt()
    set_umask(attempt)
    if not arguments:
        sweep(attempt)
        return 0
    journal, token = files.Journal(Path(arguments[0])), arguments[-1]
    journal.append({"token": token, "event": JournalEvent.BEGUN})
    stale = sweep(attempt, dry=DRY in arguments, alone=True)
    journal.append({"token": token, "event": JournalEvent.ENDED, "found": [list(entry) for entry in stale]})
    return 0


def _load_attempt() -> Attempt:
    task: Optional[str] = os.environ.get(names.TASK)
    number = int(os.environ.get(names.ATTEMPT) or 0)
    return Attempt.load(run_directory(), int(task) if task else None, number)


def clear(attempt: Attempt) -> None:
    """The attempt has ended: delete what its agents have left here, for CLEAR_SECONDS."""
    until = time.monotonic() + CLEAR_SECONDS
    for room in folder.rooms(attempt):
        for path in locks.things(room / folder.JOBS):
            if folder.is_of(path, attempt.process_tag):
                _remove(room, path, until)
        folder.empty_trash(room, until, lambda path: folder.is_of(path, attempt.process_tag))
        _tidy_shared(room, attempt, until)
        folder.remove_empty_room(room)


def sweep(
    attempt: Attempt, until: Optional[float] = None, *, dry: bool = False, alone: bool = False
) -> List[StaleFolder]:
    """Delete what dead jobs have left, and return what was there. With `dry`, delete nothing.

    `alone`: no process of this job uses shared files on this node.
    """
    judge = _Judge(attempt)
    stale: List[StaleFolder] = []
    for room in list(folder.rooms(attempt)):
        here = [StaleFolder(name, "") for name in _names(room / folder.TRASH)]
        for path in locks.things(room / folder.JOBS):
            here.append(StaleFolder(path.name, judge.why_kept(path)))
            if not (here[-1].stays or dry):
                _remove(room, path, until)
        if not dry:
            folder.empty_trash(room, until)
            for number, entry in enumerate(here):
                paths = (room / name / entry.name for name in (folder.JOBS, folder.TRASH))
                if not entry.stays and any(map(os.path.lexists, paths)):
                    here[number] = entry._replace(stays="some of its files could not be deleted")
        shared = _tidy_shared(room, attempt, until, dry=dry, alone=alone)
        stale += [*here, *(StaleFolder(f"{path.parent.name}/{path.name}", "") for path in shared)]
        if not dry:
            folder.remove_empty_room(room)
    return stale


def _tidy_shared(
    room: Path, attempt: Attempt, until: Optional[float], *, dry: bool = False, alone: bool = True
) -> List[Path]:
    """The paths that were deleted, or with `dry` would be. A process that copies images or data tidies its kind."""
    images, data = room / folder.IMAGES, room / folder.DATA
    paths: List[Path] = []
    if alone or not (attempt.plan.container and attempt.plan.container.local):
        paths += shared_cache.tidy_images(images, dry=dry)
        folder.remove_empty(images)
    if alone or not attempt.plan.staged_items:
        paths += shared_cache.tidy_data(data, attempt.plan.site.data_cache_bytes, until, dry=dry)
        folder.remove_empty(data)
    return paths


def has_any(room: Path) -> bool:
    directories = (room / name for name in (folder.JOBS, folder.IMAGES, folder.DATA))
    return bool(_names(room / folder.TRASH)) or any(
        not locks.is_used(path) for directory in directories for path in locks.things(directory)
    )


def _names(directory: Path) -> List[str]:
    try:
        return sorted(os.listdir(directory))  # noqa: PTH208 - names will do
    except OSError:
        return []


def _remove(room: Path, path: Path, until: Optional[float]) -> None:
    def remove(path: Path) -> None:
        if not folder.is_kept(path):
            folder.discard(room, path, until)
        if path.exists():
            raise OSError("kept")

    locks.remove_unused(path, remove)


class _Judge:
    """Decides whether a job may still want its folder. Queries the scheduler once for each job."""

    def __init__(self, attempt: Attempt) -> None:
        self._site = attempt.plan.site
        self._job = folder.job(attempt)
        self._states: Dict[str, Optional[str]] = {}

    def why_kept(self, path: Path) -> str:
        """Empty for a folder that may be deleted."""
        if locks.is_used(path):
            return "in use"
        if not path.exists():
            return ""
        if (path / folder.KEEP).exists():
            return "kept to be fetched" if folder.is_kept(path) else ""
        owner = files.read_json(path / folder.OWNER)
        if owner is None:  # its agent was killed at once, or its ranks have deleted the file
            return "" if time.time() - path.lstat().st_mtime > UNKNOWN_SECONDS else "its owner is unknown"
        return self._why_alive(owner)

    def _why_alive(self, owner: Dict[str, Any]) -> str:
        if owner.get("host") != os.uname().nodename:
            return "it belongs to another machine that uses the same disk"
        job = str(owner.get("job") or "")
        # A job without a scheduler ends with its agent; and this job's other folders are of its earlier attempts.
        if owner.get("boot") != folder.boot() or owner.get("is_queued") is False or (job and job == self._job):
            return ""
        state = None
        if job and (owner.get("cluster"), owner.get("scheduler")) == (self._site.name, self._site.scheduler):
            if job not in self._states:
                self._states[job] = system.query(successor_commands.query(self._site.dialect.state_query, job))
            state = self._states[job]
        if state is None:
            is_old = time.time() - float(owner.get("began", 0)) > UNKNOWN_SECONDS
            return "" if is_old else "the state of its job is unknown"
        return "" if successor_commands.is_ending(state) else f"job {job} is {state}"
