"""The process beside a node's agent that measures. Nothing of a run depends on it."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import threading
import time
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional

from serried.agent.helper_process import AgentConnection
from serried.agent.sampling import gpus
from serried.agent.sampling.gpus import Device, GpuSource, Values
from serried.agent.sampling.progress import MetricSource, RankProgress
from serried.agent.sampling.usage import NodeUsage, RankProcesses
from serried.base.channel import Message
from serried.schema.events import ToHead, ToSampler
from serried.schema.layout import AttemptDirectory
from serried.schema.live import Node, range_of

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
            for number, quantities in measured.items():
                groups.setdefault(str(number), Measured()).add(quantities)

    def add_ranks(self, ranks: Mapping[int, Quantities]) -> None:
        """Add what ranks have reported since the last sample."""
        for number, quantities in ranks.items():
            self._ranks.setdefault(str(number), Measured()).add(quantities)

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
