"""What is unusual in a running attempt, from the samples of its nodes: pure, apart from a small memory.

A check looks at the newest samples every few seconds. It returns the warnings that hold now, so a warning disappears
when its reason does. A check prefers a missed anomaly to a false alarm. `StepPace` knows how often the step of a rank
changes, and for how long it may stay the same.
"""

from __future__ import annotations

import math
from array import array
from typing import Any, Callable, Dict, Hashable, Iterable, List, NamedTuple, Optional, Protocol, Sequence, Set, Tuple

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

    def found(self) -> List[Anomaly]: ...


class Anomalies:
    """`look` returns the warnings that hold; `new` those among them that have to be recorded, each once."""

    def __init__(self, *, is_script: bool = False) -> None:
        stalled = Stalled()
        self.usual_pause = stalled.usual_pause
        self._checks: Sequence[Check] = (
            stalled,
            NotFinite(),
            IdleGpus(needs_ranks=not is_script),
            LostGpus(),
            FullDisks(),
            SlowRanks(),
        )
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
        found = []
        for warning in warnings:
            code, nodes = warning["code"], set(warning.get("nodes", ()))
            is_known = code in self._recorded and nodes <= self._recorded[code]
            if not is_known and (code != Reason.STALLED or lasting[code] >= LASTING_SECONDS):
                self._recorded.setdefault(code, set()).update(nodes)
                found.append(warning)
        return found


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
        self.begin(0.0)

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

    def found(self) -> List[Anomaly]:
        stalled = self._quiet
        if not self._is_any_moving:  # as in a validation, in which all wait for the rank that prints
            stalled = [(min(quiet, self._last_output), rank, pace) for quiet, rank, pace in stalled]
            stalled = [it for it in stalled if not it[2].is_usual(it[0])]
        if not stalled:
            return []
        quiet, _, pace = max(stalled, key=lambda it: it[0])
        ranks = [rank for _, rank, _ in stalled]
        usual = f"; a step usually takes {_seconds(pace.step_seconds)}"
        return [
            {
                "code": Reason.STALLED,
                "message": f"no step and no output for {_seconds(quiet)} on {_of_ranks(ranks)}{usual}",
                "ranks": sorted(ranks),
            }
        ]


class NotFinite:
    def begin(self, now: float) -> None:  # noqa: ARG002
        self._found: Dict[Tuple[str, str], List[int]] = {}

    def see(self, sample: NodeSample) -> None:
        for rank in sample.ranks:
            metrics = rank.get("metrics")
            for name, value in metrics.items() if isinstance(metrics, dict) else ():
                known = logged_number(value)
                if known is not None and not math.isfinite(known) and "loss" in str(name).lower():
                    self._found.setdefault((str(name), str(value)), []).append(rank["rank"])

    def found(self) -> List[Anomaly]:
        if not self._found:
            return []
        (name, value), ranks = next(iter(self._found.items()))
        message = f"`{name}` is {value} on {_of_ranks(ranks)}"
        return [{"code": Reason.NOT_FINITE, "message": message, "ranks": sorted(ranks)}]


class IdleGpus:
    def __init__(self, *, needs_ranks: bool) -> None:
        self._lasting = _Lasting()
        self._needs_ranks = needs_ranks
        """Before ranks start, their data may be copied for hours."""

    def begin(self, now: float) -> None:
        self._now = now
        self._measured = 0
        self._idle: Dict[Hashable, GpuOfNode] = {}

    def see(self, sample: NodeSample) -> None:
        has_begun = not self._needs_ranks or bool(sample.ranks)
        for gpu in sample.gpus:
            busy = number(gpu.get("busy"))
            if busy is not None:
                self._measured += 1
                if has_begun and busy < IDLE_PERCENT:
                    found = GpuOfNode(sample.node, sample.host, gpu.get("gpu"), number(gpu.get("memory")) or 0.0)
                    self._idle[sample.node, found.gpu] = found

    def found(self) -> List[Anomaly]:
        lasting = self._lasting.seconds(self._now, self._idle)
        found = [self._idle[key] for key, seconds in lasting.items() if seconds >= IDLE_SECONDS]
        if not found:
            return []
        held = sum(gpu.memory for gpu in found if gpu.memory >= HELD_BYTES)
        which = f"all {self._measured} GPUs were" if 1 < self._measured == len(found) else _of_gpus(found)
        shortest = min(seconds for seconds in lasting.values() if seconds >= IDLE_SECONDS)
        holding = f", but hold {spell(int(held))} of memory" if held else ""
        message = f"{which} less than {IDLE_PERCENT:.0f} % busy for {_seconds(shortest)}{holding}"
        return [{"code": Reason.GPU_IDLE, "message": message, "nodes": _nodes(found)}]


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
        present = [gpu.get("gpu") for gpu in sample.gpus if any(number(gpu.get(key)) is not None for key in _MEASURED)]
        known = self._known.get(sample.node, ())
        # A GPU without a name was lost before the driver could describe it.
        nameless = [gpu.get("gpu") for gpu in sample.gpus if not gpu.get("name")]
        new = tuple(gpu for gpu in dict.fromkeys([*present, *nameless]) if gpu not in known)
        if new:
            known = self._known[sample.node] = known + new
        for gpu in known:
            if gpu not in present:
                self._missing[sample.node, gpu] = GpuOfNode(sample.node, sample.host, gpu)

    def found(self) -> List[Anomaly]:
        lasting = self._lasting.seconds(self._now, self._missing)
        found = [self._missing[key] for key, seconds in lasting.items() if seconds >= LOST_SECONDS]
        if not found:
            return []
        message = f"{_of_gpus(found)} lost: the driver does not report {'it' if len(found) == 1 else 'them'}"
        return [{"code": Reason.GPU_LOST, "message": message, "nodes": _nodes(found)}]


_MEASURED = ("busy", "memory", "power", "temperature")


class FullDisks:
    """Little is left of the local disk, and less than half of what was free at first: a job fills the disk."""

    def __init__(self) -> None:
        self._first: Dict[int, float] = {}

    def begin(self, now: float) -> None:  # noqa: ARG002
        self._full: List[Tuple[float, int, str]] = []

    def see(self, sample: NodeSample) -> None:
        free = number(sample.entry.get("disk_free"))
        if free is None:
            return
        first = self._first.setdefault(sample.node, free)
        if free < ALMOST_NO_DISK_BYTES or free < min(LOW_DISK_BYTES, first / 2):
            self._full.append((free, sample.node, sample.host))

    def found(self) -> List[Anomaly]:
        if not self._full:
            return []
        free, _, host = min(self._full)
        more = f" and of {counted(len(self._full) - 1, 'other node')}" if len(self._full) > 1 else ""
        message = f"the local disk of {host}{more} is nearly full: {spell(int(free))} left"
        nodes = sorted(node for _, node, _ in self._full)
        return [{"code": Reason.DISK_NEARLY_FULL, "message": message, "nodes": nodes}]


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

    def found(self) -> List[Anomaly]:
        unusual = {
            **_unusual("steps", self._speeds, lambda value, median: value < SLOW_SHARE * median),
            **_unusual("data", self._waits, lambda value, median: value > WAITING_SHARE + median),
        }
        lasting = self._lasting.seconds(self._now, unusual)
        found = [key for key in unusual if lasting[key] >= SLOW_SECONDS]
        if not found:
            return []
        ranks = sorted({rank for _, rank in found})
        more = f"; also slow: {_of_ranks(ranks)}" if len(ranks) > 1 else ""
        return [{"code": Reason.SLOW_RANK, "message": unusual[found[0]] + more, "ranks": ranks}]


class RankValue(NamedTuple):
    value: float
    rank: int
    host: str


def _unusual(
    what: str, values: Sequence[RankValue], is_unusual: Callable[[float, float], bool]
) -> Dict[Tuple[str, int], str]:
    """Sentences about ranks that differ from the median rank; none if too few ranks are known.

    A job script may run several programs, each with a rank 0: those do not compare.
    """
    if not FEWEST_RANKS <= len({it.rank for it in values}) == len(values):
        return {}
    import statistics

    median = statistics.median(it.value for it in values)
    sentence = {
        "data": "rank {0.rank} on {0.host} waits for data {0.value:.0%} of its time, and the median rank {1:.0%}",
        "steps": "rank {0.rank} on {0.host} takes {0.value:.3g} steps per second, and the median rank {1:.3g}",
    }[what]
    return {(what, it.rank): sentence.format(it, median) for it in values if is_unusual(it.value, median)}


class GpuOfNode(NamedTuple):
    node: int
    host: str
    gpu: Any
    memory: float = 0.0


def _of_ranks(ranks: Iterable[int]) -> str:
    numbers = sorted(set(ranks))
    return f"rank{'s' * (len(numbers) > 1)} {ranges(numbers)}"


def _of_gpus(found: Sequence[GpuOfNode]) -> str:
    """`GPU 4 on n01 was`, `GPUs 4 and 5 on n01 and 3 GPUs on other nodes were`."""
    host = found[0].host
    here = [str(it.gpu) for it in found if it.host == host]
    elsewhere = len(found) - len(here)
    more = f" and {counted(elsewhere, 'GPU')} on other nodes" if elsewhere else ""
    was = "was" if len(found) == 1 else "were"
    return f"GPU{'s' * (len(here) > 1)} {', '.join(here)} on {host}{more} {was}"


def _nodes(found: Iterable[GpuOfNode]) -> List[int]:
    return sorted({it.node for it in found})


def _seconds(seconds: float) -> str:
    return show_duration(int(seconds)) if seconds >= 1 else f"{seconds:.2g}s"
