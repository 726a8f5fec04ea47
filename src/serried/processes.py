"""Processes known again: by pid and start time, never by name; and found by what is in their environment.

Linux tells by /proc; elsewhere `ps` does, which tells nothing of environments.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from serried import shell
from serried.process import environ

PROC = Path("/proc")
HAS_PROC = (PROC / "self" / "stat").exists()


@dataclass(frozen=True)
class Process:
    pid: int
    started: str
    """Clock ticks after boot, or `ps`'s date: tells a process from a later one with its pid."""

    @property
    def is_alive(self) -> bool:
        return identify(self.pid) == self

    def send(self, number: int) -> None:
        """Send it a signal, unless it is gone and its pid belongs to somebody else."""
        if self.is_alive:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self.pid, number)


def identify(pid: int) -> Process | None:
    """The process that has this pid now; None when there is none, or only its zombie."""
    if HAS_PROC:
        fields = stat(pid)
        return Process(pid, fields[19]) if fields and fields[0] not in "ZX" else None
    result = shell.run(("ps", "-o", "stat=", "-o", "lstart=", "-p", str(pid)), timeout=30)
    state, _, started = result.stdout.strip().partition(" ")
    return Process(pid, started.strip()) if started and not state.startswith("Z") else None


def myself() -> Process:
    me = identify(os.getpid())
    if me is None:
        raise RuntimeError("a process that runs has no identity")
    return me


def stat(pid: int) -> list[str]:
    """Fields 3 and on of /proc/PID/stat; the second, the name, may hold spaces and parentheses."""
    try:
        return environ.stat(pid)
    except OSError:
        return []


def pids() -> list[int]:
    """Of all processes that /proc has, but this one."""
    return [int(name) for name in os.listdir(PROC) if name.isdigit() and int(name) != os.getpid()]  # noqa: PTH208 - thousands


def environment(pid: int) -> dict[str, str]:
    """The environment a process was started with; empty when it is gone or another user's."""
    try:
        raw = environ.environ(pid)
    except OSError:
        return {}
    pairs = (os.fsdecode(entry).partition("=") for entry in raw.split(b"\0"))
    return {name: value for name, _, value in pairs if name}


def with_environment(matches: Callable[[Mapping[str, str]], bool]) -> Iterator[Process]:
    """Every process, but this one, whose environment matches and that we may look into."""
    for pid in pids():
        process = identify(pid)
        if process is not None and matches(environment(pid)):
            yield process
