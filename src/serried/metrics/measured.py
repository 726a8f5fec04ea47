"""The samples of a run in a few numbers for each GPU, rank and node: what `serried report` shows and judges."""

from __future__ import annotations

import dataclasses
import operator
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from serried.metrics.samples import NodeSamples, Period, Quantities, Range, Samples, by_number, number_in, range_in

IDLE_PERCENT = 5.0
"""Below this share of the time a GPU counts as idle (slurmwatch)."""
HELD_BYTES = 1 << 30
"""More memory than this on a GPU belongs to a program; the driver itself holds some hundred MB."""


@dataclass(frozen=True)
class GpuFigures:
    host: str
    node: int
    gpu: str
    """Its index as the job's programs use it."""
    name: str = ""
    rank: int | None = None
    """The only rank that can use it, if each GPU of the node has one."""
    busy: Range | None = None
    """Percent of the time."""
    memory: Range | None = None
    memory_total: float | None = None
    """Bytes, as all amounts of memory."""
    power: Range | None = None
    power_cap: float | None = None
    """Watts."""
    temperature: Range | None = None
    sm_active: Range | None = None
    throttled: Mapping[str, float] = field(default_factory=dict)
    """By reason, the share of the time."""
    ecc_errors: int = 0
    xids: tuple[int, ...] = ()
    """Errors that the driver reported."""
    seconds: float = 0.0
    """How long it was measured."""
    holding_seconds: float = 0.0
    """The longest time for which it was idle and a program held memory on it."""
    lost_at: float | None = None
    """When it was last seen, if the samples of its node go on without it."""

    @property
    def is_mig(self) -> bool:
        """A slice of a GPU, for which the driver reports no use."""
        return "MIG" in self.name.upper()


@dataclass(frozen=True)
class RankFigures:
    rank: int
    host: str
    node: int
    cpu: Range | None = None
    """Cores."""
    memory: Range | None = None
    steps_per_second: float | None = None
    samples_per_second: float | None = None
    data_wait: float | None = None
    """Share of the time that it waited for data."""
    step: int | None = None
    total_steps: int | None = None

    @property
    def step_seconds(self) -> float | None:
        return 1 / self.steps_per_second if self.steps_per_second else None


@dataclass(frozen=True)
class NodeFigures:
    host: str
    node: int
    cpus: float | None = None
    cpu: Range | None = None
    """Cores in use."""
    memory: Range | None = None
    memory_total: float | None = None
    """The job's limit on the node, or the node's memory, as `memory_scope` says."""
    memory_scope: str = ""
    disk_free: float | None = None
    """The least that was left on the node's disk."""
    seconds: float = 0.0


@dataclass(frozen=True)
class Measurements:
    """Everything that was measured of a run or a task, over all attempts."""

    nodes: tuple[NodeFigures, ...] = ()
    gpus: tuple[GpuFigures, ...] = ()
    ranks: tuple[RankFigures, ...] = ()
    source: str = ""
    """`nvml`, `nvidia-smi` …; empty without GPUs."""
    interval: float | None = None
    lines: int = 0
    one_in: int = 1
    damaged: int = 0
    disordered: int = 0
    without: tuple[tuple[int, int], ...] = ()
    """Attempt and node of each without samples."""

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Measurements:
        """What `to_json` gave, as read from a file. Raises ValueError."""
        try:
            return cls(
                nodes=tuple(_built(NodeFigures, each) for each in value["nodes"]),
                gpus=tuple(_built(GpuFigures, each) for each in value["gpus"]),
                ranks=tuple(_built(RankFigures, each) for each in value["ranks"]),
                without=tuple((int(attempt), int(node)) for attempt, node in value["without"]),
                **{name: value[name] for name in ("source", "interval", "lines", "one_in", "damaged", "disordered")},
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a summary of samples ({error!r})") from error


def measured_of(samples: Samples) -> Measurements:
    """The numbers of all attempts together: nodes and GPUs by the name of the host, ranks by their number."""
    hosts: dict[str, list[NodeSamples]] = {}
    for node in samples.nodes:
        hosts.setdefault(node.host, []).append(node)
    parts = sorted(hosts.values(), key=lambda each: (each[-1].node, each[-1].host))
    return Measurements(
        nodes=tuple(map(_node, parts)),
        gpus=tuple(gpu for each in parts for gpu in _gpus(each)),
        ranks=_ranks(samples.nodes),
        source=next((node.gpu_source for node in samples.nodes if node.gpu_source), ""),
        interval=next((node.interval for node in samples.nodes if node.interval), None),
        lines=sum(node.lines for node in samples.nodes),
        one_in=samples.one_in,
        damaged=samples.damaged,
        disordered=samples.disordered,
        without=samples.without,
    )


def combined(ranges: Iterable[tuple[float, Range | None]]) -> Range | None:
    """One range for several, whose means count by their weights; None for none."""
    known = [(weight, *each) for weight, each in ranges if each is not None]
    if not known:
        return None
    weights, lows, means, highs = zip(*known, strict=True)
    total = sum(weights)
    mean = sum(map(operator.mul, weights, means)) / total if total else means[0]
    return Range(min(lows), mean, max(highs))


def _over(periods: Iterable[tuple[Period, Quantities]], name: str) -> Range | None:
    return combined([(period.seconds, range_in(quantities, name)) for period, quantities in periods])


def _node(files: list[NodeSamples]) -> NodeFigures:
    periods = [(period, period.node) for each in files for period in each.periods]
    about = files[-1].about
    free = [number_in(quantities, "disk_free") for _, quantities in periods]
    return NodeFigures(
        host=files[-1].host,
        node=files[-1].node,
        cpus=number_in(about, "cpus"),
        cpu=_over(periods, "cpu"),
        memory=_over(periods, "memory"),
        memory_total=number_in(about, "memory"),
        memory_scope=str(about.get("memory_scope") or ""),
        disk_free=min((each for each in free if each is not None), default=None),
        seconds=sum(each.one_in * period.seconds for each in files for period in each.periods),
    )


def _gpus(files: list[NodeSamples]) -> list[GpuFigures]:
    known = {gpu for each in files for gpu in each.gpus}
    known |= {gpu for each in files for period in each.periods for gpu in period.gpus}
    ordered = sorted(known, key=by_number)
    ranks = sorted({rank for period in files[-1].periods for rank in period.ranks}, key=by_number)
    owners = dict(zip(ordered, ranks, strict=True)) if len(ranks) == len(ordered) else {}
    return [_gpu(files, gpu, owners.get(gpu, "")) for gpu in ordered]


def _gpu(files: list[NodeSamples], gpu: str, rank: str) -> GpuFigures:
    periods = [(period, period.gpus[gpu]) for each in files for period in each.periods if gpu in period.gpus]
    about: Quantities = next((each.gpus[gpu] for each in reversed(files) if gpu in each.gpus), {})
    last = files[-1]
    seen = [period.t for period in last.periods if gpu in period.gpus]
    seconds = sum(period.seconds for period, _ in periods)
    throttled: Counter[str] = Counter()
    for period, quantities in periods:
        for cause in _texts(quantities.get("throttled")):
            throttled[cause] += period.seconds / seconds if seconds else 0  # type: ignore[assignment]
    errors = [number_in(quantities, "ecc_errors") for _, quantities in periods]
    return GpuFigures(
        host=last.host,
        node=last.node,
        gpu=gpu,
        name=str(about.get("name") or ""),
        rank=int(rank) if rank.isdecimal() else None,
        busy=_over(periods, "busy"),
        memory=_over(periods, "memory"),
        memory_total=number_in(about, "memory"),
        power=_over(periods, "power"),
        power_cap=number_in(about, "power_cap"),
        temperature=_over(periods, "temperature"),
        sm_active=_over(periods, "sm_active"),
        throttled=dict(throttled),
        ecc_errors=int(max((each for each in errors if each is not None), default=0)),
        xids=tuple(sorted({xid for _, quantities in periods for xid in _numbers(quantities.get("xid"))})),
        seconds=sum(each.one_in * period.seconds for each in files for period in each.periods if gpu in period.gpus),
        holding_seconds=max((_holding(each, gpu) for each in files), default=0.0),
        lost_at=seen[-1] if seen and seen[-1] < last.periods[-1].t else None,
    )


def _holding(file: NodeSamples, gpu: str) -> float:
    longest = stretch = 0.0
    for period in file.periods:
        quantities = period.gpus.get(gpu, {})
        busy, memory = range_in(quantities, "busy"), range_in(quantities, "memory")
        holds = busy is not None and memory is not None and busy.mean < IDLE_PERCENT and memory.minimum > HELD_BYTES
        stretch = stretch + period.seconds * file.one_in if holds else 0.0
        longest = max(longest, stretch)
    return longest


def _ranks(files: Iterable[NodeSamples]) -> tuple[RankFigures, ...]:
    periods: dict[str, list[tuple[Period, Quantities]]] = {}
    homes: dict[str, NodeSamples] = {}
    for file in files:
        for period in file.periods:
            for rank, quantities in period.ranks.items():
                periods.setdefault(rank, []).append((period, quantities))
                homes[rank] = file
    ordered = sorted((rank for rank in periods if rank.isdecimal() and rank.isascii()), key=int)
    return tuple(_rank(int(rank), homes[rank], periods[rank]) for rank in ordered)


def _rank(rank: int, home: NodeSamples, periods: list[tuple[Period, Quantities]]) -> RankFigures:
    steps = _over(periods, "steps_per_second")
    samples = _over(periods, "samples_per_second")
    wait = _over(periods, "data_wait")
    last = [number_in(quantities, "step") for _, quantities in periods]
    totals = [number_in(quantities, "total_steps") for _, quantities in periods]
    return RankFigures(
        rank=rank,
        host=home.host,
        node=home.node,
        cpu=_over(periods, "cpu"),
        memory=_over(periods, "memory"),
        steps_per_second=steps and steps.mean,
        samples_per_second=samples and samples.mean,
        data_wait=wait and wait.mean,
        step=_last_integer(last),
        total_steps=_last_integer(totals),
    )


def _last_integer(values: Iterable[float | None]) -> int | None:
    known = [value for value in values if value is not None]
    return int(known[-1]) if known else None


def _texts(value: Any) -> list[str]:
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []


def _numbers(value: Any) -> list[int]:
    return [each for each in value if isinstance(each, int)] if isinstance(value, list) else []


def _built(kind: Any, value: Mapping[str, Any]) -> Any:
    """From the known fields; lists of three numbers are ranges."""
    names = {each.name for each in dataclasses.fields(kind)}
    return kind(**{name: _restored(name, each) for name, each in value.items() if name in names})


def _restored(name: str, value: Any) -> Any:
    if name == "xids":
        return tuple(value)
    return Range(*value) if isinstance(value, list) else value
