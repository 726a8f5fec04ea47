"""The use of CPUs, memory, disks and networks, of the node and of each rank, from /proc, /sys and the job's cgroup.

Disks and networks are those of the whole node, also of other jobs there. A rank is its process, the processes that it
started, and its process group.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Optional, Set, Tuple

from serried.base import linux
from serried.schema.live import JOB, NODE

SYSTEM = Path("/sys")
SECTOR = 512
"""Bytes in a sector of /proc/diskstats, whatever the disk has."""
WORD = 4
"""Bytes in a word of an InfiniBand port's counters."""
INFINIBAND = "32"
"""The kernel's type of a network interface over InfiniBand. Its port counts that traffic too."""

Numbers = Dict[str, float]


class Rates:
    """Rates per second of counters that only grow."""

    def __init__(self) -> None:
        self._before: Mapping[str, float] = {}
        self._at = 0.0

    def since(self, counters: Mapping[str, float], now: float) -> Numbers:
        """The rates since the last call; none of a counter that is new or began again."""
        before, seconds = self._before, now - self._at
        self._before, self._at = dict(counters), now
        if seconds <= 0:
            return {}
        return {
            name: (value - before[name]) / seconds
            for name, value in counters.items()
            if name in before and value >= before[name]
        }


class NodeUsage:
    """Measures the node on which this process runs; `folder` is on its local disk."""

    def __init__(self, folder: str, *, system: Path = SYSTEM, group_root: Path = linux.CGROUPS) -> None:
        self._folder = folder
        self._system = system
        self._rates = Rates()
        self._cpus = sorted(os.sched_getaffinity(0)) if sys.platform == "linux" else list(range(os.cpu_count() or 1))
        self._machine = _memory(_proc("meminfo"))
        self._group = linux.limited_group(self._machine["total"], f"{linux.PROC}/self/cgroup", group_root)
        disks = (system / "block").glob("*/device")
        self._disks = {path.parent.name for path in disks}
        self._interfaces = _interfaces(system / "class" / "net")
        self._ports = sorted((system / "class" / "infiniband").glob("*/ports/*/counters"))

    @property
    def description(self) -> Dict[str, Any]:
        """The node's fields in the first line of a file of samples."""
        limit = self._group.limit if self._group else self._machine["total"]
        return {"cpus": len(self._cpus), **({"memory": limit} if limit else {}), "memory_scope": self.scope}

    @property
    def scope(self) -> str:
        return JOB if self._group else NODE

    def sample(self, now: float) -> Numbers:
        """The node's quantities at `now` on the monotonic clock, without those that cannot be measured."""
        usage: Dict[str, Optional[float]] = {"memory": self._used_memory()}
        usage.update(self._rates.since(self._counters(), now))
        usage["disk_free"] = self._free_space()
        return {name: value for name, value in usage.items() if value is not None}

    def _used_memory(self) -> Optional[float]:
        if self._group:
            return self._group.working_set()
        memory = _memory(_proc("meminfo"))
        return memory["total"] - memory["available"] if memory["total"] else None

    def _free_space(self) -> Optional[float]:
        try:
            state = os.statvfs(self._folder)
        except OSError:
            return None
        return state.f_bavail * state.f_frsize

    def _counters(self) -> Numbers:
        counters = {
            "cpu": self._group.cpu_seconds() if self._group else None,
            **disk_bytes(_proc("diskstats"), self._disks),
            **self._network_bytes(),
        }
        if counters["cpu"] is None:
            counters["cpu"] = busy_seconds(_proc("stat"), self._cpus)
        return {name: value for name, value in counters.items() if value is not None}

    def _network_bytes(self) -> Numbers:
        received = sent = 0.0
        text = _proc("net/dev")
        for line in text.splitlines():
            name, colon, fields = line.partition(":")
            numbers = fields.split()
            if colon and name.strip() in self._interfaces and len(numbers) > 8:
                received, sent = received + float(numbers[0]), sent + float(numbers[8])
        for port in self._ports:
            received += WORD * _number(port / "port_rcv_data")
            sent += WORD * _number(port / "port_xmit_data")
        return {"net_in": received, "net_out": sent} if text else {}


def disk_bytes(text: str, disks: Iterable[str]) -> Numbers:
    """Bytes that `disks` have read and written since boot, from /proc/diskstats; none without disks."""
    lines = [fields for fields in map(str.split, text.splitlines()) if len(fields) > 9 and fields[2] in set(disks)]
    if not lines:
        return {}
    read, written = (SECTOR * sum(float(fields[place]) for fields in lines) for place in (5, 9))
    return {"disk_read": read, "disk_write": written}


def busy_seconds(text: str, cpus: Iterable[int]) -> Optional[float]:
    """Seconds for which `cpus` were busy since boot, by the lines `cpu7 …` of /proc/stat."""
    wanted = {f"cpu{cpu}" for cpu in cpus}
    ticks: List[float] = []
    for line in text.splitlines():
        name, _, rest = line.partition(" ")
        if name in wanted:
            user, nice, system, _idle, _iowait, interrupts, soft, *_ = [*map(float, rest.split()), *[0.0] * 7]
            ticks.append(user + nice + system + interrupts + soft)
    return sum(ticks) / os.sysconf("SC_CLK_TCK") if ticks else None


def _interfaces(folder: Path) -> List[str]:
    """The network cards; all interfaces except the loopback where there is none, as in a container."""
    every = [path for path in folder.glob("*") if path.name != "lo"]
    cards = [path for path in every if (path / "device").exists()]
    return [path.name for path in cards or every if linux.text_of(path / "type").strip() != INFINIBAND]


def _memory(text: str) -> Dict[str, int]:
    """`total` and `available` of /proc/meminfo, in bytes; 0 if unknown."""
    kilobytes = {
        fields[0]: int(fields[1])
        for fields in map(str.split, text.splitlines())
        if len(fields) > 1 and fields[1].isdecimal()
    }
    return {"total": kilobytes.get("MemTotal:", 0) * 1024, "available": kilobytes.get("MemAvailable:", 0) * 1024}


def _proc(name: str) -> str:
    return linux.text_of(Path(linux.PROC) / name)


def _number(path: Path) -> float:
    text = linux.text_of(path).strip()
    return float(text) if text.isdecimal() else 0.0


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
    """Looks only at processes that are new since the last sample: a large node has thousands."""

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
