"""Identifies processes by pid and start time, never by name, and finds them by their environment.

Where there is no /proc, `ps` has the start times, and no environments.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from serried.base import NamedTuple, linux, shell

HAS_PROC = Path(linux.PROC, "self", "stat").exists()


def user() -> str:
    """The name of this process's user as schedulers print it, whatever USER says; the id of a user without a name."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


class Process(NamedTuple):
    pid: int
    started: str
    """Clock ticks after boot, or the date from `ps`: distinguishes a process from a later one with its pid."""

    @property
    def is_alive(self) -> bool:
        return identify(self.pid) == self

    def send(self, number: int) -> None:
        """Send a signal, unless the process has ended and another one may have its pid."""
        if self.is_alive:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self.pid, number)


def identify(pid: int) -> Process | None:
    """The process that has this pid now; None if there is none, or only a zombie."""
    if HAS_PROC:
        fields = linux.stat(pid)
        return Process(pid, fields[19]) if fields and fields[0] not in "ZX" else None
    result = shell.run(("ps", "-o", "stat=", "-o", "lstart=", "-p", str(pid)), timeout=30)
    state, _, started = result.stdout.strip().partition(" ")
    return Process(pid, started.strip()) if started and not state.startswith("Z") else None


def age() -> float:
    """Seconds since this process started, by a clock of hundredths; 0 without /proc."""
    ticks = linux.started(os.getpid())
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - int(ticks) / os.sysconf("SC_CLK_TCK")) if ticks else 0.0


def myself() -> Process:
    me = identify(os.getpid())
    if me is None:
        raise RuntimeError("this process is not in the process table")
    return me


def environment(pid: int) -> dict[str, str]:
    """The variables that a process was started with; empty if it has ended or belongs to another user."""
    pairs = (os.fsdecode(entry).partition("=") for entry in linux.environ(pid).split(b"\0"))
    return {name: value for name, _, value in pairs if name}


def with_environment(matches: Callable[[Mapping[str, str]], bool]) -> Iterator[Process]:
    """The processes, without this one, whose environment matches."""
    for pid in linux.other_pids():
        process = identify(pid)
        if process is not None and matches(environment(pid)):
            yield process
