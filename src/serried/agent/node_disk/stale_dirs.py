"""What killed agents have left on this node: of our own dead jobs alone, and only where it is known that they are."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional

from serried.agent import system
from serried.agent.attempt import Attempt
from serried.agent.node_disk import base_dirs, folder, shared_cache, trash
from serried.fs import files, locks
from serried.protocol import job_state_query

UNKNOWN_SECONDS = 86400.0
"""How long what may still be somebody's stays, from its beginning."""
CLEAR_SECONDS = 5.0


class StaleFolder(NamedTuple):
    name: str
    stays: str
    """Why; empty for what may go."""


def clear(work: Attempt) -> None:
    """The attempt is over: remove what its agents have left here, as far as that goes quickly."""
    until = time.monotonic() + CLEAR_SECONDS
    for own in base_dirs.rooms(work):
        for path in locks.things(own / base_dirs.JOBS):
            if folder.is_of(path, work.process_tag):
                _remove(own, path, until)
        trash.finish(own, until, lambda path: folder.is_of(path, work.process_tag))
        _tidy_shared(own, work, until)
        base_dirs.tidy(own)


def sweep(work: Attempt, until: Optional[float] = None, *, dry: bool = False, alone: bool = False) -> List[StaleFolder]:
    """Remove what dead jobs have left, and what is nobody's; what was found. `alone`: what is shared has no user here.

    With `dry` nothing is removed.
    """
    judge = _Judge(work)
    found: List[StaleFolder] = []
    for own in list(base_dirs.rooms(work)):
        here = [StaleFolder(name, "") for name in _names(own / base_dirs.GONE)]
        for path in locks.things(own / base_dirs.JOBS):
            here.append(judge.judge(path))
            if not (here[-1].stays or dry):
                _remove(own, path, until)
        if not dry:
            trash.finish(own, until)
            here = [_as_it_went(own, each) for each in here]
        others = _tidy_shared(own, work, until, dry=dry, alone=alone)
        found += [*here, *(StaleFolder(f"{path.parent.name}/{path.name}", "") for path in others)]
        if not dry:
            base_dirs.tidy(own)
    return found


def _as_it_went(own: Path, found: StaleFolder) -> StaleFolder:
    is_there = any(os.path.lexists(own / folder / found.name) for folder in (base_dirs.JOBS, base_dirs.GONE))
    return StaleFolder(found.name, "some of it could not be removed") if is_there and not found.stays else found


def _tidy_shared(
    own: Path, work: Attempt, until: Optional[float], *, dry: bool = False, alone: bool = True
) -> List[Path]:
    """What went of it, or would with `dry`. Whoever brings an image or data looks after the others of them itself."""
    found: List[Path] = []
    if alone or not (work.plan.get("container") or {}).get("local"):
        found += shared_cache.tidy_images(own / base_dirs.IMAGES, dry=dry)
        base_dirs.remove_empty(own / base_dirs.IMAGES)
    if alone or not (work.plan.get("data") or {}).get("stage"):
        found += shared_cache.tidy_data(own / base_dirs.DATA, work.plan["site"].get("cache_bytes", 0), until, dry=dry)
        base_dirs.remove_empty(own / base_dirs.DATA)
    return found


def is_any(own: Path) -> bool:
    """Whether there is something for `sweep` to look at."""
    folders = (own / name for name in (base_dirs.JOBS, base_dirs.IMAGES, base_dirs.DATA))
    return bool(_names(own / base_dirs.GONE)) or any(
        not locks.is_used(path) for folder in folders for path in locks.things(folder)
    )


def _names(folder: Path) -> List[str]:
    try:
        return sorted(os.listdir(folder))  # noqa: PTH208 - names will do
    except OSError:
        return []


def _remove(own: Path, path: Path, until: Optional[float]) -> None:
    def remove(path: Path) -> None:
        if not folder.is_kept(path):
            trash.remove(own, path, until)
        if path.exists():
            raise OSError("kept")

    locks.remove_unused(path, remove)


class _Judge:
    """Of folders in `jobs`: whether anybody may still want them. One question to the scheduler for each job."""

    def __init__(self, work: Attempt) -> None:
        self._work = work
        self._site = work.plan["site"]
        self._job = folder.job(work)
        self._words: Dict[str, Optional[str]] = {}

    def judge(self, path: Path) -> StaleFolder:
        return StaleFolder(path.name, "in use" if locks.is_used(path) else self._stays(path))

    def _stays(self, path: Path) -> str:
        if not path.exists():
            return ""
        if (path / folder.KEEP).exists():  # who lets it stay has said until when
            return "kept to be fetched" if folder.is_kept(path) else ""
        owner = files.read_json(path / folder.OWNER)
        if owner is None:  # it was killed within a moment, or its ranks have removed it
            return "" if time.time() - path.lstat().st_mtime > UNKNOWN_SECONDS else "it does not say whose it is"
        return self._is_alive(owner)

    def _is_alive(self, owner: Dict[str, Any]) -> str:
        """Why its job may be; empty where it is dead."""
        if owner.get("host") != os.uname().nodename:
            return "of another machine, on a disk that several see"
        if owner.get("boot") != folder.boot():
            return ""
        if owner.get("is_queued") is False or (owner.get("job") and owner.get("job") == self._job):
            return ""  # its agent was all of it, or its job is ours, and this an earlier attempt
        word = self._ask(owner)
        if word is None:
            is_old = time.time() - float(owner.get("began", 0)) > UNKNOWN_SECONDS
            return "" if is_old else "nobody says whether its job is alive"
        return "" if word in job_state_query.OVER else f"job {owner['job']} is {word}"

    def _ask(self, owner: Dict[str, Any]) -> Optional[str]:
        """The scheduler's word for its job; None where it gives none."""
        job = str(owner.get("job", ""))
        if not job or (owner.get("cluster"), owner.get("scheduler")) != (self._site["name"], self._site["scheduler"]):
            return None
        if job not in self._words:
            self._words[job] = system.query(job_state_query.words(self._work.dialect["state_query"], job))
        return self._words[job]
