"""A run or a task as the rules judge it: what it requested, how it ended, what was measured, how far ranks differ."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from serried.base.text import counted, iso, show_duration
from serried.records.measured import GpuFigures, Measurements, NodeFigures, RankFigures, combined
from serried.records.samples import Range
from serried.schema import names

GIB = 1 << 30
MARGIN = 1.2
"""A request above what was used, for the next run may need more (jobstats, `rounded_memory_with_safety`)."""
SATURATED_SHARE = 0.9
"""Serried's own: CPUs count as the bottleneck from 90 % on."""


@dataclass(frozen=True)
class Spelling:
    """How the user requests resources: keys of `resources` in serried.toml, or options of a command."""

    memory: str = 'mem = "{}"'
    """With `{}` for an amount such as `24G`."""
    memory_units: int = 1
    """How many of these amounts a node has: `mem` counts per GPU, or per rank."""
    time: str = 'time = "{}"'
    cpus: str = "cpus = {}"
    cpu_units: int = 1
    gpus: str = "gpus = {}"
    nodes: str = "nodes = {}"
    verb: str = "write"
    """What a user does with a change: `submit with` options."""


@dataclass(frozen=True)
class Peer:
    """An earlier run of the same experiment with fewer GPUs."""

    run: str
    units: int
    """GPUs; ranks of runs without GPUs."""
    samples_per_second: float
    """Of all ranks."""


_INTERNAL = ("spelling", "measured", "is_task", "needed_gpu_memory", "peer", "mute")


@dataclass(frozen=True)
class Usage:
    id: str
    name: str = ""
    state: str = names.UNKNOWN
    job: str | None = None
    cluster: str = ""
    command: str = ""
    attempt: int = 1
    started: float | None = None
    ended: float | None = None
    seconds: float | None = None
    """How long the last attempt ran, or has run so far."""
    limit_seconds: float | None = None
    """Of a job, and so of each attempt."""
    nodes: int = 1
    node_names: tuple[str, ...] = ()
    ranks: int | None = None
    """Per node, as GPUs, CPUs and memory."""
    gpus: int = 0
    gpu_type: str = ""
    cpus: float | None = None
    memory: float | None = None
    """Bytes per node; None if nothing limits it, or all that the node has."""
    has_default_memory: bool = False
    has_default_cpus: bool = False
    has_whole_nodes: bool = False
    measured: Measurements = Measurements()  # noqa: RUF009 - it never changes
    missing: str = ""
    """Why nothing was measured; empty if something was."""
    spelling: Spelling = Spelling()
    peer: Peer | None = None
    mute: tuple[str, ...] = ()
    """Rules that the experiment mutes."""
    is_task: bool = False
    """Other tasks share its request."""
    needed_gpu_memory: bool = False
    """It ran out of the memory of a GPU."""

    @property
    def has_ended(self) -> bool:
        return self.state in names.ENDED

    @property
    def ran_out_of_memory(self) -> bool:
        return self.state == names.OUT_OF_MEMORY or self.needed_gpu_memory

    @property
    def shows_need(self) -> bool:
        """It did all of its work, or all that the limit allowed: a run that failed may not have reached its peak."""
        return self.state in {names.COMPLETED, names.TIMEOUT}

    @property
    def has_every_node(self) -> bool:
        """Samples can be missing."""
        return len(self.measured.nodes) >= self.nodes

    @property
    def measured_seconds(self) -> float:
        """Of all attempts together, as far as known."""
        return max([self.seconds or 0.0, *(node.seconds for node in self.measured.nodes)])

    @property
    def units(self) -> int:
        """GPUs in all; ranks of a run without GPUs."""
        return self.nodes * (self.gpus or self.ranks or 1)

    @property
    def rated_gpus(self) -> tuple[GpuFigures, ...]:
        """The GPUs whose use is known: no slices."""
        return tuple(gpu for gpu in self.measured.gpus if gpu.busy is not None and not gpu.is_mig)

    @property
    def working_gpus(self) -> tuple[GpuFigures, ...]:
        return tuple(gpu for gpu in self.rated_gpus if gpu.busy is not None and gpu.busy.maximum > 0)

    @property
    def busy(self) -> Range | None:
        """Of all GPUs, in percent."""
        return combined((gpu.seconds or 1.0, gpu.busy) for gpu in self.rated_gpus)

    @property
    def gpu_memory(self) -> Range | None:
        """Of a GPU, in bytes."""
        return combined((gpu.seconds or 1.0, gpu.memory) for gpu in self.measured.gpus)

    @property
    def gpu_memory_total(self) -> float | None:
        return max((gpu.memory_total for gpu in self.measured.gpus if gpu.memory_total), default=None)

    @property
    def power(self) -> Range | None:
        """Of a GPU, in watts."""
        return combined((gpu.seconds or 1.0, gpu.power) for gpu in self.measured.gpus)

    @property
    def power_cap(self) -> float | None:
        return max((gpu.power_cap for gpu in self.measured.gpus if gpu.power_cap), default=None)

    @property
    def cpu(self) -> Range | None:
        """Cores in use on a node: by the ranks, if nothing was measured for the job alone."""
        return self._in_use(lambda each: each.cpu)

    @property
    def most_cpu(self) -> float:
        """Cores in use on the node that used most, on average over the run."""
        return max((node.cpu.mean for node in self.measured.nodes if node.cpu), default=0.0)

    @property
    def cpus_of_node(self) -> float | None:
        return max((node.cpus for node in self.measured.nodes if node.cpus), default=None)

    @property
    def memory_of_node(self) -> float | None:
        return max((node.memory_total for node in self.measured.nodes if node.memory_total), default=None)

    @property
    def cpus_per_node(self) -> float | None:
        """The CPUs requested, else those that the node has."""
        return self.cpus if self.cpus and not self.has_whole_nodes else self.cpus_of_node or self.cpus

    @property
    def node_memory(self) -> Range | None:
        """In use on a node, in bytes: by the ranks, if nothing was measured for the job alone."""
        return self._in_use(lambda each: each.memory)

    def _in_use(self, value: Callable[[NodeFigures | RankFigures], Range | None]) -> Range | None:
        places: dict[tuple[str, int], list[RankFigures]] = {}
        for rank in self.measured.ranks:
            places.setdefault((rank.host, rank.node), []).append(rank)
        if self.has_own_scope or not places:
            return combined((node.seconds or 1.0, value(node)) for node in self.measured.nodes)
        return combined((1.0, _sum(map(value, ranks))) for ranks in places.values())

    @property
    def memory_per_node(self) -> float | None:
        """The memory requested, else that of the node."""
        return self.memory or self.memory_of_node

    @property
    def has_own_scope(self) -> bool:
        """CPUs and memory were measured for the job, and not for the whole node with the programs of others."""
        return any(node.memory_scope == "job" for node in self.measured.nodes)

    @property
    def samples_per_second(self) -> float | None:
        """Of all ranks."""
        return self.measured.samples_per_second

    @property
    def lacks_cpus(self) -> bool:
        """All CPUs were in use, and the node may have more."""
        in_use = self.cpu.mean if self.cpu else 0.0
        return bool(self.cpus) and not self.has_whole_nodes and in_use >= SATURATED_SHARE * (self.cpus or 0)

    def more_cpus_change(self) -> str:
        return self.cpus_change(2 * (self.cpus or 0))

    def gibibytes(self, bytes_per_node: float) -> int:
        """Of one amount of a request, with a margin."""
        return max(math.ceil(MARGIN * bytes_per_node / self.spelling.memory_units / GIB), 1)

    def memory_change(self, bytes_per_node: float) -> str:
        """A request for that memory and a margin: `mem = "24G"`."""
        return self.spelling.memory.format(f"{self.gibibytes(bytes_per_node)}G")

    def time_change(self, seconds: float) -> str:
        """A request for that time and a margin: `time = "5h"`."""
        return self.spelling.time.format(show_duration(time_request(seconds)))

    def cpus_of_unit(self, cpus_per_node: float) -> int:
        return max(math.ceil(cpus_per_node / self.spelling.cpu_units), 1)

    def cpus_change(self, cpus_per_node: float) -> str:
        return self.spelling.cpus.format(self.cpus_of_unit(cpus_per_node))

    def to_json(self) -> dict[str, Any]:
        fields = {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}
        for internal in _INTERNAL:
            del fields[internal]
        return {
            **fields,
            "started": iso(self.started),
            "ended": iso(self.ended),
            "node_names": list(self.node_names),
            "missing": self.missing or None,
            "gpu_busy": _json(self.busy),
            "gpu_memory": _json(self.gpu_memory),
            "gpu_memory_total": self.gpu_memory_total,
            "power": _json(self.power),
            "power_cap": self.power_cap,
            "cpu": _json(self.cpu),
            "cpus_per_node": self.cpus_per_node,
            "node_memory": _json(self.node_memory),
            "memory_per_node": self.memory_per_node,
            "samples_per_second": self.samples_per_second,
            "measured": self.measured.to_json(),
        }


def _sum(ranges: Iterable[Range | None]) -> Range | None:
    known = [each for each in ranges if each is not None]
    return Range(*map(sum, zip(*known, strict=True))) if known else None


def _json(found: Range | None) -> list[float] | None:
    return None if found is None else list(found)


_ROUND_UP = ((3600, 300), (6 * 3600, 1800), (86400, 3600))
"""Up to so many seconds, a multiple of so many."""
_DAYS_ROUND_UP = 6 * 3600


def time_request(seconds: float) -> int:
    """That time with a margin, rounded up."""
    seconds *= MARGIN
    step = next((step for most, step in _ROUND_UP if seconds <= most), _DAYS_ROUND_UP)
    return math.ceil(seconds / step) * step


def amount(count: float | None) -> str:
    """`24 GiB`, `3.4 GiB`, `512 MiB`."""
    if count is None:
        return "?"
    if count >= 10 * GIB:
        return f"{count / GIB:.0f} GiB"
    return f"{count / GIB:.1f} GiB" if count >= GIB else f"{count / (1 << 20):.0f} MiB"


MOST_NODES_NAMED = 3


def gpus_by_node(gpus: tuple[GpuFigures, ...]) -> str:
    """`n03: 4, 5; n07: 0; and 2 more nodes`."""
    by_host: dict[str, list[str]] = {}
    for gpu in gpus:
        by_host.setdefault(gpu.host, []).append(gpu.gpu)
    shown = [f"{host}: {', '.join(each)}" for host, each in list(by_host.items())[:MOST_NODES_NAMED]]
    left = len(by_host) - MOST_NODES_NAMED
    more = [f"and {counted(left, 'more node')}"] if left > 0 else []
    return "; ".join([*shown, *more])


def gpu_name(gpu: GpuFigures) -> str:
    """`GPU 4 on n03 (rank 12)`."""
    return f"GPU {gpu.gpu} on {gpu.host}" + (f" (rank {gpu.rank})" if gpu.rank is not None else "")


def percent(share: float) -> str:
    return f"{100 * share:.0f} %"


STEP_TIME, DATA_WAIT, GPU_BUSY, GPU_POWER, RANK_MEMORY = "step-time", "data-wait", "gpu-busy", "gpu-power", "memory"


@dataclass(frozen=True)
class Spread:
    kind: str
    count: int
    """How many ranks or GPUs are compared."""
    median: float
    extreme: float
    """The highest; of `gpu-busy` and `gpu-power` the lowest, because the others wait for that one."""
    where: str
    """`rank 12 on n03`."""
    host: str

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def spreads(usage: Usage) -> list[Spread]:
    """Those of which two or more values are known. Nodes of a short earlier attempt are not compared."""
    ranks = [(f"rank {rank.rank} on {rank.host}", rank) for rank in usage.measured.ranks]
    longest = max((gpu.seconds for gpu in usage.rated_gpus), default=0.0)
    gpus = [(gpu_name(gpu), gpu) for gpu in usage.rated_gpus if gpu.seconds >= longest / 2]
    found = [
        _spread(STEP_TIME, max, [(rank.step_seconds, where, rank.host) for where, rank in ranks]),
        _spread(DATA_WAIT, max, [(rank.data_wait, where, rank.host) for where, rank in ranks]),
        _spread(GPU_BUSY, min, [(gpu.busy and gpu.busy.mean, where, gpu.host) for where, gpu in gpus]),
        _spread(GPU_POWER, min, [(gpu.power and gpu.power.mean, where, gpu.host) for where, gpu in gpus]),
        _spread(RANK_MEMORY, max, [(rank.memory and rank.memory.maximum, where, rank.host) for where, rank in ranks]),
    ]
    return [each for each in found if each is not None]


def _spread(kind: str, choose: Callable[..., Any], values: Sequence[tuple[float | None, str, str]]) -> Spread | None:
    known = [(value, where, host) for value, where, host in values if value is not None]
    if len(known) < 2:
        return None
    extreme, where, host = choose(known, key=lambda each: each[0])
    return Spread(kind, len(known), statistics.median(value for value, _, _ in known), extreme, where, host)
