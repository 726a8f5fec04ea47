"""What is unusual in a running attempt, from the samples of its nodes: pure, apart from a small memory.

A check looks at the newest samples every few seconds. It returns the warnings that hold now, so a warning disappears
when its reason does. A check prefers a missed anomaly to a false alarm. `StepPace` knows how often the step of a rank
changes, and for how long it may stay the same.
"""

from __future__ import annotations

import math
from array import array
from typing import Any, Dict, Hashable, Iterable, Iterator, List, NamedTuple, Optional, Protocol, Sequence, Set, Tuple

from serried.base.text import counted, ranges, show_duration, spell
from serried.schema.live import Node, entries
from serried.schema.reasons import Reason
from serried.schema.series import logged_number, number

FIRST_STEPS = 10
"""The first steps compile kernels and fill caches."""
REMEMBERED = 31
"""Changes of the step. The head remembers those of all ranks, which may be ten thousands."""
LONGER_THAN_USUAL = 10.0
LONGER_THAN_EVER = 2.0
"""An evaluation or a checkpoint has been seen before, mostly, and may take longer the next time."""
SHORTEST_SECONDS = 60.0


class StepPace:
    __slots__ = ("_changed_at", "_longest", "_seconds", "_step", "_step_seconds", "_steps")

    def __init__(self) -> None:
        self._step: Optional[float] = None
        self._changed_at = 0.0
        self._steps = 0.0
        """Steps taken since the first look."""
        self._seconds, self._step_seconds = array("f"), array("f")
        """Seconds between two changes that were seen, and the same divided by the steps in them."""
        self._longest = 0.0

    def observe(self, step: float, changed_at: float) -> None:
        """The rank's step, and when that began, by one clock."""
        if self._step is not None and step != self._step:
            seconds = max(changed_at - self._changed_at, 0.0)
            taken = max(step - self._step, 1.0)  # a program may count from 0 again in each epoch
            self._steps += taken
            if self._steps > FIRST_STEPS:
                for values, value in ((self._seconds, seconds), (self._step_seconds, seconds / taken)):
                    values.append(value)
                    del values[:-REMEMBERED]
                self._longest = max(self._longest, seconds)
        if step != self._step:
            self._step, self._changed_at = step, changed_at

    @property
    def longest_pause(self) -> float:
        """Seconds without a change that are still usual; infinite as long as too few steps were seen."""
        if not self._seconds:
            return math.inf
        import statistics

        usual = statistics.median(self._seconds)
        return max(SHORTEST_SECONDS, LONGER_THAN_USUAL * usual, LONGER_THAN_EVER * self._longest)

    def is_usual(self, seconds: float) -> bool:
        """Whether so long a time without a change is usual. That is quick to tell for all ranks that train."""
        return seconds <= SHORTEST_SECONDS or seconds <= self.longest_pause

    @property
    def step_seconds(self) -> float:
        """The usual time of a step, without pauses."""
        import statistics

        return statistics.median(self._step_seconds) if self._step_seconds else 0.0


Anomaly = Dict[str, Any]
"""`code`, `message`, and the numbers of its `ranks` or `nodes`."""

IDLE_PERCENT, IDLE_SECONDS = 5.0, 600.0
HELD_BYTES = 10**9
"""Less memory of an idle GPU may be the context of a library."""
LOST_SECONDS = 120.0
"""A driver may fail to answer for a while."""
MEASURED = ("busy", "memory", "power", "temperature")
"""What the driver reports of a GPU."""
SLOW_SECONDS, SLOW_SHARE, FEWEST_RANKS = 180.0, 0.7, 3
WAITING_SHARE = 0.2
"""A rank waits for data by so much more of its time than the median rank."""
LOW_DISK_BYTES = 2 * 10**9
ALMOST_NO_DISK_BYTES = 200 * 10**6
LASTING_SECONDS = 240.0
"""So long a pause in training lasts before it is recorded: evaluations and checkpoints are shorter, mostly."""


class NodeSample:
    """The newest sample of a node."""

    def __init__(self, node: int, host: str, age: float, entry: Node) -> None:
        self.node, self.host, self.entry = node, host, entry
        self.age = age
        """Seconds since the sample arrived."""
        self.ranks = [rank for rank in entries(entry, "ranks") if isinstance(rank.get("rank"), int)]
        self.gpus = entries(entry, "gpus")


class Check(Protocol):
    """Sees one node after the other, because the samples of thousands need much memory at once."""

    def begin(self, now: float) -> None: ...
    def see(self, sample: NodeSample) -> None: ...
    def found(self) -> Iterator[Anomaly]: ...


class Anomalies:
    """`look` returns the warnings that hold; `new` those among them that have to be recorded, each once."""

    def __init__(self, more: Sequence[Check] = (), *, is_script: bool = False) -> None:
        stalled = Stalled()
        self.usual_pause = stalled.usual_pause
        idle = IdleGpus(needs_ranks=not is_script)
        self._checks: Sequence[Check] = (stalled, NotFinite(), idle, LostGpus(), FullDisks(), SlowRanks(), *more)
        self._lasting = _Lasting()
        self._recorded: Dict[str, Set[int]] = {}
        """The nodes by code, for which a warning was recorded."""

    def look(self, now: float, samples: Iterable[NodeSample]) -> List[Anomaly]:
        for check in self._checks:
            check.begin(now)
        for sample in samples:
            for check in self._checks:
                check.see(sample)
        return [warning for check in self._checks for warning in check.found()]

    def new(self, now: float, warnings: Sequence[Anomaly]) -> List[Anomaly]:
        """The warnings to record now: the first of each code, and later ones that concern further nodes."""
        lasting = self._lasting.seconds(now, [warning["code"] for warning in warnings])
        new = []
        for warning in warnings:
            code, nodes = warning["code"], set(warning.get("nodes", ()))
            is_known = code in self._recorded and nodes <= self._recorded[code]
            if not is_known and (code != Reason.STALLED or lasting[code] >= LASTING_SECONDS):
                self.note(warning)
                new.append(warning)
        return new

    def note(self, warning: Anomaly) -> None:
        """Do not report it again: it has been recorded."""
        self._recorded.setdefault(warning["code"], set()).update(warning.get("nodes", ()))


class _Lasting:
    """For how long each of several things has held without a break."""

    def __init__(self) -> None:
        self._since: Dict[Hashable, float] = {}

    def seconds(self, now: float, holding: Iterable[Hashable]) -> Dict[Hashable, float]:
        self._since = {key: self._since.get(key, now) for key in holding}
        return {key: now - since for key, since in self._since.items()}


class Stalled:
    """No step for much longer than usual, and no output either."""

    def __init__(self) -> None:
        self._paces: Dict[Hashable, StepPace] = {}

    def usual_pause(self, node: int, rank: Any) -> Optional[float]:
        """Seconds without a step that are usual for a rank; None as long as too few steps were seen."""
        pace = self._paces.get((node, rank))
        return pace.longest_pause if pace and math.isfinite(pace.longest_pause) else None

    def begin(self, now: float) -> None:
        self._now = now
        self._is_any_moving, self._last_output = False, math.inf
        self._quiet: List[Tuple[float, int, StepPace]] = []
        """Ranks for which it is unusual to take no step and write nothing for so many seconds."""

    def see(self, sample: NodeSample) -> None:
        for rank in sample.ranks:
            output_age = number(rank.get("output_age"))
            output_age = math.inf if output_age is None else output_age + sample.age
            self._last_output = min(self._last_output, output_age)
            step, age, total = number(rank.get("step")), number(rank.get("step_age")), number(rank.get("total_steps"))
            if step is None or age is None:
                continue
            age += sample.age
            key = (sample.node, rank["rank"])
            pace = self._paces.get(key) or self._paces.setdefault(key, StepPace())
            pace.observe(step, self._now - age)
            if total is None or step < total:
                self._is_any_moving = self._is_any_moving or pace.is_usual(age)
                quiet = min(age, output_age)
                if not pace.is_usual(quiet):
                    self._quiet.append((quiet, rank["rank"], pace))

    def found(self) -> Iterator[Anomaly]:
        stalled = self._quiet
        if not self._is_any_moving:  # as in a validation, in which all wait for the rank that prints
            stalled = [(min(quiet, self._last_output), rank, pace) for quiet, rank, pace in stalled]
            stalled = [(quiet, rank, pace) for quiet, rank, pace in stalled if not pace.is_usual(quiet)]
        if stalled:
            quiet, _, pace = max(stalled, key=lambda entry: entry[0])
            ranks = sorted(rank for _, rank, _ in stalled)
            usual = f"; a step usually takes {_seconds(pace.step_seconds)}"
            message = f"no step and no output for {_seconds(quiet)} on {_of_ranks(ranks)}{usual}"
            yield {"code": Reason.STALLED, "message": message, "ranks": ranks}


class NotFinite:
    def begin(self, now: float) -> None:  # noqa: ARG002
        self._ranks: Dict[Tuple[str, str], List[int]] = {}
        """By name and value."""

    def see(self, sample: NodeSample) -> None:
        for rank in sample.ranks:
            metrics = rank.get("metrics")
            for name, value in metrics.items() if isinstance(metrics, dict) else ():
                known = logged_number(value)
                if known is not None and not math.isfinite(known) and "loss" in str(name).lower():
                    self._ranks.setdefault((str(name), str(value)), []).append(rank["rank"])

    def found(self) -> Iterator[Anomaly]:
        for (name, value), ranks in [*self._ranks.items()][:1]:
            message = f"`{name}` is {value} on {_of_ranks(ranks)}"
            yield {"code": Reason.NOT_FINITE, "message": message, "ranks": sorted(ranks)}


class GpuOfNode(NamedTuple):
    node: int
    host: str
    gpu: Any
    memory: float = 0.0


class IdleGpus:
    def __init__(self, *, needs_ranks: bool) -> None:
        self._lasting = _Lasting()
        self._needs_ranks = needs_ranks
        """Before ranks start, their data may be copied for hours."""

    def begin(self, now: float) -> None:
        self._now, self._measured = now, 0
        self._idle: Dict[Hashable, GpuOfNode] = {}

    def see(self, sample: NodeSample) -> None:
        has_begun = not self._needs_ranks or bool(sample.ranks)
        for gpu in sample.gpus:
            busy = number(gpu.get("busy"))
            self._measured += busy is not None
            if has_begun and busy is not None and busy < IDLE_PERCENT:
                idle = GpuOfNode(sample.node, sample.host, gpu.get("gpu"), number(gpu.get("memory")) or 0.0)
                self._idle[sample.node, idle.gpu] = idle

    def found(self) -> Iterator[Anomaly]:
        seconds = self._lasting.seconds(self._now, self._idle)
        idle = {key: gpu for key, gpu in self._idle.items() if seconds[key] >= IDLE_SECONDS}
        if idle:
            gpus = [*idle.values()]
            held = sum(gpu.memory for gpu in gpus if gpu.memory >= HELD_BYTES)
            which = f"all {self._measured} GPUs were" if 1 < self._measured == len(gpus) else _of_gpus(gpus)
            holding = f", but hold {spell(int(held))} of memory" if held else ""
            shortest = _seconds(min(seconds[key] for key in idle))
            message = f"{which} less than {IDLE_PERCENT:.0f} % busy for {shortest}{holding}"
            yield {"code": Reason.GPU_IDLE, "message": message, "nodes": sorted({gpu.node for gpu in gpus})}


class LostGpus:
    """A GPU of the job about which the driver says nothing, or nothing any more."""

    def __init__(self) -> None:
        self._known: Dict[int, Tuple[Any, ...]] = {}
        """By node, the numbers of its GPUs."""
        self._lasting = _Lasting()

    def begin(self, now: float) -> None:
        self._now = now
        self._missing: Dict[Hashable, GpuOfNode] = {}

    def see(self, sample: NodeSample) -> None:
        # The name and the like are known without the driver.
        present = [gpu.get("gpu") for gpu in sample.gpus if any(number(gpu.get(key)) is not None for key in MEASURED)]
        # A GPU without a name was lost before the driver could describe it.
        nameless = [gpu.get("gpu") for gpu in sample.gpus if not gpu.get("name")]
        known = self._known.get(sample.node, ())
        new = tuple(gpu for gpu in dict.fromkeys([*present, *nameless]) if gpu not in known)
        if new:
            known = self._known[sample.node] = known + new
        for gpu in known:
            if gpu not in present:
                self._missing[sample.node, gpu] = GpuOfNode(sample.node, sample.host, gpu)

    def found(self) -> Iterator[Anomaly]:
        lasting = self._lasting.seconds(self._now, self._missing)
        lost = [self._missing[key] for key, seconds in lasting.items() if seconds >= LOST_SECONDS]
        if lost:
            message = f"{_of_gpus(lost)} lost: the driver does not report {'it' if len(lost) == 1 else 'them'}"
            yield {"code": Reason.GPU_LOST, "message": message, "nodes": sorted({gpu.node for gpu in lost})}


class FullDisks:
    """Little is left of the local disk, and less than half of what was free at first: a job fills the disk."""

    def __init__(self) -> None:
        self._first: Dict[int, float] = {}

    def begin(self, now: float) -> None:  # noqa: ARG002
        self._full: List[Tuple[float, int, str]] = []

    def see(self, sample: NodeSample) -> None:
        free = number(sample.entry.get("disk_free"))
        if free is not None:
            first = self._first.setdefault(sample.node, free)
            if free < ALMOST_NO_DISK_BYTES or free < min(LOW_DISK_BYTES, first / 2):
                self._full.append((free, sample.node, sample.host))

    def found(self) -> Iterator[Anomaly]:
        if self._full:
            free, _, host = min(self._full)
            more = f" and of {counted(len(self._full) - 1, 'other node')}" if len(self._full) > 1 else ""
            message = f"the local disk of {host}{more} is nearly full: {spell(int(free))} left"
            nodes = sorted(node for _, node, _ in self._full)
            yield {"code": Reason.DISK_NEARLY_FULL, "message": message, "nodes": nodes}


class RankValue(NamedTuple):
    value: float
    rank: int
    host: str


class SlowRanks:
    """Ranks that take fewer steps than the median rank, or wait longer for their data, for minutes."""

    def __init__(self) -> None:
        self._lasting = _Lasting()

    def begin(self, now: float) -> None:
        self._now = now
        self._speeds: List[RankValue] = []
        self._waits: List[RankValue] = []

    def see(self, sample: NodeSample) -> None:
        for rank in sample.ranks:
            for key, values in (("steps_per_second", self._speeds), ("data_wait", self._waits)):
                value = number(rank.get(key))
                if value is not None:
                    values.append(RankValue(value, rank["rank"], sample.host))

    def found(self) -> Iterator[Anomaly]:
        unusual: Dict[Tuple[str, int], str] = {}
        if (median := _median(self._speeds)) is not None:
            for rank in self._speeds:
                if rank.value < SLOW_SHARE * median:
                    rates = f"{rank.value:.3g} steps per second, and the median rank {median:.3g}"
                    unusual["steps", rank.rank] = f"rank {rank.rank} on {rank.host} takes {rates}"
        if (median := _median(self._waits)) is not None:
            for rank in self._waits:
                if rank.value > WAITING_SHARE + median:
                    shares = f"{rank.value:.0%} of its time, and the median rank {median:.0%}"
                    unusual["data", rank.rank] = f"rank {rank.rank} on {rank.host} waits for data {shares}"
        lasting = self._lasting.seconds(self._now, unusual)
        slow = [key for key in unusual if lasting[key] >= SLOW_SECONDS]
        if slow:
            ranks = sorted({rank for _, rank in slow})
            more = f"; also slow: {_of_ranks(ranks)}" if len(ranks) > 1 else ""
            yield {"code": Reason.SLOW_RANK, "message": unusual[slow[0]] + more, "ranks": ranks}


def _median(values: Sequence[RankValue]) -> Optional[float]:
    """None for few ranks, and for several programs of a job script, each with a rank 0: those do not compare."""
    if not FEWEST_RANKS <= len({value.rank for value in values}) == len(values):
        return None
    import statistics

    return statistics.median(value.value for value in values)


def _of_ranks(ranks: Iterable[int]) -> str:
    numbers = sorted(set(ranks))
    return f"rank{'s' * (len(numbers) > 1)} {ranges(numbers)}"


def _of_gpus(gpus: Sequence[GpuOfNode]) -> str:
    """`GPU 4 on n01 was`, `GPUs 4 and 5 on n01 and 3 GPUs on other nodes were`."""
    host = gpus[0].host
    here = [str(gpu.gpu) for gpu in gpus if gpu.host == host]
    elsewhere = len(gpus) - len(here)
    more = f" and {counted(elsewhere, 'GPU')} on other nodes" if elsewhere else ""
    was = "was" if len(gpus) == 1 else "were"
    return f"GPU{'s' * (len(here) > 1)} {', '.join(here)} on {host}{more} {was}"


def _seconds(seconds: float) -> str:
    return show_duration(int(seconds)) if seconds >= 1 else f"{seconds:.2g}s"
