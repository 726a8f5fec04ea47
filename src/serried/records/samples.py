"""The samples of a run, from the files of all its attempts and nodes; and rows for programs that read tables.

The format is that of `serried.schema.live`. A run of days on many nodes has gigabytes of samples. So beyond a
number of lines in all, a reader looks at some lines of each file, spread over it. Rows come from every line.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import gc
import operator
import os
import re
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from serried.base import NamedTuple
from serried.base.files import json_object, numbers, open_regular
from serried.schema import series
from serried.schema.layout import AttemptDirectory, TaskDirectory
from serried.schema.series import number

_Item = TypeVar("_Item")
Quantities = Mapping[str, Any]
"""What a line says of a node, a GPU or a rank. `range_in` and `number_in` read it, whatever it holds."""

MOST_NODES = 128
"""Of more nodes, so many are read, evenly spread: the samples of thousands would take minutes and gigabytes."""
MOST_LINES = 2_000
"""How many lines a reader parses in all."""
_FEWEST_LINES = 16
"""Of each file, however many there are."""
_HEAD = 1 << 16
_ROOM = 1 << 10
_LONGEST_LINE = 1 << 18
_GOLDEN = (5**0.5 - 1) / 2
_FAR = 1.5
"""A period farther from the middle of its file than so many lengths of the file has a wrong time."""
_LATEST = 1e11
"""A time after the year 5000 comes from a broken clock, or is in milliseconds."""


class Range(NamedTuple):
    minimum: float
    mean: float
    maximum: float


@dataclass(frozen=True)
class Period:
    t: float
    """Its end, in seconds since 1970 by the node's clock."""
    seconds: float
    node: Quantities
    gpus: Mapping[str, Quantities]
    ranks: Mapping[str, Quantities]


@dataclass(frozen=True)
class NodeSamples:
    """One file: a node in an attempt."""

    attempt: int
    node: int
    host: str
    interval: float | None
    """Seconds between two samples."""
    about: Quantities
    """`cpus`, `memory` and `memory_scope` of the node."""
    gpus: Mapping[str, Quantities]
    """`name`, `uuid`, `memory` and `power_cap` of each GPU, by the index that the job's programs use."""
    gpu_source: str
    periods: tuple[Period, ...]
    """In the order of time."""
    lines: int
    """How many lines were read."""
    damaged: int
    """Lines that could not be used: torn, binary, or without a time."""
    disordered: int
    """Periods that ended before the one in the line above: the clock was set back, or lines changed places."""
    one_in: int
    """Only one line of so many was read; 1 if all were."""

    def plausible_periods(self) -> Sequence[Period]:
        """Without periods whose clock was far off. Never empty."""
        middle = self.periods[len(self.periods) // 2].t
        room = _FAR * self.one_in * sum(period.seconds for period in self.periods)
        return [period for period in self.periods if abs(period.t - middle) <= room]


@dataclass(frozen=True)
class Samples:
    nodes: tuple[NodeSamples, ...] = ()
    """In the order of attempts and nodes."""
    without: tuple[tuple[int, int], ...] = ()
    """Attempt and node of each that took part but has no usable sample."""
    unread: int = 0
    """Nodes that were not read, because they are too many."""


@contextlib.contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Looking for cycles among a million small objects would take half of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@_without_garbage_collection()
def read(place: TaskDirectory, *, attempt: int | None = None, most_lines: int = MOST_LINES) -> Samples:
    """The samples of a run or of one task, in all attempts or in one. Missing files are no error.

    Of very many nodes, and of long files, a part is read.
    """
    chosen = numbers(place.attempts) if attempt is None else [attempt]
    places = [(number, node) for number in chosen for node in nodes_of(place.attempt(number))]
    known = sorted({node for _, node in places})
    read = known
    if len(known) > MOST_NODES:
        read = [known[at * len(known) // MOST_NODES] for at in range(MOST_NODES)]
    places = [(number, node) for number, node in places if node in {*read}]
    share = max(most_lines // max(len(places), 1), _FEWEST_LINES)
    files = [_read_node(place.attempt(number), number, node, share) for number, node in places]
    without = tuple((file.attempt, file.node) for file in files if not file.periods)
    files = [file for file in files if file.periods]
    # The nodes of a lab share the name of their machine.
    counts = Counter((file.attempt, file.host) for file in files)
    shared = {host for (_, host), count in counts.items() if count > 1}
    for at, file in enumerate(files):
        if file.host in shared:
            files[at] = dataclasses.replace(file, host=f"{file.host} (node {file.node})")
    return Samples(tuple(files), without, unread=len(known) - len(read))


def newest(path: Path, count: int) -> list[Period]:
    """The last periods in a file, in the order of time: for a reader that looks again and again."""
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            lines = _last_lines(file, size, count)
    except OSError:
        return []
    periods = [period for line in lines for period in [_period(json_object(line))] if period is not None]
    return sorted(periods, key=lambda period: period.t)


def stream(path: Path) -> Iterator[tuple[Quantities, Period]]:
    """All periods of a file, in the order of its lines, each with the description of the node above it.

    Needs little memory, however long the file is.
    """
    about: Quantities = {}
    try:
        with open_regular(path) as file:
            while line := file.readline(_LONGEST_LINE):
                entry = json_object(line)
                period = _period(entry)
                if period is not None:
                    yield about, period
                elif entry is not None and "interval" in entry:
                    about = entry
    except OSError:
        return


def range_in(quantities: Quantities, name: str) -> Range | None:
    """The range of that name; None if it is missing or damaged."""
    value = quantities.get(name)
    if type(value) is not list or len(value) != len(Range._fields):
        return None
    low, mean, high = map(number, value)
    return Range(low, mean, high) if low is not None and mean is not None and high is not None else None


def number_in(quantities: Quantities, name: str) -> float | None:
    """The number of that name; None if it is missing or damaged."""
    return number(quantities.get(name))


def by_number(key: str) -> tuple[int, str]:
    """Sorts `2` before `10`, and what is not a number last."""
    return (int(key), key) if key.isdecimal() and key.isascii() else (1 << 62, key)


def nodes_of(attempt: AttemptDirectory) -> list[int]:
    """The nodes that took part: each has a folder."""
    try:
        names = os.listdir(attempt.path)  # noqa: PTH208 - names are enough
    except OSError:
        return []
    found = [name.removeprefix("node-") for name in names if name.startswith("node-")]
    return sorted(int(number) for number in found if number.isdecimal() and number.isascii())


def _read_node(attempt: AttemptDirectory, number: int, node: int, most: int) -> NodeSamples:
    lines, one_in = _lines_of(attempt.samples(node), most)
    about: dict[str, Any] = {}
    gpus: dict[str, Quantities] = {}
    periods: list[Period] = []
    damaged = 0
    for line in lines:
        entry = json_object(line)
        period = _period(entry)
        if period is not None:
            periods.append(period)
        elif entry is not None and "interval" in entry:
            about = entry
            gpus.update(_mappings(entry, "gpus"))
        else:
            damaged += 1
    disordered = sum(later.t < earlier.t for earlier, later in zip(periods, periods[1:]))
    return NodeSamples(
        attempt=number,
        node=node,
        host=str(about.get("host") or f"node {node}"),
        interval=number_in(about, "interval"),
        about=_mapping(about, "node"),
        gpus=gpus,
        gpu_source=str(about.get("gpu_source") or ""),
        periods=tuple(sorted(periods, key=lambda period: period.t)),
        lines=len(lines),
        damaged=damaged,
        disordered=disordered,
        one_in=one_in,
    )


def _period(entry: dict[str, Any] | None) -> Period | None:
    if entry is None:
        return None
    t, seconds = number_in(entry, "t"), number_in(entry, "seconds")
    if t is None or seconds is None or not 0 < t < _LATEST or not 0 <= seconds < _LATEST:
        return None
    return Period(t, seconds, _mapping(entry, "node"), _mappings(entry, "gpus"), _mappings(entry, "ranks"))


def _mapping(entry: Mapping[str, Any], name: str) -> Quantities:
    value = entry.get(name)
    return value if isinstance(value, dict) else {}


def _mappings(entry: Mapping[str, Any], name: str) -> dict[str, Quantities]:
    return {key: value for key, value in _mapping(entry, name).items() if isinstance(value, dict)}


def _lines_of(path: Path, most: int) -> tuple[list[bytes], int]:
    """At most about `most` lines of a file, and one in how many these are."""
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            head = file.read(_HEAD)
            length = max(len(head) // max(head.count(b"\n"), 1), 1)
            if size <= most * length:
                return _whole(head + file.read(max(size - len(head), 0))), 1
            return [head.partition(b"\n")[0], *_spread(file, size, most, length)], -(-size // (most * length))
    except OSError:
        return [], 1


def _whole(text: bytes) -> list[bytes]:
    """Its lines. A last one without an end, which a node may be writing now, counts only if it is complete."""
    *lines, rest = text.split(b"\n")
    return [*(line for line in lines if line), *([rest] if json_object(rest) is not None else [])]


def _spread(file: BinaryIO, size: int, most: int, length: int) -> Iterator[bytes]:
    """The first whole line after each of `most` places, and the last one.

    Equal distances would fall into step with evaluations at regular times, so each place moves by another part of the
    distance: by the golden ratio, the same for all files.
    """
    read_to = 0
    for place in range(most):
        offset = int((place + place * _GOLDEN % 1) * size / most)
        if offset < read_to:
            continue
        line, read_to = _line_after(file, offset, length)
        if line is not None:
            yield line
    if read_to < size - 1:
        yield from _last_lines(file, size, 1)


def _line_after(file: BinaryIO, offset: int, length: int) -> tuple[bytes | None, int]:
    """The line that begins after `offset`, and the place where it ends."""
    window = 2 * length + _ROOM
    while True:
        chunk = os.pread(file.fileno(), window, offset)
        begin = chunk.find(b"\n") + 1
        end = chunk.find(b"\n", begin) if begin else -1
        if end >= 0:
            return chunk[begin:end], offset + end
        if len(chunk) < window or window > _LONGEST_LINE:
            return (None, offset + len(chunk)) if len(chunk) < window else (b"", offset + window)
        window *= 4


def _last_lines(file: BinaryIO, size: int, count: int) -> list[bytes]:
    window = _HEAD
    while True:
        start = max(size - window, 0)
        lines = _whole(os.pread(file.fileno(), window, start))
        if not start:
            return lines[-count:]
        if len(lines) > count or window > count * _LONGEST_LINE:
            return lines[1:][-count:]
        window *= 4


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
                nodes=tuple(_figures(NodeFigures, node) for node in value["nodes"]),
                gpus=tuple(_figures(GpuFigures, gpu) for gpu in value["gpus"]),
                ranks=tuple(_figures(RankFigures, rank) for rank in value["ranks"]),
                without=tuple((int(attempt), int(node)) for attempt, node in value["without"]),
                unread=int(value.get("unread", 0)),
                **{name: value[name] for name in ("source", "interval", "lines", "one_in", "damaged", "disordered")},
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a summary of samples ({error!r})") from error


@_without_garbage_collection()
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
        one_in=max((node.one_in for node in samples.nodes), default=1),
        damaged=sum(node.damaged for node in samples.nodes),
        disordered=sum(node.disordered for node in samples.nodes),
        without=samples.without,
        unread=samples.unread,
    )


def combined(ranges: Iterable[tuple[float, Range | None]]) -> Range | None:
    """One range for several, whose means count by their weights; None for none."""
    known = [(weight, *each) for weight, each in ranges if each is not None]
    if not known:
        return None
    weights, lows, means, highs = zip(*known)
    total = sum(weights)
    mean = sum(map(operator.mul, weights, means)) / total if total else means[0]
    return Range(min(lows), mean, max(highs))


_Readings = Sequence[tuple[Period, Quantities]]
"""What the periods say of one node, GPU or rank."""


def _over(readings: _Readings, name: str) -> Range | None:
    return combined([(period.seconds, range_in(quantities, name)) for period, quantities in readings])


def _numbers(readings: _Readings, name: str) -> list[float]:
    values = [number_in(quantities, name) for _, quantities in readings]
    return [value for value in values if value is not None]


def _node(files: list[NodeSamples]) -> NodeFigures:
    periods = [(period, period.node) for each in files for period in each.periods]
    about, memory = files[-1].about, _over(periods, "memory")
    # Each line carries the peak on, for lines that are not read.
    memory = memory and memory._replace(maximum=max([memory.maximum, *_numbers(periods, "memory_peak")]))
    return NodeFigures(
        host=files[-1].host,
        node=files[-1].node,
        cpus=number_in(about, "cpus"),
        cpu=_over(periods, "cpu"),
        memory=memory,
        memory_total=number_in(about, "memory"),
        memory_scope=str(about.get("memory_scope") or ""),
        disk_free=min(_numbers(periods, "disk_free"), default=None),
        seconds=sum(each.one_in * period.seconds for each in files for period in each.periods),
    )


def _gpus(files: list[NodeSamples]) -> list[GpuFigures]:
    known = {gpu for each in files for gpu in each.gpus}
    known |= {gpu for each in files for period in each.periods for gpu in period.gpus}
    ordered = sorted(known, key=by_number)
    ranks = sorted({rank for period in files[-1].periods for rank in period.ranks}, key=by_number)
    owners = dict(zip(ordered, ranks)) if len(ranks) == len(ordered) else {}
    return [_gpu(files, gpu, owners.get(gpu, "")) for gpu in ordered]


def _gpu(files: list[NodeSamples], gpu: str, rank: str) -> GpuFigures:
    periods = [(period, period.gpus[gpu]) for each in files for period in each.periods if gpu in period.gpus]
    about: Quantities = next((each.gpus[gpu] for each in reversed(files) if gpu in each.gpus), {})
    last = files[-1]
    seconds = sum(period.seconds for period, _ in periods)
    throttled: Counter[str] = Counter()
    for period, quantities in periods:
        for cause in _items(quantities, "throttled", str):
            throttled[cause] += period.seconds / seconds if seconds else 0  # type: ignore[assignment]
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
        ecc_errors=int(max(_numbers(periods, "ecc_errors"), default=0)),
        xids=tuple(sorted({xid for _, quantities in periods for xid in _items(quantities, "xid", int)})),
        seconds=sum(each.one_in * period.seconds for each in files for period in each.periods if gpu in period.gpus),
        holding_seconds=max((_holding(each, gpu) for each in files), default=0.0),
        lost_at=_lost_at(last.periods, gpu),
    )


def _lost_at(periods: Sequence[Period], gpu: str) -> float | None:
    seen = max((at for at, period in enumerate(periods) if period.gpus.get(gpu, {}).keys() - {"xid"}), default=None)
    if seen is None or len(periods) - seen <= 2:  # the last line of an attempt may lack what the driver answered late
        return None
    return periods[seen].t if periods[-1].t - periods[seen].t >= LOST_SECONDS else None


def _items(quantities: Quantities, name: str, kind: type[_Item]) -> list[_Item]:
    value = quantities.get(name)
    return [item for item in value if isinstance(item, kind)] if isinstance(value, list) else []


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
    periods: dict[str, list[tuple[NodeSamples, _Readings]]] = {}
    for file in files:
        for rank in dict.fromkeys(rank for period in file.periods for rank in period.ranks):
            of_file = [(period, period.ranks[rank]) for period in file.periods if rank in period.ranks]
            periods.setdefault(rank, []).append((file, of_file))
    ordered = sorted((rank for rank in periods if rank.isdecimal() and rank.isascii()), key=int)
    return tuple(_rank(int(rank), periods[rank]) for rank in ordered)


def _rank(rank: int, files: Sequence[tuple[NodeSamples, _Readings]]) -> RankFigures:
    home = files[-1][0]
    periods = [reading for _, of_file in files for reading in of_file]
    steps = _over(periods, "steps_per_second")
    samples = _over(periods, "samples_per_second")
    wait = _over(periods, "data_wait")
    reached, totals = _numbers(periods, "step"), _numbers(periods, "total_steps")
    return RankFigures(
        rank=rank,
        host=home.host,
        node=home.node,
        cpu=_over(periods, "cpu"),
        memory=_over(periods, "memory"),
        steps_per_second=_counted_rate(files) or (steps and steps.mean),
        samples_per_second=samples and samples.mean,
        data_wait=wait and wait.mean,
        step=int(reached[-1]) if reached else None,
        total_steps=int(totals[-1]) if totals else None,
    )


def _counted_rate(files: Iterable[tuple[NodeSamples, _Readings]]) -> float | None:
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


def _figures(kind: Any, values: Mapping[str, Any]) -> Any:
    """From the known fields, whose lists are ranges except `xids`."""
    names = {field.name for field in dataclasses.fields(kind)}
    known = {name: value for name, value in values.items() if name in names}
    known |= {name: Range(*value) for name, value in known.items() if isinstance(value, list) and name != "xids"}
    return kind(**{**known, "xids": tuple(known["xids"])} if "xids" in known else known)


Row = dict[str, Any]
"""The value of each column; those that are unknown are missing."""

STEPS, GPUS, NODES, RANKS = "steps", "gpus", "nodes", "ranks"
"""What a row is about: a step that one rank logged, or a sample of a GPU, a node or a rank."""
_STEP_COLUMNS = ("time", "attempt", "rank", "step")
_RANGES = {
    GPUS: ("busy", "sm_active", "memory", "power", "temperature", "clock"),
    NODES: ("cpu", "memory", "disk_read", "disk_write", "net_in", "net_out"),
    RANKS: ("steps_per_second", "samples_per_second", "data_wait", "cpu", "memory", "read", "write"),
}
_VALUES = {GPUS: ("throttled", "ecc_errors", "xid"), NODES: ("disk_free",), RANKS: ("step", "total_steps")}
_NEWEST = 16
"""A reader that looks every second or so misses none of so many periods, which take half a minute each."""


class MeasuredRows:
    """What a run logged (STEPS) or what its nodes measured, as rows: complete, or as they come.

    `node` restricts samples to one node. `rank` restricts samples of ranks; it selects the rank of steps, by default
    the first that logged any.
    """

    def __init__(self, place: TaskDirectory, what: str, *, node: int | None = None, rank: int | None = None) -> None:
        self.what = what
        self._place, self._node, self._rank = place, node, rank
        self._new_steps = series.Follower(place, self.rank_of_steps) if what == STEPS else None
        self._seen: dict[Path, tuple[Quantities, deque[float]]] = {}
        """By file of samples: the description of its node, and the times of its last periods."""

    @property
    def rank_of_steps(self) -> int:
        return self._rank if self._rank is not None else next(iter(series.ranks(self._place)), 0)

    def columns(self, rows: Iterable[Row]) -> list[str]:
        if self.what == STEPS:
            known = [*_STEP_COLUMNS]
        else:
            keys = {GPUS: ["gpu"], RANKS: ["rank"]}.get(self.what, [])
            ranges = [f"{name}{end}" for name in _RANGES[self.what] for end in ("", "_min", "_max")]
            values = [*_VALUES[self.what]]
            found = [*values, *ranges] if self.what == RANKS else [*ranges, *values]
            known = ["time", "seconds", "attempt", "node", "host", *keys, *found]
        return [*known, *{name: None for row in rows for name in row if name not in known}]

    def rows(self) -> Iterator[Row]:
        """All. Steps that a later attempt repeats replace those of earlier ones; nodes come one after the other."""
        if self.what == STEPS:
            rank = self.rank_of_steps  # once: it lists folders
            for point in series.points(self._place, rank):
                yield _step_row(point.t, point.attempt, rank, point.step, point.values)
        for path, attempt, node in self._files():
            for about, period in stream(path):
                yield from self._rows_of(period, attempt, node, about)

    def new_rows(self) -> Iterator[Row]:
        """Those since the last call, at first all. Steps that a later attempt repeats come again."""
        if self._new_steps is not None:
            for _, attempt, entry in self._new_steps.look():
                if entry.step is not None:
                    yield _step_row(entry.t, attempt, self._new_steps.rank, entry.step, entry.values)
        fresh: list[tuple[float, list[Row]]] = []
        for path, attempt, node in self._files():
            if path not in self._seen:
                times: deque[float] = deque(maxlen=4 * _NEWEST)
                for about, period in stream(path):
                    times.append(period.t)
                    self._seen[path] = about, times
                    yield from self._rows_of(period, attempt, node, about)
                continue
            about, times = self._seen[path]
            for period in newest(path, _NEWEST):
                if period.t not in times:
                    times.append(period.t)
                    fresh.append((period.t, list(self._rows_of(period, attempt, node, about))))
        for _, rows_of_period in sorted(fresh, key=lambda entry: entry[0]):
            yield from rows_of_period

    def _files(self) -> Iterator[tuple[Path, int, int]]:
        """The path, attempt and node of each file of samples; none for steps."""
        for attempt in numbers(self._place.attempts) if self.what != STEPS else ():
            directory = self._place.attempt(attempt)
            for node in nodes_of(directory):
                if self._node in (None, node):
                    yield directory.samples(node), attempt, node

    def _rows_of(self, period: Period, attempt: int, node: int, about: Quantities) -> Iterator[Row]:
        host = str(about.get("host") or f"node {node}")
        begin = {"time": _moment(period.t), "seconds": period.seconds, "attempt": attempt, "node": node, "host": host}
        if self.what == NODES:
            yield {**begin, **_columns_of(period.node, NODES)}
            return
        name, entries = ("gpu", period.gpus) if self.what == GPUS else ("rank", period.ranks)
        for key in sorted(entries, key=by_number):
            index = int(key) if key.isdecimal() else key
            if self.what == GPUS or self._rank in (None, index):
                yield {**begin, name: index, **_columns_of(entries[key], self.what)}


def _step_row(t: float | None, attempt: int, rank: int, step: int, values: Mapping[str, Any]) -> Row:
    named = {f"metrics.{name}" if name in _STEP_COLUMNS else name: value for name, value in values.items()}
    return {"time": _moment(t), "attempt": attempt, "rank": rank, "step": step, **named}


def _columns_of(quantities: Quantities, what: str) -> Row:
    row: Row = {}
    for name in _RANGES[what]:
        found = range_in(quantities, name)
        if found is not None:
            row.update({name: found.mean, f"{name}_min": found.minimum, f"{name}_max": found.maximum})
    for name in _VALUES[what]:
        value = quantities.get(name)
        if isinstance(value, (int, float, list)) and not isinstance(value, bool):
            row[name] = value
    for name, value in _mapping(quantities, "metrics").items():
        if isinstance(value, (int, float, str)):
            row[f"metrics.{name}"] = value
    return row


def _moment(t: float | None) -> str | None:
    """`2026-11-20T04:00:12.345Z`; None for a time that no calendar has."""
    if t is None:
        return None
    try:
        at = dt.datetime.fromtimestamp(t, dt.timezone.utc)
    except (ValueError, OverflowError, OSError):
        return None
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
