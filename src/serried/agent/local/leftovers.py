"""What killed agents have left on this node: of our own dead jobs alone, and only where it is known that they are."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

from serried.agent import system
from serried.agent.containers import imagecopy
from serried.agent.launch import agent_command
from serried.agent.local import folder, gone, locks, room
from serried.agent.work import Work, make_umask, run_directory
from serried.contract import asking, files, names

UNKNOWN_SECONDS = 86400.0
"""How long what may still be somebody's stays, from its beginning."""
CLEAR_SECONDS = 5.0
ANSWER_SECONDS = 20.0
NICE = 19


def look(work: Work) -> None:
    """Start a process that removes what has been left here, if anything has: in no way of the ranks."""
    if not any(_is_work(own) for own in room.rooms(work)):
        return
    import signal

    null = os.open(os.devnull, os.O_RDWR)
    words = [system.encode(word) for word in agent_command("tidy")]
    child = system.spawn(words, dict(os.environb), b"/", (null, null, 2), parent_death=signal.SIGKILL)
    system.OWN.add(child.pid)
    os.close(null)


def _is_work(own: Path) -> bool:
    with contextlib.suppress(OSError):
        if os.listdir(own / room.GONE):  # noqa: PTH208 - names will do
            return True
    shared = (own / name for name in (room.JOBS, imagecopy.IMAGES, room.DATA))
    return any(not locks.is_used(path) for folder in shared for path in locks.things(folder))


def clear(work: Work) -> None:
    """The attempt is over: remove what its agents have left here, as far as that goes quickly."""
    until = time.monotonic() + CLEAR_SECONDS
    for own in room.rooms(work):
        for path in locks.things(own / room.JOBS):
            if folder.is_of(path, work.mark):
                _remove(own, path, until)
        room.tidy(own)


def sweep(work: Work, until: Optional[float] = None) -> None:
    """Remove what dead jobs have left, and what is nobody's."""
    from serried.agent.staging import cache

    judge = _Judge(work)
    for own in list(room.rooms(work)):
        for path in locks.things(own / room.JOBS):
            if not locks.is_used(path) and judge.is_dead(path):
                _remove(own, path, until)
        gone.finish(own, until)
        if not (work.plan.get("container") or {}).get("local"):  # else who copies ours looks after the others
            imagecopy.tidy(own / imagecopy.IMAGES)
            room.remove_empty(own / imagecopy.IMAGES)
        if not (work.plan.get("data") or {}).get("stage"):
            cache.tidy(own / room.DATA, work.plan["site"].get("cache_bytes", 0))
            room.remove_empty(own / room.DATA)
        room.tidy(own)


def _remove(own: Path, path: Path, until: Optional[float]) -> None:
    def remove(path: Path) -> None:
        if not folder.is_kept(path):
            gone.remove(own, path, until)
        if path.exists():
            raise OSError("kept")

    locks.remove_unused(path, remove)


class _Judge:
    """Of folders whose agent is dead: whether their jobs are. One question for each job."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._site = work.plan["site"]
        self._job = folder.job(work)
        self._words: Dict[str, Optional[str]] = {}

    def is_dead(self, path: Path) -> bool:
        if not path.exists() or (path / folder.KEEP).exists():  # who lets it stay has ended, and said until when
            return True
        owner = files.read_json(path / folder.OWNER)
        if owner is None:  # it was killed within a moment, or its ranks have removed it
            return time.time() - path.lstat().st_mtime > UNKNOWN_SECONDS
        return self._is_over(owner)

    def _is_over(self, owner: Dict[str, Any]) -> bool:
        if owner.get("host") != os.uname().nodename:
            return False  # a disk that several machines see: the lock of another tells nothing
        if owner.get("boot") != folder.boot():
            return True
        if owner.get("scheduler") == "local" or (owner.get("job") and owner.get("job") == self._job):
            return True  # its agent was all of it, or its job is ours, and this an earlier attempt
        word = self._ask(owner)
        if word is None:
            return time.time() - float(owner.get("began", 0)) > UNKNOWN_SECONDS
        return word in asking.OVER

    def _ask(self, owner: Dict[str, Any]) -> Optional[str]:
        """The scheduler's word for its job; None where it gives none."""
        job = str(owner.get("job", ""))
        if not job or (owner.get("cluster"), owner.get("scheduler")) != (self._site["name"], self._site["scheduler"]):
            return None
        if job not in self._words:
            self._words[job] = _answer(asking.words(str(self._site["scheduler"]), job))
        return self._words[job]


def _answer(argv: Sequence[str]) -> Optional[str]:
    import subprocess

    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=ANSWER_SECONDS,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return None if done.returncode else done.stdout.decode("utf-8", "replace").strip()


def main(arguments: List[str]) -> int:  # noqa: ARG001 - the table's shape
    """`tidy`, by an agent, whose environment says the rest."""
    with contextlib.suppress(OSError):
        os.nice(NICE)
    element = os.environ.get(names.ELEMENT)
    work = Work.load(run_directory(), int(element) if element else None, int(os.environ.get(names.ATTEMPT) or 0))
    make_umask(work)
    sweep(work)
    return 0
