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
import re
import sys
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any, Callable, Deque, Dict, List, Mapping, Optional, Set, Tuple

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

Quantities = Mapping[str, Any]

SYSTEM = Path("/sys")
SECTOR = 512
"""Bytes in a sector of /proc/diskstats, whatever the disk has."""
WORD = 4
"""Bytes in a word of an InfiniBand port's counters."""
INFINIBAND = "32"
"""The kernel's type of a network interface over InfiniBand. Its port counts that traffic too."""


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


class NodeUsage:
    """Measures the node on which this process runs; `folder` is on its local disk."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._cpus = sorted(os.sched_getaffinity(0)) if sys.platform == "linux" else list(range(os.cpu_count() or 1))
        machine, _ = _memory()
        self._group = linux.limited_group(machine, f"{linux.PROC}/self/cgroup", linux.CGROUPS)
        self._disks = {path.parent.name for path in (SYSTEM / "block").glob("*/device")}
        self._ports = sorted((SYSTEM / "class" / "infiniband").glob("*/ports/*/counters"))
        interfaces = [path for path in (SYSTEM / "class" / "net").glob("*") if path.name != "lo"]
        # A container shows no network card: all its interfaces count.
        cards = [path for path in interfaces if (path / "device").exists()] or interfaces
        self._cards = [path.name for path in cards if linux.text_of(path / "type").strip() != INFINIBAND]
        self._before: Dict[str, float] = {}
        """The counters at the last sample."""
        self._at = 0.0
        limit = self._group.limit if self._group else machine
        self.description: Dict[str, Any] = {
            "cpus": len(self._cpus),
            **({"memory": limit} if limit else {}),
            "memory_scope": JOB if self._group else NODE,
        }
        """The node's fields in the first line of a file of samples."""

    def sample(self, now: float) -> Dict[str, float]:
        """The node's quantities at `now` on the monotonic clock, without those that cannot be measured."""
        total, available = _memory()
        memory = self._group.working_set() if self._group else total - available if total else None
        usage: Dict[str, float] = {} if memory is None else {"memory": memory}
        counters, seconds = self._counters(), now - self._at
        for name, value in counters.items():
            if seconds > 0 and value >= self._before.get(name, math.inf):
                usage[name] = (value - self._before[name]) / seconds
        self._before, self._at = counters, now
        with contextlib.suppress(OSError):
            disk = os.statvfs(self._folder)
            usage["disk_free"] = disk.f_bavail * disk.f_frsize
        return usage

    def _counters(self) -> Dict[str, float]:
        """Seconds for which the job's CPUs were busy, and bytes of the node's disks and networks, since boot."""
        counters: Dict[str, float] = {}
        cpu = self._group.cpu_seconds() if self._group else None
        if cpu is None:
            names, ticks = {f"cpu{number}" for number in self._cpus}, []
            for line in _proc("stat").splitlines():
                name, _, values = line.partition(" ")
                if name in names:
                    user, nice, system, _idle, _iowait, interrupts, soft, *_ = [*map(float, values.split()), *[0.0] * 7]
                    ticks.append(user + nice + system + interrupts + soft)
            cpu = sum(ticks) / os.sysconf("SC_CLK_TCK") if ticks else None
        if cpu is not None:
            counters["cpu"] = cpu

        disks = [fields for fields in map(str.split, _proc("diskstats").splitlines()) if len(fields) > 9]
        disks = [fields for fields in disks if fields[2] in self._disks]
        if disks:
            counters["disk_read"] = SECTOR * sum(float(fields[5]) for fields in disks)
            counters["disk_write"] = SECTOR * sum(float(fields[9]) for fields in disks)

        interfaces = _proc("net/dev")
        if interfaces:
            received = sum(WORD * _number(port / "port_rcv_data") for port in self._ports)
            sent = sum(WORD * _number(port / "port_xmit_data") for port in self._ports)
            for line in interfaces.splitlines():
                name, _, values = line.partition(":")
                fields = values.split()
                if name.strip() in self._cards and len(fields) > 8:
                    received, sent = received + float(fields[0]), sent + float(fields[8])
            counters.update(net_in=received, net_out=sent)
        return counters


def _memory() -> Tuple[int, int]:
    """The machine's memory and what is available of it, in bytes; 0 if unknown."""
    kilobytes = dict(re.findall(r"^(\w+): +(\d+)", _proc("meminfo"), re.MULTILINE))
    return 1024 * int(kilobytes.get("MemTotal", 0)), 1024 * int(kilobytes.get("MemAvailable", 0))


def _proc(name: str) -> str:
    return linux.text_of(Path(linux.PROC) / name)


def _number(path: Path) -> float:
    text = linux.text_of(path).strip()
    return float(text) if text.isdecimal() else 0.0


FORGET_SECONDS = 60.0
"""How long a process that belongs to no rank is ignored. Its pid may then be that of another."""
STATE, PARENT, GROUP, USER_TICKS, SYSTEM_TICKS, STARTED = 0, 1, 2, 11, 12, 19
"""Positions in `linux.stat`."""


class _RankProcess:
    def __init__(self, rank: int, started: str) -> None:
        self.rank, self.started = rank, started
        self.counters: Dict[str, float] = {}
        """Seconds of `cpu`, bytes of `read` and `write`, at the last sample."""


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

    def sample(self, now: float) -> Dict[int, Dict[str, Any]]:
        """By rank: `cpu` in cores, `memory` in bytes, `read` and `write` in bytes per second, up to `now`.

        `now` is on the monotonic clock. CPU and I/O need two samples.
        """
        fields = self._find(now)
        seconds = None if self._at is None else now - self._at
        usage: Dict[int, Dict[str, Any]] = {rank: {} for rank in self._ranks.values()}
        private: Dict[int, int] = {}
        shared: Dict[int, int] = {}
        for pid, process in self._known.items():
            rank, stat = process.rank, fields[pid]
            counters = {"cpu": (int(stat[USER_TICKS]) + int(stat[SYSTEM_TICKS])) / self._frequency, **_moved_bytes(pid)}
            # What a process did before it was found counts only if it is younger than the last sample.
            is_new = self._at is not None and int(process.started) > self._tick
            for name, value in counters.items():
                before = process.counters.get(name, 0 if is_new else value)
                if seconds:
                    usage[rank][name] = usage[rank].get(name, 0.0) + max(0, value - before) / seconds
            process.counters.update(counters)
            pages = linux.read(pid, "statm").split() if stat[STATE] not in "ZX" else []
            if len(pages) > 2:
                resident, common = int(pages[1]), int(pages[2])
                private[rank] = private.get(rank, 0) + max(0, resident - common)
                shared[rank] = max(shared.get(rank, 0), common)
        for rank, own in private.items():  # processes of a rank share the same pages: those of one process count
            usage[rank]["memory"] = (own + shared[rank]) * self._page
        boot_seconds = time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else 0.0
        self._at, self._tick = now, boot_seconds * self._frequency
        return usage

    def _find(self, now: float) -> Dict[int, List[str]]:
        """Bring `_known` up to date. Returns the `linux.stat` of each."""
        present = linux.pids()
        if now >= self._forget_at:
            self._foreign.clear()
            self._forget_at = now + FORGET_SECONDS
        stats = {pid: linux.stat(pid) for pid in present if pid not in self._foreign}
        fields = {pid: stat for pid, stat in stats.items() if len(stat) > STARTED}
        self._foreign.intersection_update(present)
        for pid, process in list(self._known.items()):
            if pid not in fields or fields[pid][STARTED] != process.started:
                del self._known[pid]
        strangers, count = [pid for pid in fields if pid not in self._known], -1
        while len(strangers) != count:  # a child may stand before its parent
            count = len(strangers)
            for pid in strangers:
                parent = self._known.get(int(fields[pid][PARENT]))
                of_kin = parent.rank if parent else self._ranks.get(int(fields[pid][GROUP]))
                rank = self._ranks.get(pid, of_kin)
                if rank is not None:
                    self._known[pid] = _RankProcess(rank, fields[pid][STARTED])
            strangers = [pid for pid in strangers if pid not in self._known]
        self._foreign.update(strangers)
        return fields


def _moved_bytes(pid: int) -> Dict[str, float]:
    """The bytes that a process has read from storage and written; empty if the kernel does not tell."""
    lines = (line.split() for line in linux.read(pid, "io").splitlines())
    amounts = {fields[0]: int(fields[1]) for fields in lines if len(fields) == 2}
    if b"read_bytes:" not in amounts:
        return {}
    return {"read": amounts[b"read_bytes:"], "write": amounts.get(b"write_bytes:", 0)}


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
        is_after_pause = len(self._history) > 1 and self.is_overdue(at, PAUSE)
        if is_new_start or (step != self.last and is_after_pause):
            self._history.clear()
        if step != self.last:
            self.last, self._changed_at = step, at
            self._history.append((at, step))
        while len(self._history) > 2 and self._history[1][0] <= at - RATE_SECONDS:
            self._history.popleft()

    def is_overdue(self, now: float, times: float = 1.0) -> bool:
        """No step for `times` as long as the steps before took together."""
        span = self._history[-1][0] - self._history[0][0] if self._history else 0.0
        return now - self._changed_at > times * max(span, RATE_SECONDS)

    def quantities(self, now: float) -> Dict[str, Any]:
        quantities: Dict[str, Any] = {}
        if self.last is not None:
            quantities.update(step=self.last, step_age=round(max(0.0, now - self._changed_at), 1))
        if self.total is not None:
            quantities["total_steps"] = self.total
        if len(self._history) > 1:
            (began_at, first), (ended_at, last) = self._history[0], self._history[-1]
            # The rate falls while the next step is overdue; the mean time between reported steps does not.
            seconds = (now if self.is_overdue(now) else ended_at) - began_at
            if seconds > 0:
                gap = round((ended_at - began_at) / (len(self._history) - 1), 4)
                quantities.update(steps_per_second=(last - first) / seconds, step_gap=gap)
        return quantities


class RankProgress:
    def __init__(
        self, metrics: Path, log: Path, metric: Optional[Mapping[str, str]], results: Path, *, stands_for: int = 1
    ) -> None:
        """`metric` is that of the plan: its `name`, and the `source` where the program reports it.

        `stands_for`: so many ranks, of which only this one writes metrics, read as many samples as this one.
        """
        self.log_file = log
        self.log, self._metrics = TailReader(log, LOG_BYTES), TailReader(metrics, METRICS_BYTES)
        self._stands_for = stands_for
        self._steps = Steps()
        self._values: Dict[str, Any] = {}
        self._rates: Dict[str, float] = {}
        self._read_at = -math.inf
        """On the monotonic clock."""
        self._output: Optional[Tuple[int, float]] = None
        """The size of the log, and when that changed on the monotonic clock."""
        name, source = (metric["name"], metric["source"]) if metric else ("", "")
        kind, _, rest = source.partition(":")
        self._pattern = Pattern(rest, name) if kind == STDOUT else None
        path, _, key = rest.partition(":")
        self._report = results / path if kind == FILE else None
        self._report_keys = {STEP: STEP, TOTAL: TOTAL, name: key or name}
        self._report_seen: Tuple[float, int] = (0.0, 0)

    def sample(self, clock: Callable[[], float] = time.monotonic) -> Dict[str, Any]:
        """What the rank has reported so far.

        The time is read after the files: on a busy node a step may be reached, written and read in between.
        """
        printed, lines, reported = self.log.lines(), self._metrics.lines(), self._read_report()
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

    def _output_age(self, now: float) -> float:
        if not self.log.changed_at:
            return 0.0
        size, changed_at = self._output or (None, 0.0)
        if size is None:  # this process may have started long after the rank
            changed_at = now - max(0.0, time.time() - self.log.changed_at)
        elif self.log.size != size:
            changed_at = now
        self._output = self.log.size, changed_at
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
            at = now if entry.t is None or entry.t + behind < earliest else min(now, entry.t + behind)
            self._steps.reach(entry.step, at)
            for name, value in entry.values.items():
                if name in OF_LIBRARY and number(value) is not None:
                    self._rates[OF_LIBRARY[name]] = value * self._stands_for if name == SAMPLES_PER_SECOND else value
                elif not name.startswith(OWN):
                    self._keep(name, value)

    def _read_report(self) -> Dict[str, float]:
        """The last values in the file of `file:PATH:KEY`, one JSON document or lines of them, if it has changed."""
        if self._report is None:
            return {}
        try:
            state = self._report.stat()
            if (state.st_mtime, state.st_size) == self._report_seen:
                return {}
            self._report_seen = (state.st_mtime, state.st_size)
            with self._report.open("rb") as file:
                file.seek(max(0, state.st_size - METRICS_BYTES))
                text = file.read(METRICS_BYTES).decode("utf-8", "replace")
        except OSError:
            return {}
        values = {name: printed_metric.values_in(text, key) for name, key in self._report_keys.items()}
        return {name: of_name[-1] for name, of_name in values.items() if of_name}

    def _take(self, values: Mapping[str, float], at: float) -> None:
        step, total = values.get(STEP), values.get(TOTAL)
        if total is not None and math.isfinite(total):
            self._steps.expect(int(total))
        if step is not None and math.isfinite(step):
            self._steps.reach(int(step), at)
        for name, value in values.items():
            if name not in (STEP, TOTAL):
                self._keep(name, value)

    def _keep(self, name: str, value: Any) -> None:
        has_room = len(self._values) < MOST_METRICS and sum(map(len, (*self._values, name))) <= LONGEST_NAMES
        if name not in self._values and not has_room:
            return
        if number(value) is not None:
            self._values[name] = value if isinstance(value, int) else float(f"{value:.6g}")
        elif series.logged_number(value) is not None:
            self._values[name] = str(value)


PERIOD_SECONDS = 30.0
FEW_ENTRIES = 16
"""Ranks and GPUs. With more of them periods are longer, and an hour takes as much space."""
LAST = ("disk_free", "memory_peak", "step", "total_steps", "metrics", "ecc_errors", "log")
"""Of these a line has the last value. Of other numbers it has the range, and of lists each entry once."""
NOT_WRITTEN = ("step_age", "step_gap", "output_age")
"""Ages are true at a moment only, and so is what a reader compares with them."""


class Measured:
    """What has been measured of one thing, such as a GPU, in a period."""

    def __init__(self) -> None:
        self._numbers: Dict[str, List[float]] = {}
        self._others: Dict[str, Any] = {}

    def add(self, quantities: Quantities) -> None:
        for name, value in quantities.items():
            if name in LAST:
                self._others[name] = value
            elif isinstance(value, list):
                united = self._others.setdefault(name, [])
                united += [entry for entry in value if entry not in united]
            elif name not in NOT_WRITTEN:
                self._numbers.setdefault(name, []).append(value)

    def summary(self) -> Dict[str, Any]:
        ranges = {name: range_of(values) for name, values in self._numbers.items()}
        return {**ranges, **{name: value for name, value in self._others.items() if value != []}}


class OpenPeriod:
    def __init__(self, began_at: float) -> None:
        self.began_at = began_at
        """On the monotonic clock."""
        self._count = 0
        self._node = Measured()
        self._groups: Dict[str, Dict[str, Measured]] = {"gpus": {}, "ranks": {}}

    def add(self, node: Quantities, gpus: Mapping[int, Quantities], ranks: Mapping[int, Quantities]) -> None:
        self._count += 1
        self._node.add(node)
        self._add_each("gpus", gpus)
        self.add_ranks(ranks)

    def add_ranks(self, ranks: Mapping[int, Quantities]) -> None:
        self._add_each("ranks", ranks)

    def _add_each(self, group: str, measured: Mapping[int, Quantities]) -> None:
        for key, quantities in measured.items():
            self._groups[group].setdefault(str(key), Measured()).add(quantities)

    def line(self, now: float, wall_clock: float) -> Optional[Dict[str, Any]]:
        """The line of the period up to `now`; None if it has no sample."""
        if not self._count:
            return None
        groups = {
            name: {key: measured.summary() for key, measured in group.items()}
            for name, group in self._groups.items()
            if group
        }
        return {
            "t": round(wall_clock, 3),
            "seconds": round(now - self.began_at, 1),
            "count": self._count,
            "node": self._node.summary(),
            **groups,
        }


class Sampler:
    def __init__(self, settings: Mapping[str, Any], now: float) -> None:
        self._settings = settings
        self._every: float = settings["every"]
        self._next_at = now
        self._node = NodeUsage(settings["folder"])
        self._processes = RankProcesses()
        self._progress: Dict[int, RankProgress] = {}
        self._attempt = AttemptDirectory(Path(settings["attempt"]))
        self._gpus = GpuReader(settings["gpus"], settings["mark"])
        self._described: Dict[str, Any] = {}
        self._period = OpenPeriod(now)
        self._memory_peak = 0.0
        self._descriptor: Optional[int] = None
        """Of the file of samples."""
        self._is_torn = False
        """The last line of that file may be incomplete."""

    @property
    def seconds_to_next(self) -> float:
        return max(0.0, self._next_at - time.monotonic())

    def set_ranks(self, ranks: List[Mapping[str, Any]]) -> None:
        """`ranks` run now on this node: `rank`, `pid` and `log` of each."""
        self._processes.set_ranks({entry["pid"]: entry["rank"] for entry in ranks})
        before, self._progress = self._progress, {}
        logs = {entry["rank"]: Path(entry["log"]) for entry in ranks}  # launches of a job script may share numbers
        for rank, log in logs.items():
            if rank in before and before[rank].log_file == log:
                self._progress[rank] = before.pop(rank)
                continue
            metric = self._settings["metric"]
            if rank and metric and printed_metric.is_file(metric["source"]):
                metric = None  # the program writes one file, which counts as rank 0's
            self._progress[rank] = RankProgress(
                self._attempt.metrics(self._settings["node"], rank),
                log,
                metric,
                Path(self._settings["results"]),
                stands_for=self._settings["stands_for"],
            )
        self._period.add_ranks({rank: progress.sample() for rank, progress in before.items()})

    def sample(self, now: float) -> List[Message]:
        """Measure. Returns messages for the head; a SAMPLE is the node's entry in live.json, without its age."""
        self._next_at = max(self._next_at + self._every, now)
        self._gpus.requested.set()
        node, ranks = self._node.sample(now), self._processes.sample(now)
        if self._settings["is_shared"]:  # other programs keep the node's CPUs busy too: those of the ranks count
            node.pop("cpu", None)
            own = [rank["cpu"] for rank in ranks.values() if "cpu" in rank]
            node.update({"cpu": sum(own)} if own else {})
        for rank, progress in self._progress.items():
            ranks[rank] = {**ranks.get(rank, {}), **progress.sample()}
        gpus = self._gpus.values()
        if "memory" in node:
            self._memory_peak = node["memory_peak"] = max(self._memory_peak, node["memory"])
        self._period.add(node, gpus, ranks)
        self._period.add_ranks({rank: {"log": progress.log.size} for rank, progress in self._progress.items()})
        entries = len(self._progress) + len(self._gpus.devices)
        if now - self._period.began_at >= max(PERIOD_SECONDS * max(1.0, entries / FEW_ENTRIES), self._every):
            self._write_period(now)
        used, self._gpus.used_by_others = self._gpus.used_by_others, []
        answers = [{"event": ToHead.GPUS_IN_USE, "gpus": used}] if used else []
        return [{"event": ToHead.SAMPLE, **self._entry(node, gpus, ranks)}, *answers]

    def finish(self, now: float) -> None:
        self.sample(now)
        self._write_period(now)

    def _write_period(self, now: float) -> None:
        line = self._period.line(now, time.time())
        self._period = OpenPeriod(now)
        if not line:
            return
        facts = {
            "host": self._settings["host"],
            "interval": self._every,
            "node": self._node.description,
            **self._gpus.description,
        }
        if facts != self._described:  # the first line, and again when the driver has answered
            self._described = facts
            self._append({"t": round(time.time(), 3), **facts})
        self._append(line)

    def _append(self, entry: Mapping[str, Any]) -> None:
        """Append a line to the file of samples. One that a full disk refuses is lost; memory and the run are not."""
        text = json.dumps(entry, separators=(",", ":")).encode() + b"\n"
        text = b"\n" + text if self._is_torn else text
        self._is_torn = True
        with contextlib.suppress(OSError):
            if self._descriptor is None:
                path = self._attempt.samples(self._settings["node"])
                self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, self._settings["mode"])
            self._is_torn = os.write(self._descriptor, text) < len(text)

    def _entry(self, node: Quantities, gpus: Mapping[int, Quantities], ranks: Mapping[int, Quantities]) -> Node:
        entry: Dict[str, Any] = {"node": self._settings["node"], "host": self._settings["host"]}
        fixed = {"memory_limit" if name == "memory" else name: fact for name, fact in self._node.description.items()}
        entry.update(_short({**fixed, **{name: node[name] for name in ("cpu", "memory", "disk_free") if name in node}}))
        names = {"name": "name", "memory": "memory_total", "power_cap": "power_cap"}
        for index, device in sorted(self._gpus.devices.items()):
            fixed = {names[name]: fact for name, fact in device.items() if name in names}
            entry.setdefault("gpus", []).append({"gpu": index, **_short({**fixed, **gpus.get(index, {})})})
        entry["ranks"] = [{"rank": rank, **_short(ranks[rank])} for rank in sorted(ranks)]
        return entry


def _short(quantities: Quantities) -> Dict[str, Any]:
    """With floats to six digits."""
    return {name: float(f"{value:.6g}") if isinstance(value, float) else value for name, value in quantities.items()}


ANSWER_SECONDS = 0.2
"""How long the driver of the GPUs may take to answer. A later one belongs to the next sample."""


class GpuReader:
    """The GPUs, read in a thread: a call to a driver that hangs leaves only the values of GPUs missing."""

    def __init__(self, visible: Optional[str], mark: Optional[str]) -> None:
        """`visible` as for `open_source`. `mark` is in the environment of the attempt's processes.

        Without a mark, no use by other programs is looked for.
        """
        self._visible, self._mark = visible, mark
        self.used_by_others: List[Dict[str, Any]] = []
        """As the ranks started: see `gpus.in_use`."""
        self.requested = threading.Event()
        """Set to ask the driver, unless the last request waits for it still."""
        self._answers: "queue.SimpleQueue[Dict[int, Values]]" = queue.SimpleQueue()
        self.devices: Dict[int, Device] = {}
        self.description: Dict[str, Any] = {}
        """The fields about GPUs in the first line of a file of samples; empty until the driver has answered."""
        if visible != "":
            threading.Thread(target=self._run, daemon=True).start()

    def values(self) -> Dict[int, Values]:
        """The answer, each once; empty if there is none yet."""
        try:
            return self._answers.get(timeout=ANSWER_SECONDS) if self.devices else {}
        except queue.Empty:
            return {}

    def _run(self) -> None:
        source, mark = open_source(self._visible), self._mark
        if source is None:
            return
        devices = source.devices()
        self.description = {"gpu_source": source.name, "gpus": {str(index): facts for index, facts in devices.items()}}
        self.devices = devices
        if mark is not None:
            with contextlib.suppress(OSError):
                self.used_by_others = gpus.in_use(source, lambda pid: gpus.is_marked(pid, mark))
        while True:
            self.requested.wait()
            self.requested.clear()
            with contextlib.suppress(OSError):  # the driver did not answer; it may the next time
                self._answers.put(source.read())


def open_source(visible: Optional[str]) -> Optional[GpuSource]:
    """The best source that works here; None without GPUs.

    `visible` is the job's CUDA_VISIBLE_DEVICES: indices, UUIDs or MIG UUIDs. Empty means no GPU, and None all that the
    driver shows. The caller passes "" for a job that requested no GPU.
    """
    if visible is not None and not gpus.visible_names(visible):
        return None
    source: GpuSource
    with contextlib.suppress(OSError, ImportError):  # some Pythons have no ctypes
        from serried.agent.sampling.nvml import Nvml

        source = Nvml(visible)
        if source.devices():
            return source
    with contextlib.suppress(OSError):
        source = gpus.Amdgpu(visible)
        if source.devices():
            return source
    return None
