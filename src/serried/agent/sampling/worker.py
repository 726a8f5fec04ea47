"""The role `sample`: a process beside a node's agent that measures every few seconds. Nothing of a run depends on it.

Disks and networks are those of the whole node, also of other jobs there. A rank is its process and all descendants. Its
steps, samples and metrics are what it reports itself.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import queue
import sys
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any, Callable, Deque, Dict, Iterable, List, Mapping, NamedTuple, Optional, Set, Tuple

from serried.agent.helper_process import AgentConnection
from serried.agent.sampling import gpus
from serried.agent.sampling.gpus import Device, GpuSource, Values
from serried.base import linux
from serried.base.channel import Message
from serried.base.files import TailReader
from serried.schema import printed_metric, series
from serried.schema.events import ToHead, ToSampler
from serried.schema.layout import AttemptDirectory
from serried.schema.live import JOB, NODE, Node, range_of
from serried.schema.printed_metric import FILE, STDOUT, STEP, TOTAL, Pattern
from serried.schema.series import OWN, number

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


METRICS_BYTES, LOG_BYTES = 1 << 18, 1 << 16
"""The most that one sample reads of a rank's metrics, and of its log."""
MOST_LINES = 500
"""Of metrics, in one sample. Each takes some microseconds."""
LATE_SECONDS = 60.0
"""An entry that appears later than this was not written when it says: the clock has jumped."""
RATE_SECONDS = 30.0
"""The time over which steps per second are counted, or longer if steps take longer."""
PAUSE = 2.0
"""So many times that long without a step is an evaluation or the like: it says nothing about the next steps."""
MOST_METRICS, LONGEST_NAMES = 8, 160
"""Of a rank: the number, and the length of all names together."""
SAMPLES_PER_SECOND = f"{OWN}samples_per_second"
OF_LIBRARY = {SAMPLES_PER_SECOND: "samples_per_second", f"{OWN}wait_share": "data_wait"}


class MetricSource(NamedTuple):
    """`metric` of a plan: the metric's name, and where the program reports it."""

    name: str
    source: str

    @property
    def is_file(self) -> bool:
        return printed_metric.is_file(self.source)


class Steps:
    """The steps that a rank has reported, with their times."""

    def __init__(self) -> None:
        self.last: Optional[int] = None
        self.total: Optional[int] = None
        self._changed_at = 0.0
        """On the monotonic clock."""
        self._history: Deque[Tuple[float, int]] = deque()

    def expect(self, total: Optional[int]) -> None:
        """`total` is the last step; None if it is unknown, also after the loop that takes the steps."""
        if total is not None or self.total != self.last:
            self.total = total

    def reach(self, step: int, at: float) -> None:
        """`step` was reported at `at` on the monotonic clock."""
        is_new_start = self.last is not None and step < self.last
        is_after_pause = len(self._history) > 1 and at - self._changed_at > PAUSE * self._rated_seconds
        if is_new_start or (step != self.last and is_after_pause):
            self._history.clear()
        if step != self.last:
            self.last, self._changed_at = step, at
            self._history.append((at, step))
        while len(self._history) > 2 and self._history[1][0] <= at - RATE_SECONDS:
            self._history.popleft()

    def quantities(self, now: float) -> Dict[str, Any]:
        found: Dict[str, Any] = {}
        if self.last is not None:
            found.update(step=self.last, step_age=round(max(0.0, now - self._changed_at), 1))
        if self.total is not None:
            found["total_steps"] = self.total
        rate = self._rate(now)
        return found if rate is None else {**found, "steps_per_second": rate, "step_gap": round(self._gap, 4)}

    @property
    def _gap(self) -> float:
        """The mean time between two reported steps; the rate falls while the next one is overdue, this does not."""
        return (self._history[-1][0] - self._history[0][0]) / max(len(self._history) - 1, 1)

    def is_overdue(self, now: float) -> bool:
        """No step for longer than the steps before took together."""
        return now - self._changed_at > self._rated_seconds

    @property
    def _rated_seconds(self) -> float:
        span = self._history[-1][0] - self._history[0][0] if self._history else 0.0
        return max(span, RATE_SECONDS)

    def _rate(self, now: float) -> Optional[float]:
        """Falls while the next step is overdue."""
        if len(self._history) < 2:
            return None
        (began_at, first), (ended_at, last) = self._history[0], self._history[-1]
        seconds = (now if self.is_overdue(now) else ended_at) - began_at
        return (last - first) / seconds if seconds > 0 else None


class RankProgress:
    """Reads what one rank writes."""

    def __init__(
        self, metrics: Path, log: Path, source: Optional[MetricSource], results: Path, *, stands_for: int = 1
    ) -> None:
        """`stands_for`: so many ranks, of which only this one writes metrics, read as many samples as this one."""
        self.log = log
        self._stands_for = stands_for
        self._metrics, self._printed = TailReader(metrics, METRICS_BYTES), TailReader(log, LOG_BYTES)
        self._steps = Steps()
        self._values: Dict[str, Any] = {}
        self._rates: Dict[str, float] = {}
        self._read_at = -math.inf
        """On the monotonic clock."""
        self._output: Optional[Tuple[int, float]] = None
        """The size of the log, and when that changed on the monotonic clock."""
        self._pattern: Optional[Pattern] = None
        self._file: Optional[ReportFile] = None
        kind, _, rest = source.source.partition(":") if source else ("", "", "")
        if source and kind == STDOUT:
            self._pattern = Pattern(rest, source.name)
        elif source and kind == FILE:
            self._file = ReportFile(source, results)

    def sample(self, clock: Callable[[], float] = time.monotonic) -> Dict[str, Any]:
        """What the rank has reported so far.

        The time is read after the files: on a busy node a step may be reached, written and read in between.
        """
        printed, lines = self._printed.lines(), self._metrics.lines()
        reported = self._file.read() if self._file else {}
        now = clock()
        age = self._output_age(now)
        self._read_metrics(lines, now)
        if self._pattern:
            self._take(self._pattern.last(printed), now if age < RATE_SECONDS else now - age)
        self._take(reported, now)
        return {
            **self._steps.quantities(now),
            **({} if self._steps.is_overdue(now) else self._rates),
            **({"metrics": dict(self._values)} if self._values else {}),
            **({} if self._output is None else {"output_age": round(age, 1)}),
        }

    @property
    def log_bytes(self) -> int:
        """The size of the log at the last sample."""
        return self._printed.size

    def _output_age(self, now: float) -> float:
        if not self._printed.changed_at:
            return 0.0
        size, changed_at = self._output or (None, 0.0)
        if size is None:  # this process may have started long after the rank
            changed_at = now - max(0.0, time.time() - self._printed.changed_at)
        elif self._printed.size != size:
            changed_at = now
        self._output = self._printed.size, changed_at
        return now - changed_at

    def _read_metrics(self, lines: List[bytes], now: float) -> None:
        if len(lines) > MOST_LINES:
            lines = [line for line in lines[:-MOST_LINES] if series.is_rare(line)] + lines[-MOST_LINES:]
        behind, earliest = now - time.time(), self._read_at - LATE_SECONDS
        self._read_at = now
        for line in lines:
            entry = series.parse(line)
            if entry is not None and entry.says_total:
                self._steps.expect(entry.total_steps)
            if entry is None or entry.step is None:
                continue
            at = entry.t
            reached_at = now if at is None or at + behind < earliest else min(now, at + behind)
            self._steps.reach(entry.step, reached_at)
            self._rates.update(
                (OF_LIBRARY[name], value * self._stands_for if name == SAMPLES_PER_SECOND else value)
                for name, value in entry.values.items()
                if name in OF_LIBRARY and number(value) is not None
            )
            self._keep({name: value for name, value in entry.values.items() if not name.startswith(OWN)})

    def _take(self, values: Mapping[str, float], at: float) -> None:
        """`values` by the names of groups."""
        step, total = values.get(STEP), values.get(TOTAL)
        if total is not None and math.isfinite(total):
            self._steps.expect(int(total))
        if step is not None and math.isfinite(step):
            self._steps.reach(int(step), at)
        self._keep({name: value for name, value in values.items() if name not in (STEP, TOTAL)})

    def _keep(self, values: Mapping[str, Any]) -> None:
        for name, value in values.items():
            if name not in self._values and not self._has_room(name):
                continue
            if number(value) is not None:
                self._values[name] = value if isinstance(value, int) else float(f"{value:.6g}")
            elif series.logged_number(value) is not None:
                self._values[name] = str(value)

    def _has_room(self, name: str) -> bool:
        return len(self._values) < MOST_METRICS and sum(map(len, (*self._values, name))) <= LONGEST_NAMES


class ReportFile:
    """The file of `file:PATH:KEY`: one JSON document, or lines of them."""

    def __init__(self, source: MetricSource, results: Path) -> None:
        path, _, key = source.source.partition(":")[2].partition(":")
        self._path = results / path
        self._name, self._key = source.name, key or source.name
        self._seen: Tuple[float, int] = (0.0, 0)

    def read(self) -> Dict[str, float]:
        """The last values, if the file has changed: of the metric, and of the keys `step` and `total`."""
        try:
            state = self._path.stat()
            if (state.st_mtime, state.st_size) == self._seen:
                return {}
            self._seen = (state.st_mtime, state.st_size)
            with self._path.open("rb") as file:
                file.seek(max(0, state.st_size - METRICS_BYTES))
                text = file.read(METRICS_BYTES).decode("utf-8", "replace")
        except OSError:
            return {}
        keys = {STEP: STEP, TOTAL: TOTAL, self._name: self._key}
        found = {name: printed_metric.values_in(text, key) for name, key in keys.items()}
        return {name: values[-1] for name, values in found.items() if values}


PERIOD_SECONDS = 30.0
FEW_ENTRIES = 16
"""Ranks and GPUs. With more of them periods are longer, and an hour takes as much space."""
LAST = ("disk_free", "memory_peak", "step", "total_steps", "metrics", "ecc_errors", "log")
"""Of these a line has the last value. Of other numbers it has the range."""
NOT_WRITTEN = ("step_age", "step_gap", "output_age")
"""Ages are true at a moment only, and so is what a reader compares with them."""
ANSWER_SECONDS = 0.2
"""How long the driver of the GPUs may take to answer. A later one belongs to the next sample."""

Quantities = Mapping[str, Any]


def main(arguments: List[str]) -> int:  # noqa: ARG001 - roles have arguments
    connection = AgentConnection()
    sampler: Optional[Sampler] = None
    while True:
        messages = connection.receive(sampler.seconds_to_next if sampler else None)
        if messages is None:
            return 0
        for message in messages:
            if message["do"] == ToSampler.BEGIN:
                sampler = Sampler(message, time.monotonic())
            elif sampler and message["do"] == ToSampler.RANKS:
                sampler.set_ranks(message["ranks"])
            elif sampler and message["do"] == ToSampler.FINISH:
                sampler.finish(time.monotonic())
                return 0
        if sampler and not sampler.seconds_to_next:
            for answer in sampler.sample(time.monotonic()):
                connection.send(**answer)


class Sampler:
    def __init__(self, settings: Mapping[str, Any], now: float) -> None:
        """`settings` are the fields of ToSampler.BEGIN."""
        self._every: float = settings["every"]
        self._next_at = now
        self._is_shared = settings["is_shared"]
        self._node = NodeUsage(settings["folder"])
        self._processes = RankProcesses()
        self._progress: Dict[int, RankProgress] = {}
        self._attempt = AttemptDirectory(Path(settings["attempt"]))
        self._results = Path(settings["results"])
        self._metric = MetricSource(**settings["metric"]) if settings["metric"] else None
        self._stands_for: int = settings["stands_for"]
        self._place = {"node": settings["node"], "host": settings["host"]}
        self._file = SamplesFile(str(self._attempt.samples(settings["node"])), settings["mode"])
        self._gpus = GpuReader(settings["gpus"], settings["mark"])
        self._described: Dict[str, Any] = {}
        self._period = OpenPeriod(now)
        self._memory_peak = 0.0

    @property
    def seconds_to_next(self) -> float:
        return max(0.0, self._next_at - time.monotonic())

    @property
    def _period_seconds(self) -> float:
        count = len(self._progress) + len(self._gpus.devices)
        return max(PERIOD_SECONDS * max(1.0, count / FEW_ENTRIES), self._every)

    def set_ranks(self, ranks: List[Mapping[str, Any]]) -> None:
        """`ranks` run now on this node: `rank`, `pid` and `log` of each."""
        self._processes.set_ranks({entry["pid"]: entry["rank"] for entry in ranks})
        logs = {entry["rank"]: Path(entry["log"]) for entry in ranks}
        ended = {rank: progress for rank, progress in self._progress.items() if progress.log != logs.get(rank)}
        self._period.add_ranks({rank: progress.sample() for rank, progress in ended.items()})
        self._progress = {rank: self._progress_of(rank, log) for rank, log in logs.items()}

    def _progress_of(self, rank: int, log: Path) -> RankProgress:
        known = self._progress.get(rank)
        if known and known.log == log:
            return known
        source = self._metric if rank == 0 or not (self._metric and self._metric.is_file) else None
        metrics = self._attempt.metrics(self._place["node"], rank)
        return RankProgress(metrics, log, source, self._results, stands_for=self._stands_for)

    def sample(self, now: float) -> List[Message]:
        """Measure. Returns messages for the head; a SAMPLE is the node's entry in live.json, without its age."""
        self._next_at = max(self._next_at + self._every, now)
        self._gpus.request()
        node, ranks = self._node.sample(now), self._processes.sample(now)
        if self._is_shared:
            node = _with_cpu_of(ranks, node)
        for rank, progress in self._progress.items():
            ranks[rank] = {**ranks.get(rank, {}), **progress.sample()}
        gpus = self._gpus.values()
        if "memory" in node:
            self._memory_peak = node["memory_peak"] = max(self._memory_peak, node["memory"])
        self._period.add(node, gpus, ranks)
        self._period.add_ranks({rank: {"log": one.log_bytes} for rank, one in self._progress.items()})
        if now - self._period.began_at >= self._period_seconds:
            self._write_period(now)
        used, self._gpus.used_by_others = self._gpus.used_by_others, []
        answers = [{"event": ToHead.GPUS_IN_USE, "gpus": used}] if used else []
        return [{"event": ToHead.SAMPLE, **self._entry(node, gpus, ranks)}, *answers]

    def finish(self, now: float) -> None:
        """Write what ranks have reported last."""
        self.sample(now)
        self._write_period(now)

    def _write_period(self, now: float) -> None:
        line = self._period.line(now, time.time())
        self._period = OpenPeriod(now)
        if line:
            self._describe()
            self._file.append(line)

    def _describe(self) -> None:
        """Write the first line, and again when the driver has answered."""
        facts = {
            "host": self._place["host"],
            "interval": self._every,
            "node": self._node.description,
            **self._gpus.description,
        }
        if facts != self._described:
            self._described = facts
            self._file.append({"t": round(time.time(), 3), **facts})

    def _entry(self, node: Quantities, gpus: Mapping[int, Quantities], ranks: Mapping[int, Quantities]) -> Node:
        fixed = self._node.description
        if "memory" in fixed:
            fixed["memory_limit"] = fixed.pop("memory")
        shown = {name: node[name] for name in ("cpu", "memory", "disk_free") if name in node}
        entry = {**self._place, **_short({**fixed, **shown})}
        if self._gpus.devices:
            entry["gpus"] = [
                {"gpu": index, **_short(_of_gpu(device, gpus.get(index, {})))}
                for index, device in sorted(self._gpus.devices.items())
            ]
        entry["ranks"] = [{"rank": rank, **_short(ranks[rank])} for rank in sorted(ranks)]
        return entry


def _with_cpu_of(ranks: Mapping[int, Quantities], node: Quantities) -> Dict[str, Any]:
    """`node`, with the CPU of the ranks: other programs keep its CPUs busy too."""
    own = [rank["cpu"] for rank in ranks.values() if "cpu" in rank]
    others = {name: value for name, value in node.items() if name != "cpu"}
    return {**others, "cpu": sum(own)} if own else others


def _of_gpu(device: Quantities, values: Quantities) -> Dict[str, Any]:
    fixed = {"name": "name", "memory": "memory_total", "power_cap": "power_cap"}
    return {**{fixed[name]: value for name, value in device.items() if name in fixed}, **values}


class SamplesFile:
    """Appends lines of JSON. A line that a full disk refuses is lost; memory and the run are not."""

    def __init__(self, path: str, mode: int) -> None:
        self._path, self._mode = path, mode
        self._descriptor: Optional[int] = None
        self._is_torn = False
        """The last line may be incomplete."""

    def append(self, entry: Mapping[str, Any]) -> None:
        text = json.dumps(entry, separators=(",", ":")).encode() + b"\n"
        text = b"\n" + text if self._is_torn else text
        self._is_torn = True
        with contextlib.suppress(OSError):
            if self._descriptor is None:
                self._descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, self._mode)
            self._is_torn = os.write(self._descriptor, text) < len(text)


def _short(quantities: Quantities) -> Dict[str, Any]:
    """With floats to six digits."""
    return {name: float(f"{value:.6g}") if isinstance(value, float) else value for name, value in quantities.items()}


class Measured:
    """What has been measured of one thing, such as a GPU, in a period."""

    def __init__(self) -> None:
        self._numbers: Dict[str, List[float]] = {}
        self._last: Dict[str, Any] = {}
        self._united: Dict[str, List[Any]] = {}

    def add(self, quantities: Quantities) -> None:
        for name, value in quantities.items():
            if name in LAST:
                self._last[name] = value
            elif isinstance(value, (list, tuple, set)):
                united = self._united.setdefault(name, [])
                united += [entry for entry in value if entry not in united]
            elif name not in NOT_WRITTEN:
                self._numbers.setdefault(name, []).append(value)

    def summary(self) -> Dict[str, Any]:
        ranges = {name: range_of(values) for name, values in self._numbers.items()}
        return {**ranges, **self._last, **{name: entries for name, entries in self._united.items() if entries}}


class OpenPeriod:
    """Samples of a period, as one line of `samples.jsonl`."""

    def __init__(self, began_at: float) -> None:
        self.began_at = began_at
        """On the monotonic clock."""
        self._count = 0
        self._node = Measured()
        self._gpus: Dict[str, Measured] = {}
        self._ranks: Dict[str, Measured] = {}

    def add(self, node: Quantities, gpus: Mapping[int, Quantities], ranks: Mapping[int, Quantities]) -> None:
        self._count += 1
        self._node.add(node)
        for groups, measured in ((self._gpus, gpus), (self._ranks, ranks)):
            for key, quantities in measured.items():
                groups.setdefault(str(key), Measured()).add(quantities)

    def add_ranks(self, ranks: Mapping[int, Quantities]) -> None:
        """Add what ranks have reported since the last sample."""
        for rank, quantities in ranks.items():
            self._ranks.setdefault(str(rank), Measured()).add(quantities)

    def line(self, now: float, wall_clock: float) -> Optional[Dict[str, Any]]:
        """The line of the period up to `now`; None if it has no sample."""
        if not self._count:
            return None
        line: Dict[str, Any] = {
            "t": round(wall_clock, 3),
            "seconds": round(now - self.began_at, 1),
            "count": self._count,
            "node": self._node.summary(),
        }
        for name, groups in (("gpus", self._gpus), ("ranks", self._ranks)):
            if groups:
                line[name] = {number: group.summary() for number, group in groups.items()}
        return line


def open_source(visible: Optional[str]) -> Optional[GpuSource]:
    """The best source that works here; None without GPUs.

    `visible` is the job's CUDA_VISIBLE_DEVICES: indices, UUIDs or MIG UUIDs. Empty means no GPU, and None all that the
    driver shows. The caller passes "" for a job that requested no GPU.
    """
    if visible is not None and not gpus.visible_names(visible):
        return None
    for open_it in (_nvml, gpus.Amdgpu):
        with contextlib.suppress(OSError, ImportError):  # some Pythons have no ctypes
            source = open_it(visible)
            if source.devices():
                return source
    return None


def _nvml(visible: Optional[str]) -> GpuSource:
    from serried.agent.sampling.nvml import Nvml

    return Nvml(visible)


class GpuReader:
    """The GPUs, read in a thread: a call to a driver that hangs leaves only the values of GPUs missing."""

    def __init__(self, visible: Optional[str], mark: Optional[str]) -> None:
        """`visible` as for `open_source`. `mark` is in the environment of the attempt's processes.

        Without a mark, no use by other programs is looked for.
        """
        self._visible = visible
        self._mark = mark
        self.used_by_others: List[Dict[str, Any]] = []
        """As the ranks started: see `gpus.in_use`."""
        self._is_requested = threading.Event()
        self._answers: "queue.SimpleQueue[Dict[int, Values]]" = queue.SimpleQueue()
        self.devices: Dict[int, Device] = {}
        self._source = ""
        if visible != "":
            threading.Thread(target=self._run, daemon=True).start()

    @property
    def description(self) -> Dict[str, Any]:
        """The fields about GPUs in the first line of a file of samples; empty until the driver has answered."""
        if not self.devices:
            return {}
        return {"gpu_source": self._source, "gpus": {str(index): facts for index, facts in self.devices.items()}}

    def request(self) -> None:
        """Ask the driver, unless the last request waits for it still."""
        self._is_requested.set()

    def values(self) -> Dict[int, Values]:
        """The answer, each once; empty if there is none yet."""
        try:
            return self._answers.get(timeout=ANSWER_SECONDS) if self.devices else {}
        except queue.Empty:
            return {}

    def _run(self) -> None:
        source = open_source(self._visible)
        if source is not None:
            self._source = source.name
            self.devices = source.devices()
            self._find_other_programs(source)
        while source is not None:
            self._is_requested.wait()
            self._is_requested.clear()
            with contextlib.suppress(OSError):  # the driver did not answer; it may the next time
                self._answers.put(source.read())

    def _find_other_programs(self, source: GpuSource) -> None:
        mark = self._mark
        if mark is not None:
            with contextlib.suppress(OSError):
                self.used_by_others = gpus.in_use(source, lambda pid: gpus.is_marked(pid, mark))
