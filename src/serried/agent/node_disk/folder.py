"""The folder of one attempt on a node: its stop file, its data, the files that its ranks write there.

It is below `serried-<uid>`, this user's room, on the node's disk or else where temporary files go. Folders of no
attempt are renamed into the room's trash first: what is half deleted has no owner there, and no job takes it for whole.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Optional

from serried.agent.attempt import Attempt
from serried.base import NamedTuple, files, locks, tree
from serried.schema import names

MOUNTS = "/proc/self/mountinfo"
UNMOUNT = (("fusermount3", "-u", "-z"), ("fusermount", "-u", "-z"), ("umount", "-l"))
"""All are lazy: the mount disappears at once, even if a process uses it, or if its server is dead or hangs."""
UNMOUNT_SECONDS = 5.0
"""For each of these programs."""


def unmount(point: Path, until: Optional[float] = None) -> bool:
    """Unmount `point` before `until` on the monotonic clock. True if nothing is mounted there now.

    `point` itself is never accessed: the server of its file system may not answer.
    """
    import subprocess  # takes milliseconds, and few processes need it

    path = _real(point)
    for words in UNMOUNT:
        if path not in _points():
            return True
        if until is not None and time.monotonic() > until:
            return False
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            null = subprocess.DEVNULL
            command = [*words, path]
            subprocess.run(command, stdin=null, stdout=null, stderr=null, timeout=UNMOUNT_SECONDS, check=False)
    return path not in _points()


def unmount_below(folder: Path, until: Optional[float] = None) -> None:
    """Unmount everything below `folder`, so that its deletion does not reach into images that a dead agent mounted."""
    for point in sorted(below(folder), reverse=True):
        unmount(Path(point), until)


def below(folder: Path) -> List[str]:
    inside = _real(folder) + "/"
    return [point for point in _points() if point.startswith(inside)]


def _real(path: Path) -> str:
    return f"{os.path.realpath(path.parent).rstrip('/')}/{path.name}"


def _points() -> List[str]:
    try:
        with open(MOUNTS, encoding="utf-8", errors="surrogateescape") as file:  # noqa: PTH123 - a bare string
            points = [line.split(" ")[4] for line in file]
    except (OSError, IndexError):
        return []
    return [re.sub(r"\\([0-7]{3})", lambda digits: chr(int(digits.group(1), 8)), point) for point in points]


JOBS, TRASH, DATA, IMAGES = "jobs", "gone", "data", "images"
"""Folders of a room."""
EVERYWHERE = "/tmp"  # noqa: S108 - a room has a mode that keeps others out
VARIABLE = r"\$\w+|\$\{[^}]*\}?"
OWNER, KEEP = "owner.json", "keep.json"
SCRATCH = "scratch"
TRIES = 20


class Base(NamedTuple):
    path: Path
    is_disk: bool
    """The site names it as a disk: data may be copied there."""


def _bases(attempt: Attempt) -> List[Base]:
    """Best first: the disk of the job, the disk of the profile, and two that every node has."""
    profile = "" if unset_variable(attempt) else os.path.expandvars(_local_disk(attempt))
    candidates = [(os.environ.get("SLURM_TMPDIR", ""), True), (profile, True)]
    candidates += [(os.environ.get("TMPDIR", ""), False), (EVERYWHERE, False)]
    bases: List[Base] = []
    for path, is_disk in candidates:
        if path.startswith("/") and all(str(base.path) != os.path.normpath(path) for base in bases):
            bases.append(Base(Path(os.path.normpath(path)), is_disk))
    return bases


def unset_variable(attempt: Attempt) -> str:
    """Why the profile's disk cannot be used: a variable in its path is not set on this node. Empty if all are."""
    variable = re.search(VARIABLE, os.path.expandvars(_local_disk(attempt)))
    return f"`{variable.group()}` is not set there" if variable else ""


def _local_disk(attempt: Attempt) -> str:
    return str(attempt.plan.site.local_disk or "")


def _room_name() -> str:
    return f"serried-{os.getuid()}"


def rooms(attempt: Attempt) -> Iterator[Path]:
    """The rooms of this user on this node, from this job or an earlier one."""
    for base in _bases(attempt):
        room = base.path / _room_name()
        if files.is_ours_alone(room):
            yield room


def remove_empty(*folders: Path) -> None:
    """Delete those that are empty. A job that needs one creates it again."""
    for folder in folders:
        with contextlib.suppress(OSError):
            folder.rmdir()


def remove_empty_room(room: Path) -> None:
    remove_empty(room / JOBS, room / TRASH, room)


class Folder:
    """Its name cannot be guessed, and no other process deletes it while this one lives."""

    def __init__(self, attempt: Attempt, node: object) -> None:
        name = f"{_prefix(attempt.process_tag)}{node}.{os.urandom(4).hex()}"
        self.no_disk = unset_variable(attempt)
        """Why the profile's disk cannot be used; empty if it can, or if the profile names none."""
        for base in _bases(attempt):
            self.has_disk = base.is_disk
            """The folder is on a disk that the site names: data may be copied there."""
            self.room: Optional[Path] = base.path / _room_name()
            """None if other users have taken the names of all rooms."""
            if self._take(base, name):
                break
        else:
            import tempfile

            self.room, self.has_disk, self._lock = None, False, -1
            self.path = Path(tempfile.mkdtemp(prefix=f"{_room_name()}-"))
            self.scratch.mkdir(mode=0o700)
        with contextlib.suppress(OSError):  # on a full disk: if this process is killed, the folder stays for a day
            (self.path / OWNER).write_text(files.text_of(owner(attempt, node)), encoding="utf-8")

    @property
    def scratch(self) -> Path:
        """The SLURM_TMPDIR of ranks, if the site sets none."""
        return self.path / SCRATCH

    def _take(self, base: Base, name: str) -> bool:
        """Create the folder. Tries again if another job deletes the empty folders above it meanwhile."""
        problem = ""
        for _ in range(TRIES):
            self._lock = -1
            try:
                if base.is_disk:
                    base.path.mkdir(mode=0o700, parents=True, exist_ok=True)
                self.path = files.make_ours_alone(files.make_ours_alone(base.path / _room_name()) / JOBS) / name
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

    def touch(self) -> None:
        """Keep programs that delete old files in /tmp from deleting the lock."""
        for path in (locks.lock_of(self.path), self.path / OWNER):
            with contextlib.suppress(OSError):
                os.utime(path)

    def keep(self, seconds: float) -> None:
        """Keep the folder so long after the end: it has files to be fetched."""
        with contextlib.suppress(OSError):  # a full disk must not end the job
            files.write_json(self.path / KEEP, {"until": time.time() + seconds})

    def let_go(self) -> None:
        (self.path / KEEP).unlink(missing_ok=True)

    def remove(self, seconds: float) -> None:
        """Move the folder to the trash, and delete files for `seconds`. The next job deletes the rest."""
        if not is_kept(self.path):
            discard(self.room, self.path, time.monotonic() + seconds)
        if self._lock >= 0:
            if not self.path.exists():
                locks.lock_of(self.path).unlink(missing_ok=True)
            os.close(self._lock)
            self._lock = -1
        if self.room is not None:
            remove_empty_room(self.room)


def owner(attempt: Attempt, node: object) -> Dict[str, Any]:
    """The facts by which a later job on this node can tell whether the folder's job is alive."""
    return {
        "run": attempt.plan.run,
        "task": attempt.task,
        "attempt": attempt.number,
        "node": node,
        "cluster": attempt.plan.site.name,
        "scheduler": attempt.plan.site.scheduler,
        "job": job(attempt),
        "is_queued": bool(attempt.plan.site.dialect.state_query),
        "host": os.uname().nodename,
        "boot": boot(),
        "pid": os.getpid(),
        "began": time.time(),
    }


def job(attempt: Attempt) -> str:
    """The scheduler's id of the job: from the claim, else from the scheduler's variables, else empty."""
    claim = (files.read_json(attempt.directory.attempt(attempt.number).claim) or {}).get("job")
    if claim:
        return attempt.job_of(str(claim))
    return next(filter(None, map(os.environ.get, (*attempt.plan.site.dialect.job_variables[:1], names.JOB))), "")


def boot() -> str:
    """An id that changes with each start of this machine; empty if the system has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def is_kept(path: Path) -> bool:
    kept = files.read_json(path / KEEP)
    return kept is not None and isinstance(kept.get("until"), (int, float)) and kept["until"] > time.time()


def is_of(path: Path, tag: str) -> bool:
    """The folder's name is that of the attempt with this process tag."""
    return path.name.startswith(_prefix(tag))


def _prefix(tag: str) -> str:
    return f"{tag.replace('/', '.')}."


def discard(room: Optional[Path], path: Path, until: Optional[float]) -> None:
    """Unmount what is mounted below `path`, move `path` to the trash of `room`, and delete files until `until`."""
    unmount_below(path, until)
    with contextlib.suppress(OSError):
        if room is not None:
            path.chmod(0o700)  # a folder that a rank has made read-only cannot be moved
            path = path.rename(files.make_ours_alone(room / TRASH) / path.name)
    tree.remove(path, until)


def empty_trash(room: Path, until: Optional[float], is_wanted: Callable[[Path], bool] = lambda _: True) -> None:
    """Delete what others had no time for. Two processes may do so at once."""
    with contextlib.suppress(OSError):
        for entry in sorted(os.scandir(files.make_ours_alone(room / TRASH)), key=lambda entry: entry.name):
            path = Path(entry.path)
            if not is_wanted(path):
                continue
            if entry.is_dir(follow_symlinks=False):
                unmount_below(path, until)
                tree.remove(path, until)
            else:
                path.unlink(missing_ok=True)
