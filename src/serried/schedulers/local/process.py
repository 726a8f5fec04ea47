"""Processes of a local job: known again by pid and start time, found by session and by a mark in their environment.

Linux tells by /proc; elsewhere `ps` does, and a job is job.sh's process group and what descends from it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from serried import shell
from serried.contract import names

PROC = Path("/proc")
HAS_PROC = (PROC / "self" / "stat").exists()

SWEEP_SECONDS = 5.0
"""How long a process that was killed may take to go; one in an uninterruptible wait never does."""


@dataclass(frozen=True)
class Identity:
    pid: int
    started: str
    """Clock ticks after boot, or `ps`'s date: tells a process from a later one with its pid."""

    @property
    def is_alive(self) -> bool:
        return identify(self.pid) == self

    def send(self, number: int) -> None:
        if self.is_alive:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self.pid, number)


def identify(pid: int) -> Identity | None:
    """The process that has this pid now; None when there is none, or only its zombie."""
    if HAS_PROC:
        fields = _stat(pid)
        return Identity(pid, fields[19]) if fields and fields[0] not in "ZX" else None
    result = shell.run(("ps", "-o", "stat=", "-o", "lstart=", "-p", str(pid)), timeout=30)
    state, _, started = result.stdout.strip().partition(" ")
    return Identity(pid, started.strip()) if started and not state.startswith("Z") else None


def myself() -> Identity:
    me = identify(os.getpid())
    if me is None:
        raise RuntimeError("a process that runs has no identity")
    return me


def mark_of(root: Path, job: int, element: int | None) -> str:
    """NAME=value, in the environment of every process of this job or element."""
    return f"{names.LOCAL_JOB}={root}/jobs/{job}" + ("" if element is None else f"_{element}")


def members(session: int | None, mark: str) -> list[Identity]:
    """Every process of the job whose job.sh leads `session` or whose environment carries `mark`.

    None for the session once job.sh is gone for long: its number may be another's by now.
    """
    found = _by_proc(session, mark.encode("utf-8", "surrogateescape")) if HAS_PROC else _by_ps(session)
    return [identity for pid in found if pid != os.getpid() and (identity := identify(pid)) is not None]


def signal_all(session: int | None, mark: str, number: int) -> int:
    """Send a signal to every process of a job; how many there were."""
    found = members(session, mark)
    for identity in found:
        identity.send(number)
    return len(found)


def sweep(session: int | None, mark: str) -> int:
    """Kill what a job has left behind, what it starts meanwhile included; how many there were."""
    count, deadline = 0, time.monotonic() + SWEEP_SECONDS
    while (found := signal_all(session, mark, signal.SIGKILL)) and time.monotonic() < deadline:
        count = max(count, found)
        time.sleep(0.02)
    return count


def _stat(pid: int) -> list[str]:
    """Fields 3 and on of /proc/PID/stat; the second, the name, may hold spaces and parentheses."""
    try:
        return (PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


def _by_proc(session: int | None, mark: bytes) -> list[int]:
    found = []
    for entry in os.scandir(PROC):
        if not entry.name.isdigit():
            continue
        fields = _stat(int(entry.name))
        if fields and (fields[3] == str(session) or mark in _environment(entry.name)):
            found.append(int(entry.name))
    return found


def _environment(pid: str) -> list[bytes]:
    try:
        return (PROC / pid / "environ").read_bytes().split(b"\0")
    except OSError:
        return []


def _by_ps(group: int | None) -> list[int]:
    result = shell.run(("ps", "-A", "-o", "pid=", "-o", "ppid=", "-o", "pgid="), timeout=30)
    rows = [tuple(map(int, line.split())) for line in result.stdout.splitlines() if line.strip()]
    found = {pid for pid, _, pgid in rows if group in (pgid, pid)}
    while more := {pid for pid, parent, _ in rows if parent in found} - found:
        found |= more
    return sorted(found)
