"""The usage of a run or a task: its plan, its status and its samples."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import os
import shlex
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from serried import schedulers
from serried.base.errors import ConfigError
from serried.base.files import read_json
from serried.base.text import counted, iso, show_duration
from serried.records import index, samples
from serried.records.record import Record, RecordUnreadable
from serried.records.samples import GpuFigures, Measurements, NodeFigures, Range, RankFigures, combined, measured_of
from serried.records.status import RunStatus, claimed_at, latest_attempt, warnings_of
from serried.records.timeline import TimeSpent, time_spent_of
from serried.records.why import explain
from serried.schema import names
from serried.schema.endings import recoveries
from serried.schema.plan import Plan
from serried.schema.reasons import Reason

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
    spare_nodes: int = 0
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
    recovered: str | None = None
    """How often its ranks started again, and why."""
    time: TimeSpent | None = None
    """None in a table of runs."""

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
        return busy_of(self.rated_gpus)

    @property
    def gpu_memory(self) -> Range | None:
        """Of a GPU, in bytes."""
        return combined((gpu.seconds or 1.0, gpu.memory) for gpu in self.measured.gpus)

    @property
    def gpu_memory_total(self) -> float | None:
        return _largest(gpu.memory_total for gpu in self.measured.gpus)

    @property
    def power(self) -> Range | None:
        """Of a GPU, in watts."""
        return combined((gpu.seconds or 1.0, gpu.power) for gpu in self.measured.gpus)

    @property
    def power_cap(self) -> float | None:
        return _largest(gpu.power_cap for gpu in self.measured.gpus)

    @property
    def cpu(self) -> Range | None:
        """Cores in use on a node: by the ranks, if nothing was measured for the job alone."""
        return self._in_use(lambda figures: figures.cpu)

    @property
    def most_cpu(self) -> float:
        """Cores in use on the node that used most, on average over the run."""
        return max((node.cpu.mean for node in self.measured.nodes if node.cpu), default=0.0)

    @property
    def cpus_per_node(self) -> float | None:
        """The CPUs requested, else those that the node has."""
        requested = None if self.has_whole_nodes else self.cpus
        return requested or _largest(node.cpus for node in self.measured.nodes) or self.cpus

    @property
    def node_memory(self) -> Range | None:
        """In use on a node, in bytes: by the ranks, if nothing was measured for the job alone."""
        return self._in_use(lambda figures: figures.memory)

    def _in_use(self, value: Callable[[NodeFigures | RankFigures], Range | None]) -> Range | None:
        if self.has_own_scope or not self.measured.ranks:
            return combined((node.seconds or 1.0, value(node)) for node in self.measured.nodes)
        by_node: dict[tuple[str, int], list[Range]] = {}
        for rank in self.measured.ranks:
            in_use = by_node.setdefault((rank.host, rank.node), [])
            in_use += filter(None, [value(rank)])
        return combined((1.0, Range(*map(sum, zip(*ranks)))) for ranks in by_node.values() if ranks)

    @property
    def memory_per_node(self) -> float | None:
        """The memory requested, else that of the node."""
        return self.memory or _largest(node.memory_total for node in self.measured.nodes)

    @property
    def has_own_scope(self) -> bool:
        """CPUs and memory were measured for the job, and not for the whole node with the programs of others."""
        return any(node.memory_scope == "job" for node in self.measured.nodes)

    @property
    def more_cpus_change(self) -> str:
        """A request for twice the CPUs if all were in use and the node may have more; else empty."""
        in_use = self.cpu.mean if self.cpu else 0.0
        if not self.cpus or self.has_whole_nodes or in_use < SATURATED_SHARE * self.cpus:
            return ""
        return self.cpus_change(2 * self.cpus)

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
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        internal = ("spelling", "measured", "is_task", "needed_gpu_memory", "peer", "mute")
        return {
            **{name: value for name, value in fields.items() if name not in internal},
            "started": iso(self.started),
            "ended": iso(self.ended),
            "node_names": list(self.node_names),
            "missing": self.missing or None,
            "time": self.time and self.time.to_json(),
            "gpu_busy": self.busy,
            "gpu_memory": self.gpu_memory,
            "gpu_memory_total": self.gpu_memory_total,
            "power": self.power,
            "power_cap": self.power_cap,
            "cpu": self.cpu,
            "cpus_per_node": self.cpus_per_node,
            "node_memory": self.node_memory,
            "memory_per_node": self.memory_per_node,
            "samples_per_second": self.measured.samples_per_second,
            "measured": self.measured.to_json(),
        }


def busy_of(gpus: Iterable[GpuFigures]) -> Range | None:
    return combined((gpu.seconds or 1.0, gpu.busy) for gpu in gpus)


def _largest(amounts: Iterable[float | None]) -> float | None:
    return max(filter(None, amounts), default=None)


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


def gpus_by_node(gpus: Iterable[GpuFigures]) -> str:
    """`n03: 4, 5; n07: 0; and 2 more nodes`."""
    by_host: dict[str, list[str]] = {}
    for gpu in gpus:
        by_host.setdefault(gpu.host, []).append(gpu.gpu)
    shown = [f"{host}: {', '.join(numbers)}" for host, numbers in list(by_host.items())[:MOST_NODES_NAMED]]
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
    return [spread for spread in found if spread is not None]


def _spread(kind: str, choose: Callable[..., Any], values: Sequence[tuple[float | None, str, str]]) -> Spread | None:
    known = [(value, where, host) for value, where, host in values if value is not None]
    if len(known) < 2:
        return None
    extreme, where, host = choose(known, key=lambda entry: entry[0])
    return Spread(kind, len(known), statistics.median(value for value, _, _ in known), extreme, where, host)


_PEER_LINES = 200
"""How many lines of samples are read of another run."""
_MOST_PEERS, _MOST_PLANS = 4, 40
"""How many smaller runs are measured, and of how many the plan is compared."""


def usage_of(status: RunStatus, now: float, *, most_lines: int = samples.MOST_LINES) -> Usage:
    """Of a run or of one task of an array. Raises RecordUnreadable."""
    measured = _measured_in(status.record, status.task, most_lines)
    spell = options_of if status.record.owner else spelling_of  # another user's plan may name any folder
    return usage_with(status, now, measured, spell(status.record.plan))


def usage_with(status: RunStatus, now: float, measured: Measurements, spelling: Spelling) -> Usage:
    record, task = status.record, status.task
    plan = record.plan
    allocation = plan.allocation
    started, seconds = status.started, status.seconds
    if status.state == names.RUNNING:
        if started is None and status.tasks is None:  # only the attempt of a task knows
            attempt = latest_attempt(record.where.task(task))
            started = claimed_at(attempt) if attempt is not None else None
        seconds = None if started is None else max(now - started, 0.0)
    command = ""
    with contextlib.suppress(RecordUnreadable):
        own = record.plan_of(task)
        command = own.command[0] if own.shell else shlex.join(own.command)
    said = status.verdict.conditions if status.has_ended else warnings_of(status)
    may_lack_gpu_memory = status.state in (names.OUT_OF_MEMORY, names.FAILED)  # programs end with an error of their own
    return Usage(
        id=status.id,
        name=plan.name,
        state=status.state,
        job=status.job_of(task),
        cluster=plan.site.name,
        command=command,
        attempt=status.attempt or 1,
        started=started,
        ended=status.verdict.since if status.has_ended else None,
        seconds=seconds,
        limit_seconds=allocation.time_seconds,
        nodes=allocation.nodes,
        spare_nodes=allocation.spare_nodes,
        node_names=status.node_names or tuple(node.host for node in measured.nodes),
        ranks=None if plan.script else allocation.ranks,
        gpus=allocation.gpus,
        gpu_type=allocation.gpu_type or "",
        cpus=allocation.cpus,
        memory=allocation.memory_mb * (1 << 20) if allocation.memory_mb else None,
        has_default_memory="resources.mem" in plan.defaults,
        has_default_cpus="resources.cpus" in plan.defaults,
        has_whole_nodes=allocation.exclusive or schedulers.traits(plan.site.scheduler).is_this_machine,
        measured=measured,
        missing="" if measured.nodes else _missing(status),
        spelling=spelling,
        mute=plan.report.mute,
        is_task=task is not None,
        recovered=next(iter(recoveries(said)), None),
        needed_gpu_memory=may_lack_gpu_memory and explain(status).reason is Reason.GPU_MEMORY,
    )


def whole_usage(status: RunStatus, now: float) -> Usage:
    """As `usage_of`, and compared with an earlier run."""
    usage = usage_of(status, now)
    ended = status.verdict.since if status.has_ended else None
    spent = time_spent_of(status.record, status.task, now=now, ended=ended)
    peer = _peer_of(usage, status.record) if status.task is None else None
    return dataclasses.replace(usage, peer=peer, time=spent)


def _measured_in(record: Record, task: int | None, most_lines: int) -> Measurements:
    """From the summary in the record, which an ended run has and arrays have not; else from the samples."""
    kept = kept_measurements(record) if task is None else None
    return kept or measured_of(samples.read(record.where.task(task), most_lines=most_lines))


def kept_measurements(record: Record) -> Measurements | None:
    kept = read_json(record.directory.usage)
    with contextlib.suppress(ValueError):
        return Measurements.from_json(kept) if kept else None
    return None


def _missing(status: RunStatus) -> str:
    if status.state == names.PENDING:
        return "the run has not started"
    if not status.record.where.path.is_dir():
        return "the run directory was removed, and the record has no summary of its samples"
    if not status.record.where.task(status.task).attempts.is_dir():
        return "no attempt has started"
    if not status.has_ended:
        return "the first samples arrive about half a minute after the start"
    return "the run was too short for samples, or sampling was off"


def spelling_of(plan: Plan) -> Spelling:
    """The keys that the project's file uses, by which the next run gets another amount, or options of a command."""
    options = options_of(plan)
    if plan.script:
        return options
    from serried.config import layers  # not for `kept_notes`

    with contextlib.suppress(ConfigError, OSError, AttributeError, KeyError, TypeError):
        document = layers.find(Path(plan.source.directory), os.environ).project
        tables: Mapping[str, Any] = document.tables if document else {}
        own = tables["experiments"][plan.experiment].get("resources", {})
        resources = {**tables.get("defaults", {}).get("resources", {}), **own}
        # How many of its amounts a node has.
        units = {"mem_per_node": 1, "mem_per_cpu": plan.allocation.cpus, "mem": options.cpu_units}
        key = next((key for key in units if key in resources), "mem")
        return Spelling(memory=f'{key} = "{{}}"', memory_units=units[key], cpu_units=options.cpu_units)
    return options


def options_of(plan: Plan) -> Spelling:
    """For job scripts, whose directives these options replace, and for commands."""
    return Spelling(
        memory="--mem-per-node {}",
        time="--time {}",
        cpus="--cpus {}",
        cpu_units=max(plan.allocation.gpus or plan.allocation.ranks, 1),
        gpus="--gpus {}",
        nodes="--nodes {}",
        verb="submit with",
    )


def _peer_of(usage: Usage, record: Record) -> Peer | None:
    """The smallest earlier run of the same command that has reported samples per second."""
    if usage.measured.samples_per_second is None or usage.units < 2:
        return None
    for units, other in itertools.islice(_smaller(record, usage.units), _MOST_PEERS):
        rate = _measured_in(other, None, _PEER_LINES).samples_per_second
        if rate:
            return Peer(other.id, units, rate)
    return None


def _smaller(record: Record, units: int) -> Iterator[tuple[int, Record]]:
    """The earlier completed runs of the same command with fewer GPUs, the fewest and newest first."""
    own = record.summary
    found = []
    for other in index.records():
        with contextlib.suppress(RecordUnreadable):
            summary, end = other.summary, other.end
            is_same = (summary.project, summary.experiment, summary.tasks) == (own.project, own.experiment, None)
            is_before = end is not None and end.state == names.COMPLETED and summary.created <= own.created
            count = summary.nodes * (summary.gpus or summary.ranks)
            if is_same and is_before and bool(summary.gpus) == bool(own.gpus) and count < units:
                found.append((count, summary.created, other))
    newest_first = sorted(found, key=lambda entry: entry[1], reverse=True)
    for count, _, other in sorted(newest_first, key=lambda entry: entry[0])[:_MOST_PLANS]:
        with contextlib.suppress(RecordUnreadable):
            if _program(other.plan) == _program(record.plan):
                yield count, other


def _program(plan: Plan) -> tuple[object, ...]:
    return plan.command, plan.script and plan.script.path, plan.allocation.gpu_type
