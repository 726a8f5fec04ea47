"""Knowing processes again: by pid and start time, never by name; and by marks in their environment."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")


@dataclass(frozen=True)
class Process:
    pid: int
    started: int
    """Clock ticks after boot (proc(5), field 22 of stat): tells a process from a later one with its pid."""

    @property
    def is_running(self) -> bool:
        return identify(self.pid) == self

    def kill(self) -> None:
        """End it at once, unless it is gone and its pid belongs to somebody else."""
        self._signal(signal.SIGKILL)

    def terminate(self) -> None:
        """Ask it to end, with the same care."""
        self._signal(signal.SIGTERM)

    def _signal(self, number: signal.Signals) -> None:
        if self.is_running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


def identify(pid: int) -> Process | None:
    """The process that has this pid now; None when there is none, or only its zombie."""
    try:
        stat = (PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The name, in parentheses, may hold spaces and parentheses itself.
    fields = stat.rpartition(")")[2].split()
    if fields[0] in "ZX":
        return None
    return Process(pid, int(fields[19]))


def with_environment(matches: Callable[[Mapping[str, str]], bool]) -> Iterator[Process]:
    """Every process, but this one, whose environment (as it was started) matches and that we may look into."""
    for entry in PROC.iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        process = identify(int(entry.name))
        if process is not None and matches(environment(process.pid)):
            yield process


def environment(pid: int) -> dict[str, str]:
    """The environment a process was started with; empty when it is gone or another user's."""
    try:
        raw = (PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return {}
    pairs = (os.fsdecode(entry).partition("=") for entry in raw.split(b"\0"))
    return {name: value for name, _, value in pairs if name}
