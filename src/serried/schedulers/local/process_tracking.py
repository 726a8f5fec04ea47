"""Processes of a local job: found by its session, and by a mark in their environment.

Without /proc they are the process group of job.sh and what descends from it.
"""

from __future__ import annotations

import signal
import time
from pathlib import Path

from serried import processes, shell
from serried.processes import Process
from serried.protocol import names

NO_MARK = "-"
"""Which no process carries."""
SWEEP_SECONDS = 5.0
"""How long a process that was killed may take to go; one in an uninterruptible wait never does."""


def mark_of(root: Path, job: int, element: int | None) -> str:
    """What `names.LOCAL_JOB` is in the environment of every process of this job or element."""
    return f"{root}/jobs/{job}" + ("" if element is None else f"_{element}")


def members(session: int | None, mark: str) -> list[Process]:
    """Every process of the job whose job.sh leads `session` or whose environment carries `mark`.

    None for the session once job.sh is gone for long: its number may be another's by now.
    """
    found = _by_proc(session, mark) if processes.HAS_PROC else _by_ps(session)
    return [process for pid in found if (process := processes.identify(pid)) is not None]


def of_session(session: int) -> list[Process]:
    """Those that are still in the session that job.sh led."""
    return members(session, NO_MARK)


def signal_all(session: int | None, mark: str, number: int) -> int:
    """Send a signal to every process of a job, parents first; how many there were.

    Not by pid, for those begin anew: who loses a child before it has heard why may call that a failure.
    """
    found = sorted(members(session, mark), key=lambda process: (len(process.started), process.started))
    for process in found:
        process.send(number)
    return len(found)


def sweep(session: int | None, mark: str) -> int:
    """Kill what a job has left behind, what it starts meanwhile included; how many there were."""
    count, deadline = 0, time.monotonic() + SWEEP_SECONDS
    while (found := signal_all(session, mark, signal.SIGKILL)) and time.monotonic() < deadline:
        count = max(count, found)
        time.sleep(0.02)
    return count


def _by_proc(session: int | None, mark: str) -> list[int]:
    return [
        pid
        for pid in processes.pids()
        if (fields := processes.stat(pid))
        and (fields[3] == str(session) or processes.environment(pid).get(names.LOCAL_JOB) == mark)
    ]


def _by_ps(group: int | None) -> list[int]:
    result = shell.run(("ps", "-A", "-o", "pid=", "-o", "ppid=", "-o", "pgid="), timeout=30)
    rows = [tuple(map(int, line.split())) for line in result.stdout.splitlines() if line.strip()]
    found = {pid for pid, _, pgid in rows if group in (pgid, pid)}
    while more := {pid for pid, parent, _ in rows if parent in found} - found:
        found |= more
    return sorted(found)
