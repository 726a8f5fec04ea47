"""The processes of a run, remembered by what they are."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from place import command
from serried.base import linux, processes
from serried.base.processes import Process

LOOK_SECONDS = 0.1
"""Between two looks over all processes of this machine."""
Executions = Sequence[tuple[int, int, int]]
"""Attempt, rank and pid of each."""


class Seen(dict[str, Process]):
    """`submit`, `job.sh`, `head`, `finish`, `supervisor`, `node-PID`, `rank ATTEMPT RANK`: the newest of each name."""

    def look(self, run: str, local: Path, executions: Executions) -> None:
        for role, pid in AGENTS.of(run):
            is_new = self._see(f"{role}-{pid}" if role == "node" else role, pid)
            if role == "head" and is_new and (fields := linux.stat(pid)):  # later its parent may be another
                self._see("job.sh", int(fields[1]))
        for job in local.glob("jobs/*/job.json"):
            with contextlib.suppress(OSError, ValueError):
                self._see("supervisor", json.loads(job.read_text(encoding="utf-8"))["supervisor"]["pid"])
        for attempt, rank, pid in executions:
            self._see(f"rank {attempt} {rank}", pid)

    def finds_finish(self) -> bool:
        """Whether `finish` runs, or has run: a look at the children of job.sh alone, as it lives so briefly."""
        script = self.get("job.sh")
        if script is not None and "finish" not in self:
            for pid in _children(script.pid):
                if b"finish" in command(pid):
                    self._see("finish", pid)
        return "finish" in self

    def _see(self, name: str, pid: int) -> bool:
        """Whether it is one that was not there before."""
        found = processes.identify(pid)
        if found is None or pid <= 1 or self.get(name) == found:
            return False
        self[name] = found
        return True

    def alive(self, kind: str) -> list[str]:
        """The names of those of a kind that still run."""
        return sorted(name for name, process in self.items() if name.startswith(kind) and process.is_alive)

    def has(self, kind: str) -> bool:
        return bool(self.alive(kind))

    def has_lost(self, kind: str) -> bool:
        """Whether there was one, and it has ended."""
        return any(name.startswith(kind) for name in self) and not self.has(kind)

    def left_of(self, run: str) -> list[Process]:
        """What still runs of it: agents, ranks and what they started, job.sh and the supervisor."""
        found = list(processes.with_environment(lambda it: it.get("SERRIED_MARK", "").startswith(f"{run}/")))
        found += filter(None, (processes.identify(pid) for _, pid in AGENTS.of(run, seconds=0.0)))
        found += [self[name] for role in ("job.sh", "supervisor") for name in self.alive(role)]
        return sorted(set(found), key=lambda process: process.pid)


class Agents:
    """Which agents of which runs there are, by one look over all processes for all cases that run at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: list[tuple[str, str, int]] = []
        self._looked = 0.0

    def of(self, run: str, seconds: float = LOOK_SECONDS) -> list[tuple[str, int]]:
        """Role and pid of each; the look may have been so many seconds ago."""
        with self._lock:
            if time.monotonic() - self._looked > seconds:
                self._found = list(_agents())
                self._looked = time.monotonic()
            return [(role, pid) for it, role, pid in self._found if it == run]


AGENTS = Agents()


def _agents() -> Iterator[tuple[str, str, int]]:
    """Run, role and pid."""
    for pid in linux.other_pids():
        words = command(pid)
        archive = next((word for word in words if word.endswith(b"/agent.pyz")), None)
        if archive is not None and b"srun" not in words[0]:
            run = archive.split(b"/")[-2].decode(errors="replace")
            yield from ((run, role, pid) for role in ("head", "node", "finish") if role.encode() in words)


def _children(pid: int) -> list[int]:
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()]
    except OSError:
        return []


def describe(process: Process) -> str:
    return f"{process.pid} {b' '.join(command(process.pid))[:200].decode(errors='replace')}"
