"""The samples of a run in a few numbers for each GPU, rank and node: what `serried report` shows and judges."""

from __future__ import annotations

import dataclasses
import operator
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from serried.records.samples import (
    NodeSamples,
    Period,
    Quantities,
    Range,
    Samples,
    by_number,
    number_in,
    range_in,
    without_collection,
)

IDLE_PERCENT = 5.0
"""Below this share of the time a GPU counts as idle (slurmwatch)."""
HELD_BYTES = 1 << 30
"""More memory than this on a GPU belongs to a program; the driver itself holds some hundred MB."""
LOST_SECONDS = 120.0
"""A driver may fail to answer for a while, as at the end of an attempt."""
_FEWEST_IDLE = 4
"""Where lines were left out, an idle phase has so many lines in a row: fewer may be as many short pauses."""
_SLICE = re.compile(r"\dg\.\d+gb")
"""`a100_1g.5gb`, as schedulers call slices."""


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
    """When the driver reported it last, if that was two minutes before the last sample of its node."""

    @property
    def is_mig(self) -> bool:
        """A slice of a GPU, for which the driver reports no use."""
        return "MIG" in self.name.upper() or _SLICE.search(self.name) is not None


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
    """`nvml` or `amdgpu`; empty without GPUs."""
    interval: float | None = None
    lines: int = 0
    one_in: int = 1
    damaged: int = 0
    disordered: int = 0
    without: tuple[tuple[int, int], ...] = ()
    """Attempt and node of each without samples."""
    unread: int = 0
    """Nodes that were not read, because they are too many."""

    @property
    def samples_per_second(self) -> float | None:
        """Of all ranks; those of nodes that were not read count as much as the others."""
        known = [rank.samples_per_second for rank in self.ranks if rank.samples_per_second]
        return sum(known) * (1 + self.unread / max(len(self.nodes), 1)) if known else None

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
                unread=int(value.get("unread", 0)),
                **{name: value[name] for name in ("source", "interval", "lines", "one_in", "damaged", "disordered")},
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a summary of samples ({error!r})") from error


@without_collection()
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
        unread=samples.unread,
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
        memory=_with_peak(_over(periods, "memory"), periods),
        memory_total=number_in(about, "memory"),
        memory_scope=str(about.get("memory_scope") or ""),
        disk_free=min((each for each in free if each is not None), default=None),
        seconds=sum(each.one_in * period.seconds for each in files for period in each.periods),
    )


def _with_peak(memory: Range | None, periods: Iterable[tuple[Period, Quantities]]) -> Range | None:
    """With the peak that each line carries on, for lines that were not read."""
    peaks = [number_in(quantities, "memory_peak") or 0.0 for _, quantities in periods]
    return memory and memory._replace(maximum=max([memory.maximum, *peaks]))


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
        lost_at=_lost_at(last.periods, gpu),
    )


def _lost_at(periods: Sequence[Period], gpu: str) -> float | None:
    seen = max((at for at, period in enumerate(periods) if period.gpus.get(gpu, {}).keys() - {"xid"}), default=None)
    if seen is None or len(periods) - seen <= 2:  # the last line of an attempt may lack what the driver answered late
        return None
    return periods[seen].t if periods[-1].t - periods[seen].t >= LOST_SECONDS else None


def _holding(file: NodeSamples, gpu: str) -> float:
    longest = 0.0
    idle: list[Period] = []
    for period in file.periods:
        quantities = period.gpus.get(gpu, {})
        busy, memory = range_in(quantities, "busy"), range_in(quantities, "memory")
        holds = busy is not None and memory is not None and busy.mean < IDLE_PERCENT and memory.minimum > HELD_BYTES
        if holds:
            idle.append(period)
        else:
            longest, idle = max(longest, _length(idle, file.one_in)), []
    return max(longest, _length(idle, file.one_in))


def _length(idle: Sequence[Period], one_in: int) -> float:
    """Seconds, at least as far as the lines tell; clocks may jump."""
    if one_in == 1:
        return sum(period.seconds for period in idle)
    if len(idle) < _FEWEST_IDLE:
        return 0.0
    return min(idle[-1].t - idle[0].t, one_in * sum(period.seconds for period in idle[1:]))


def _ranks(files: Iterable[NodeSamples]) -> tuple[RankFigures, ...]:
    periods: dict[str, list[tuple[NodeSamples, list[tuple[Period, Quantities]]]]] = {}
    for file in files:
        for rank in dict.fromkeys(rank for period in file.periods for rank in period.ranks):
            of_file = [(period, period.ranks[rank]) for period in file.periods if rank in period.ranks]
            periods.setdefault(rank, []).append((file, of_file))
    ordered = sorted((rank for rank in periods if rank.isdecimal() and rank.isascii()), key=int)
    return tuple(_rank(int(rank), periods[rank]) for rank in ordered)


def _rank(rank: int, files: Sequence[tuple[NodeSamples, Sequence[tuple[Period, Quantities]]]]) -> RankFigures:
    home = files[-1][0]
    periods = [each for _, of_file in files for each in of_file]
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
        steps_per_second=_counted_rate(files) or (steps and steps.mean),
        samples_per_second=samples and samples.mean,
        data_wait=wait and wait.mean,
        step=_last_integer(last),
        total_steps=_last_integer(totals),
    )


def _counted_rate(files: Iterable[tuple[NodeSamples, Sequence[tuple[Period, Quantities]]]]) -> float | None:
    """Steps per second from the first to the last line of each file: it does not depend on the lines between."""
    steps = seconds = 0.0
    for file, periods in files:
        known = [(period, step) for period, each in periods if (step := number_in(each, "step")) is not None]
        if len(known) < 2:
            continue
        passed, expected = known[-1][0].t - known[0][0].t, file.one_in * sum(period.seconds for period, _ in known[1:])
        if known[-1][1] > known[0][1] and 0.4 * expected <= passed <= 1.5 * expected:  # the clock did not jump
            steps, seconds = steps + known[-1][1] - known[0][1], seconds + passed
    return steps / seconds if seconds else None


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
