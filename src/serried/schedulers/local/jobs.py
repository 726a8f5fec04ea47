"""The queue of this machine, without a daemon: jobs, the slots that they share, and their processes.

Each job has a folder, jobs/N, in the queue's private folder (`root`):

job.json     the job and its supervisor; the job exists once this file does
state.json   states of the job and its tasks, written by the supervisor alone
cancel, cancel-I   requests to cancel the job, or its task I

slots.json, beside jobs/, is the table of slots. It changes only under a lock, which is safe because the folder is on
this machine's own disk. Each reader drops the claims of dead processes.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import signal
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from serried.base import NamedTuple, files, linux, processes, shell
from serried.base.errors import UsageError
from serried.base.processes import Process
from serried.schedulers.interface import Job
from serried.schema import codec, names

DIRECTORY = "SERRIED_LOCAL_DIR"
"""The folder of the queue, if not the usual one."""
TEMPORARY = Path("/tmp")  # noqa: S108 - what is there is checked
SUPERVISOR_GONE = "SupervisorGone"
KEEP_SECONDS = 7 * 24 * 3600.0
"""How long the folder of an ended job stays."""
WHOLE = "-"
"""The key in state.json of a job that is not an array."""
SWEEP_SECONDS = 5.0
"""Patience with a killed process. One in an uninterruptible wait never ends."""


def root() -> Path:
    """The folder of this user's queue, on this machine's own disk; created if necessary.

    Raises UsageError if another user owns the folder or can write to it.
    """
    given = os.environ.get(DIRECTORY)
    path = Path(given) if given else TEMPORARY / f"serried-{os.getuid()}" / "local"
    try:
        (files.make_directory if given else files.make_ours_alone)(path.parent)
        return files.make_ours_alone(path)
    except OSError as error:
        problem = f"cannot be used: {(error.strerror or str(error)).lower()}"
        if error.errno in (errno.EPERM, errno.ENOTDIR):
            problem = "is not a folder that only you can write to"
        raise UsageError(
            f"`{error.filename or path}` {problem}", hint=f"remove it, or set {DIRECTORY} to another folder"
        ) from None


class Standing(NamedTuple):
    """The state of a job or task, as its supervisor last wrote it."""

    state: str = names.PENDING
    reason: str = ""
    exit_code: int | None = None
    signal: int | None = None
    started: float | None = None
    ended: float | None = None
    restarts: int = 0
    slots: tuple[str, ...] = ()
    child: Process | None = None
    """job.sh, while it runs."""

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Standing:
        child = Process(**value["child"]) if value["child"] else None
        return cls(**{**value, "slots": tuple(value["slots"]), "child": child})


class JobFolder:
    def __init__(self, root: Path, number: int | str) -> None:
        self.path = root / "jobs" / str(number)
        self.number = int(number)

    @property
    def about(self) -> dict[str, Any] | None:
        """job.json; None for a job that does not exist."""
        return files.read_json(self.path / "job.json")

    def commit(self, name: str, tasks: Sequence[str], *, hears_signals: bool = True) -> None:
        about = {
            "schema": 1,
            "name": name,
            "supervisor": processes.myself()._asdict(),
            "hears_signals": hears_signals,
            "host": socket.gethostname(),
            "tasks": list(tasks),
            "created": time.time(),
        }
        files.write_json(self.path / "job.json", about)

    def write(self, standings: dict[str, Standing]) -> None:
        files.write_json(self.path / "state.json", codec.to_json(standings))

    def standings(self) -> dict[str, Standing]:
        written = files.read_json(self.path / "state.json") or {}
        return {key: Standing.from_json(value) for key, value in written.items()}

    def is_cancelled(self, key: str) -> bool:
        return any((self.path / name).exists() for name in ("cancel", cancel_name(key)))

    def mark(self, key: str) -> str:
        """The value of `names.LOCAL_JOB` in the environment of every process of this job or task."""
        return str(self.path) if key == WHOLE else f"{self.path}_{key}"

    def jobs(self) -> Iterator[Job]:
        """The job, or each of its tasks. Without a supervisor, job.sh decides: running if alive, else lost."""
        about = self.about
        if about is None:
            return
        # In this order: a supervisor that is gone by now has already written its last states.
        is_attended = Process(**about["supervisor"]).is_alive
        standings = self.standings()
        for key in about.get("tasks", ()):
            standing = standings.get(key, Standing())
            if not is_attended and standing.state not in names.ENDED:
                is_running = standing.child is not None and standing.child.is_alive
                state = standing.state if is_running else names.NODE_FAIL
                standing = standing._replace(state=state, reason=SUPERVISOR_GONE)
            yield Job(
                id=str(self.number),
                task=task_of(key),
                state=standing.state,
                raw=standing.state,
                reason=standing.reason,
                exit_code=standing.exit_code,
                signal=standing.signal,
                ended=standing.ended,
                nodes=(about["host"],) if standing.started else (),
                restarts=standing.restarts,
            )


def cancel_name(key: str) -> str:
    return "cancel" if key == WHOLE else f"cancel-{key}"


def task_of(key: str) -> int | None:
    return None if key == WHOLE else int(key)


def folders(root: Path) -> list[JobFolder]:
    """Every job's folder, oldest first."""
    try:
        numbers = sorted(int(path.name) for path in (root / "jobs").iterdir() if path.name.isdigit())
    except FileNotFoundError:
        return []
    return [JobFolder(root, number) for number in numbers]


def new_folder(root: Path) -> JobFolder:
    """A folder with the next id. Folders of jobs that ended long ago are deleted first.

    The first id on a machine is taken from the clock: records outlive a cleared /tmp, so ids must not repeat.
    """
    horizon = time.time() - KEEP_SECONDS
    for old in folders(root):
        with contextlib.suppress(OSError):
            if old.path.stat().st_mtime < horizon and all(job.state in names.ENDED for job in old.jobs()):
                shutil.rmtree(old.path)
    files.make_directory(root / "jobs")
    known = folders(root)
    number = max(int(time.time()) % 10**8, known[-1].number + 1 if known else 1)
    while True:
        folder = JobFolder(root, number)
        with contextlib.suppress(FileExistsError):
            folder.path.mkdir(mode=files.PRIVATE_DIRECTORY)
            return folder
        number += 1


class SlotClaim(NamedTuple):
    """A job or task that waits for slots, or holds some."""

    job: int
    task: int | None
    pool: str
    """`gpu` or `cpu`."""
    need: int
    since: float
    """Start of the wait: the queue's order."""
    holders: tuple[Process, ...]
    """The claim counts while one of these lives: the supervisor, and job.sh once it runs."""
    slots: tuple[str, ...] = ()

    @property
    def key(self) -> tuple[int, int | None]:
        return self.job, self.task

    @property
    def rank(self) -> tuple[float, int, int]:
        return self.since, self.job, -1 if self.task is None else self.task

    @classmethod
    def from_json(cls, row: dict[str, Any]) -> SlotClaim:
        holders = tuple(Process(**holder) for holder in row["holders"])
        return cls(**{**row, "holders": holders, "slots": tuple(row["slots"])})


@dataclass
class SlotTable:
    waiting: list[SlotClaim] = field(default_factory=list)
    taken: list[SlotClaim] = field(default_factory=list)

    @classmethod
    def read(cls, root: Path) -> SlotTable:
        written = files.read_json(root / "slots.json") or {}
        return cls(*([*map(SlotClaim.from_json, written.get(name, ()))] for name in ("waiting", "taken")))

    def to_json(self) -> dict[str, Any]:
        return {"waiting": codec.to_json(tuple(self.waiting)), "taken": codec.to_json(tuple(self.taken))}

    def drop_dead(self, is_alive: Callable[[Process], bool]) -> list[SlotClaim]:
        """Remove claims whose holders are all dead; return those that held slots."""
        dead = [claim for claim in self.taken if not any(map(is_alive, claim.holders))]
        for claims in (self.waiting, self.taken):
            claims[:] = [claim for claim in claims if any(map(is_alive, claim.holders))]
        return dead

    def request(self, claim: SlotClaim, available: Sequence[str]) -> tuple[str, ...] | int:
        """The slots if it is this claim's turn and enough are free; else the number of claims before it.

        First come, first served: no job overtakes a bigger one that waits for more slots.
        """
        before = sum(1 for other in self.waiting if other.pool == claim.pool and other.rank < claim.rank)
        free = self.free(claim.pool, available)
        if before or len(free) < claim.need:
            if claim not in self.waiting:
                self.waiting.append(claim)
            return before
        self.waiting = [other for other in self.waiting if other.key != claim.key]
        return self._take(claim, free)

    def seize(self, claim: SlotClaim, preferred: Sequence[str]) -> tuple[str, ...]:
        """Slots at once, shared with their holders if too few are free; of equals, the first in `preferred`."""
        load = Counter(slot for other in self.taken if other.pool == claim.pool for slot in other.slots)
        return self._take(claim, sorted(preferred, key=lambda slot: load[slot]))

    def _take(self, claim: SlotClaim, slots: Sequence[str]) -> tuple[str, ...]:
        self.taken.append(claim._replace(slots=tuple(slots[: claim.need])))
        return self.taken[-1].slots

    def free(self, pool: str, available: Sequence[str]) -> list[str]:
        busy = {slot for claim in self.taken if claim.pool == pool for slot in claim.slots}
        return [slot for slot in available if slot not in busy]

    def hold(self, key: tuple[int, int | None], holder: Process) -> None:
        """Let the claim also count while `holder` lives."""
        self.taken = [
            claim._replace(holders=(*claim.holders, holder)) if claim.key == key else claim for claim in self.taken
        ]

    def release(self, key: tuple[int, int | None]) -> None:
        self.waiting = [claim for claim in self.waiting if claim.key != key]
        self.taken = [claim for claim in self.taken if claim.key != key]


@contextmanager
def locked_slots(root: Path) -> Iterator[SlotTable]:
    """The table without the claims of the dead; changes within the context are written at its end."""
    lock = os.open(root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        table = SlotTable.read(root)
        before = SlotTable([*table.waiting], [*table.taken])
        for claim in table.drop_dead(lambda holder: holder.is_alive):
            # The supervisor died first, and its job's processes may still use the slots.
            key = WHOLE if claim.task is None else str(claim.task)
            sweep(None, JobFolder(root, claim.job).mark(key))
        yield table
        if table != before:
            files.write_json(root / "slots.json", table.to_json())
    finally:
        os.close(lock)


def members(session: int | None, mark: str | None) -> list[Process]:
    """Every process of a job: in the session that its job.sh leads, or with `mark` in its environment.

    `session` is None long after the end of job.sh: the number may belong to another session by then. Without /proc,
    members are the process group of job.sh and its descendants.
    """
    if not processes.HAS_PROC:
        pids = _by_ps(session)
    else:
        pids = [
            pid
            for pid in linux.other_pids()
            if (fields := linux.stat(pid))
            and (fields[3] == str(session) or (mark and processes.environment(pid).get(names.LOCAL_JOB) == mark))
        ]
    return [process for pid in pids if (process := processes.identify(pid)) is not None]


def _by_ps(group: int | None) -> list[int]:
    result = shell.run(("ps", "-A", "-o", "pid=", "-o", "ppid=", "-o", "pgid="), timeout=30)
    rows = [tuple(map(int, line.split())) for line in result.stdout.splitlines() if line.strip()]
    pids = {pid for pid, _, pgid in rows if group in (pgid, pid)}
    while more := {pid for pid, parent, _ in rows if parent in pids} - pids:
        pids |= more
    return sorted(pids)


def signal_all(session: int | None, mark: str, number: int) -> int:
    """Send a signal to every process of a job, parents first; return their count.

    A parent that loses a child before the signal may report that as a failure. Pids do not give the order: they wrap.
    """
    family = sorted(members(session, mark), key=lambda process: (len(process.started), process.started))
    for process in family:
        process.send(number)
    return len(family)


def sweep(session: int | None, mark: str) -> None:
    """Kill the remaining processes of a job, and those that they start meanwhile."""
    deadline = time.monotonic() + SWEEP_SECONDS
    while signal_all(session, mark, signal.SIGKILL) and time.monotonic() < deadline:
        time.sleep(0.02)
