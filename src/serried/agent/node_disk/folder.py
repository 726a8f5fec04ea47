"""ONE folder for all that an attempt has on this node: its stop file, its data, what its ranks write there."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from pathlib import Path
from typing import Any, Dict, Optional

from serried.agent.attempt import Attempt
from serried.agent.node_disk import base_dirs, trash
from serried.fs import files, locks
from serried.protocol import names

OWNER, KEEP = "owner.json", "keep.json"
SCRATCH = "scratch"
TRIES = 20


class Folder:
    """Nobody else can guess its name; as long as this process lives nobody removes it."""

    def __init__(self, work: Attempt, node: object) -> None:
        name = f"{_prefix(work.process_tag)}{node}.{os.urandom(4).hex()}"
        self.no_disk = base_dirs.unset(work)
        """Why the disk that the profile names cannot be used; empty where it can, or names none."""
        for base in base_dirs.bases(work):
            self.has_disk = base.is_disk
            """Whether the site has said that this is a disk: worth to copy data to."""
            self.room: Optional[Path] = base.path / base_dirs.name()
            """What is shared with other jobs; None where nothing of the kind is ours alone."""
            if self._take(base, name):
                break
        else:
            self.room, self.has_disk, self._lock = None, False, -1
            self.path = base_dirs.last_resort()
            self.scratch.mkdir(mode=0o700)
        with contextlib.suppress(OSError):  # a disk may be full: then it stays for a day where we are killed
            (self.path / OWNER).write_text(files.text_of(owner(work, node)), encoding="utf-8")

    @property
    def scratch(self) -> Path:
        """For ranks to write in: SLURM_TMPDIR, where the site sets none."""
        return self.path / SCRATCH

    def _take(self, base: base_dirs.Base, name: str) -> bool:
        """Make it; again where another job removes the empty folders above it just now."""
        problem = ""
        for _ in range(TRIES):
            self._lock = -1
            try:
                self.path = base_dirs.sub(base_dirs.make(base), base_dirs.JOBS) / name
                self._lock = locks.hold(self.path, locks.ALONE)
                self.path.mkdir(mode=0o700)
                self.scratch.mkdir(mode=0o700)
            except OSError as error:
                if self._lock >= 0:
                    os.close(self._lock)
                problem = f"`{base.path}` cannot be used: {error.strerror or error}"
                if not isinstance(error, FileNotFoundError):
                    break
            else:
                self.no_disk = "" if base.is_disk else self.no_disk
                return True
        self.no_disk = problem if base.is_disk else self.no_disk
        return False

    def shared(self, name: str) -> Path:
        """A folder for all jobs of this user on this node. Raises OSError where it would not be ours alone."""
        if self.room is None:
            raise PermissionError(errno.EPERM, "not ours alone", base_dirs.name())
        return base_dirs.sub(self.room, name)

    def touch(self) -> None:
        """It is in use: what removes old files from /tmp must not take the lock from beside it."""
        for path in (locks.lock_of(self.path), self.path / OWNER):
            with contextlib.suppress(OSError):
                os.utime(path)

    def keep(self, seconds: float) -> None:
        """Leave it there that long after the end: there is something in it to be fetched."""
        with contextlib.suppress(OSError):  # a full disk must not end the job
            files.write_json(self.path / KEEP, {"until": time.time() + seconds})

    def let_go(self) -> None:
        """Whoever kept it has what was in it."""
        (self.path / KEEP).unlink(missing_ok=True)

    def remove(self, seconds: float) -> None:
        """All of it at once is nobody's; what does not go within `seconds` goes as the next job comes."""
        if not is_kept(self.path):
            trash.remove(self.room, self.path, time.monotonic() + seconds)
        if self._lock >= 0:
            if not self.path.exists():
                locks.lock_of(self.path).unlink(missing_ok=True)
            os.close(self._lock)
            self._lock = -1
        if self.room is not None:
            base_dirs.tidy(self.room)


def owner(work: Attempt, node: object) -> Dict[str, Any]:
    """Who has made it: enough to say later, on this node, whether that still lives."""
    return {
        "run": work.plan["run"],
        "element": work.element,
        "attempt": work.number,
        "node": node,
        "cluster": work.plan["site"]["name"],
        "scheduler": work.plan["site"]["scheduler"],
        "job": job(work),
        "is_queued": bool(work.dialect["state_query"]),
        "host": os.uname().nodename,
        "boot": boot(),
        "pid": os.getpid(),
        "began": time.time(),
    }


def job(work: Attempt) -> str:
    """As its scheduler writes it: from the claim, else from what the scheduler has set; "" where neither is seen."""
    claim = (files.read_json(work.directory.attempt(work.number).claim) or {}).get("job")
    if claim:
        return work.job_of(str(claim))
    return next(filter(None, map(os.environ.get, (*work.dialect["job_variables"][:1], names.JOB))), "")


def boot() -> str:
    """What differs after each start of this machine; "" where nothing tells."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def is_kept(path: Path) -> bool:
    kept = files.read_json(path / KEEP)
    return kept is not None and isinstance(kept.get("until"), (int, float)) and kept["until"] > time.time()


def is_of(path: Path, mark: str) -> bool:
    """Whether it is, by its name, of the attempt that carries `mark`."""
    return path.name.startswith(_prefix(mark))


def _prefix(mark: str) -> str:
    return f"{mark.replace('/', '.')}."
