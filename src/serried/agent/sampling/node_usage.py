"""CPU, memory, disks and networks of a node, from /proc, /sys and the job's control group.

Disks and networks are those of the whole node, also of other jobs there.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, Dict, Iterable, List, Mapping, Optional

from serried.process import cgroups, linux
from serried.protocol.samples import JOB, NODE

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
        self._group = cgroups.limited_group(self._machine["total"], f"{linux.PROC}/self/cgroup", group_root)
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
