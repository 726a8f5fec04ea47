"""CPU, memory and I/O of each rank: of its process, of the processes that it started, and of its process group.

Only processes that are new since the last sample are looked at, because a large node has thousands.
"""

from __future__ import annotations

import os
import time
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Set, Tuple

from serried.process import linux

FORGET_SECONDS = 60.0
"""How long a process that belongs to no rank is ignored. Its pid may then be that of another."""
STATE, PARENT, GROUP, USER_TICKS, SYSTEM_TICKS, STARTED = 0, 1, 2, 11, 12, 19
"""Positions in `linux.stat`."""

Usage = Dict[int, Dict[str, Any]]
"""By rank: `cpu` in cores, `memory` in bytes, `read` and `write` in bytes per second."""


class _RankProcess:
    """A process of a rank, with its counters at the last sample."""

    def __init__(self, rank: int, fields: List[str]) -> None:
        self.rank = rank
        self.started = fields[STARTED]
        self.ticks: Optional[int] = None
        self.moved: Optional[Tuple[int, int]] = None


class _Increase(NamedTuple):
    rank: int
    ticks: int
    moved: Optional[Tuple[int, int]]


class RankProcesses:
    def __init__(self) -> None:
        self._ranks: Dict[int, int] = {}
        self._known: Dict[int, _RankProcess] = {}
        self._foreign: Set[int] = set()
        self._forget_at = 0.0
        self._at: Optional[float] = None
        """When the last sample was taken, on the monotonic clock, and in ticks since boot."""
        self._tick = 0.0
        self._page = os.sysconf("SC_PAGE_SIZE")
        self._frequency = os.sysconf("SC_CLK_TCK")

    def set_ranks(self, ranks: Mapping[int, int]) -> None:
        """`ranks` by pid. Processes of other ranks no longer count."""
        self._ranks = dict(ranks)
        self._known = {pid: process for pid, process in self._known.items() if process.rank in ranks.values()}
        self._foreign.clear()

    def sample(self, now: float) -> Usage:
        """The usage since the last sample, at `now` on the monotonic clock. CPU and I/O need two samples."""
        fields = self._find(now)
        increases = [self._increase(pid, fields[pid]) for pid in self._known]
        seconds = None if self._at is None else now - self._at
        self._at, self._tick = now, _boot_seconds() * self._frequency
        usage: Usage = {rank: {} for rank in set(self._ranks.values())}
        memory = self._memory([pid for pid in self._known if fields[pid][STATE] not in "ZX"])
        for rank in {process.rank for process in self._known.values()}:
            if rank in memory:
                usage[rank]["memory"] = memory[rank]
            if seconds:
                own = [increase for increase in increases if increase.rank == rank]
                usage[rank].update(self._rates(own, seconds))
        return usage

    def _rates(self, increases: List[_Increase], seconds: float) -> Dict[str, float]:
        rates = {"cpu": sum(increase.ticks for increase in increases) / self._frequency / seconds}
        moved = [increase.moved for increase in increases if increase.moved is not None]
        if moved:
            rates["read"], rates["write"] = (sum(amounts) / seconds for amounts in zip(*moved))  # noqa: B905
        return rates

    def _find(self, now: float) -> Dict[int, List[str]]:
        """Bring `_known` up to date. Returns the `linux.stat` of each."""
        present = linux.pids()
        if now >= self._forget_at:
            self._foreign.clear()
            self._forget_at = now + FORGET_SECONDS
        fields = {
            pid: found
            for pid in present
            if pid not in self._foreign
            for found in [linux.stat(pid)]
            if len(found) > STARTED
        }
        self._foreign.intersection_update(present)
        for pid, process in list(self._known.items()):
            if pid not in fields or fields[pid][STARTED] != process.started:
                del self._known[pid]
        strangers = [pid for pid in fields if pid not in self._known]
        while True:
            owned = {pid: rank for pid in strangers for rank in [self._rank_of(pid, fields[pid])] if rank is not None}
            if not owned:
                self._foreign.update(strangers)
                return fields
            self._known.update((pid, _RankProcess(rank, fields[pid])) for pid, rank in owned.items())
            strangers = [pid for pid in strangers if pid not in owned]

    def _rank_of(self, pid: int, fields: List[str]) -> Optional[int]:
        parent = self._known.get(int(fields[PARENT]))
        if pid in self._ranks:
            return self._ranks[pid]
        return parent.rank if parent else self._ranks.get(int(fields[GROUP]))

    def _increase(self, pid: int, fields: List[str]) -> _Increase:
        process = self._known[pid]
        ticks, moved = int(fields[USER_TICKS]) + int(fields[SYSTEM_TICKS]), _moved(pid)
        is_new = self._at is not None and int(process.started) > self._tick
        before = process.ticks if process.ticks is not None else 0 if is_new else ticks
        moved_before = process.moved or ((0, 0) if is_new else moved)
        process.ticks, process.moved = ticks, moved or process.moved
        increase = None
        if moved is not None and moved_before is not None:
            increase = (max(0, moved[0] - moved_before[0]), max(0, moved[1] - moved_before[1]))
        return _Increase(process.rank, max(0, ticks - before), increase)

    def _memory(self, pids: List[int]) -> Dict[int, int]:
        """Private pages of all processes of a rank, and the shared pages of the one that has most of them."""
        private: Dict[int, int] = {}
        shared: Dict[int, int] = {}
        for pid in pids:
            rank, pages = self._known[pid].rank, linux.read(pid, "statm").split()
            if len(pages) > 2:
                resident, common = int(pages[1]), int(pages[2])
                private[rank] = private.get(rank, 0) + max(0, resident - common)
                shared[rank] = max(shared.get(rank, 0), common)
        return {rank: (pages + shared[rank]) * self._page for rank, pages in private.items()}


def _moved(pid: int) -> Optional[Tuple[int, int]]:
    """The bytes that a process has read from storage and written; None if the kernel does not tell."""
    lines = (line.split() for line in linux.read(pid, "io").splitlines())
    amounts = {fields[0]: int(fields[1]) for fields in lines if len(fields) == 2}
    if b"read_bytes:" not in amounts:
        return None
    return amounts[b"read_bytes:"], amounts.get(b"write_bytes:", 0)


def _boot_seconds() -> float:
    """Seconds since boot, as processes' starts are counted."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else 0.0
