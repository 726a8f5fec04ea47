"""What is unusual in a running attempt, from the samples of its nodes: pure, apart from a small memory.

A check looks at the newest samples every few seconds. It returns the warnings that hold now, so a warning disappears
when its reason does. A check prefers a missed anomaly to a false alarm.
"""

from __future__ import annotations

import math
from typing import Any, Callable, Dict, Hashable, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

from serried.agent.head.step_pace import StepPace
from serried.protocol.live import NOT_FINITE, Node, entries, number
from serried.protocol.reasons import Reason
from serried.protocol.sizes import counted, ranges, spell
from serried.protocol.times import show_duration

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


class NodeSample(NamedTuple):
    node: int
    host: str
    age: float
    """Seconds since the sample arrived."""
    entry: Node


class LatestSamples(NamedTuple):
    """What is known at one moment. Its lists are made once: a large job has ten thousands of ranks."""

    now: float
    samples: Sequence[NodeSample]
    ranks: Sequence[Tuple[NodeSample, Dict[str, Any]]]
    gpus: Sequence[Tuple[NodeSample, Dict[str, Any]]]


class Anomalies:
    """`look` returns the warnings that hold; `new` those among them that have to be recorded, each once."""

    def __init__(self, *, is_script: bool = False) -> None:
        stalled = Stalled()
        self.usual_pause = stalled.usual_pause
        self._checks: List[Callable[[LatestSamples], List[Anomaly]]] = [
            stalled.look,
            _not_finite,
            IdleGpus(needs_ranks=not is_script).look,
            LostGpus().look,
            FullDisks().look,
            SlowRanks().look,
        ]
        self._lasting = _Lasting()
        self._recorded: Dict[str, Set[int]] = {}
        """The nodes by code, for which a warning was recorded."""

    def look(self, now: float, samples: Sequence[NodeSample]) -> List[Anomaly]:
        ranks = [(sample, rank) for sample, rank in _entries(samples, "ranks") if isinstance(rank.get("rank"), int)]
        latest = LatestSamples(now, samples, ranks, _entries(samples, "gpus"))
        return [warning for check in self._checks for warning in check(latest)]

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

    def usual_pause(self, node: int, rank: Any) -> Optional[float]:
        """Seconds without a step that are usual for a rank; None as long as too few steps were seen."""
        pace = self._paces.get((node, rank))
        return pace.longest_pause if pace and math.isfinite(pace.longest_pause) else None

    def look(self, latest: LatestSamples) -> List[Anomaly]:
        stalled = [it for it in self._quiet(latest) if not it[2].is_usual(it[0])]
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

    def _quiet(self, latest: LatestSamples) -> List[Tuple[float, int, StepPace]]:
        """For how many seconds each rank has taken no step and written nothing; without ranks that took all steps."""
        found: List[Tuple[float, int, StepPace]] = []
        is_any_moving, last_output = False, math.inf
        for sample, rank in latest.ranks:
            output_age = number(rank.get("output_age"))
            output_age = math.inf if output_age is None else output_age + sample.age
            last_output = min(last_output, output_age)
            step, age, total = number(rank.get("step")), number(rank.get("step_age")), number(rank.get("total_steps"))
            if step is None or age is None:
                continue
            age += sample.age
            pace = self._paces.setdefault((sample.node, rank["rank"]), StepPace())
            pace.observe(step, latest.now - age)
            if total is None or step < total:
                is_any_moving = is_any_moving or pace.is_usual(age)
                found.append((min(age, output_age), _number_of(rank), pace))
        if not is_any_moving:  # as in a validation, in which all wait for the rank that prints
            found = [(min(quiet, last_output), rank, pace) for quiet, rank, pace in found]
        return found


def _not_finite(latest: LatestSamples) -> List[Anomaly]:
    found: Dict[Tuple[str, str], List[int]] = {}
    for _, rank in latest.ranks:
        metrics = rank.get("metrics")
        for name, value in metrics.items() if isinstance(metrics, dict) else ():
            is_finite = math.isfinite(value) if isinstance(value, float) else value not in NOT_FINITE
            if not is_finite and "loss" in str(name).lower():
                found.setdefault((str(name), str(value)), []).append(_number_of(rank))
    if not found:
        return []
    (name, value), ranks = next(iter(found.items()))
    message = f"`{name}` is {value} on {_of_ranks(ranks)}"
    return [{"code": Reason.NOT_FINITE, "message": message, "ranks": sorted(ranks)}]


class IdleGpus:
    def __init__(self, *, needs_ranks: bool) -> None:
        self._lasting = _Lasting()
        self._needs_ranks = needs_ranks
        """Before ranks start, their data may be copied for hours."""

    def look(self, latest: LatestSamples) -> List[Anomaly]:
        idle: Dict[Hashable, Tuple[NodeSample, Dict[str, Any]]] = {}
        gpus = [(sample, gpu) for sample, gpu in latest.gpus if number(gpu.get("busy")) is not None]
        for sample, gpu in gpus:
            has_begun = not self._needs_ranks or bool(entries(sample.entry, "ranks"))
            if has_begun and (number(gpu.get("busy")) or 0.0) < IDLE_PERCENT:
                idle[sample.node, gpu.get("gpu")] = (sample, gpu)
        lasting = self._lasting.seconds(latest.now, idle)
        found = [idle[key] for key, seconds in lasting.items() if seconds >= IDLE_SECONDS]
        if not found:
            return []
        held = sum(size for _, gpu in found if (size := number(gpu.get("memory")) or 0.0) >= HELD_BYTES)
        which = f"all {len(gpus)} GPUs were" if 1 < len(gpus) == len(found) else _of_gpus(found)
        shortest = min(seconds for seconds in lasting.values() if seconds >= IDLE_SECONDS)
        holding = f", but hold {spell(int(held))} of memory" if held else ""
        message = f"{which} less than {IDLE_PERCENT:.0f} % busy for {_seconds(shortest)}{holding}"
        return [{"code": Reason.GPU_IDLE, "message": message, "nodes": _nodes(found)}]


class LostGpus:
    """A GPU of the job about which the driver says nothing, or nothing any more."""

    def __init__(self) -> None:
        self._known: Dict[int, Dict[Any, Dict[str, Any]]] = {}
        self._lasting = _Lasting()

    def look(self, latest: LatestSamples) -> List[Anomaly]:
        missing: Dict[Hashable, Tuple[NodeSample, Dict[str, Any]]] = {}
        for sample in latest.samples:
            listed = {gpu.get("gpu"): gpu for gpu in entries(sample.entry, "gpus")}
            present = {index for index, gpu in listed.items() if _is_measured(gpu)}
            known = self._known.setdefault(sample.node, {})
            # A GPU without a name was lost before the driver could describe it.
            known.update((index, gpu) for index, gpu in listed.items() if index in present or not gpu.get("name"))
            missing.update({(sample.node, gpu): (sample, known[gpu]) for gpu in known if gpu not in present})
        lasting = self._lasting.seconds(latest.now, missing)
        found = [missing[key] for key, seconds in lasting.items() if seconds >= LOST_SECONDS]
        if not found:
            return []
        message = f"{_of_gpus(found)} lost: the driver does not report {'it' if len(found) == 1 else 'them'}"
        return [{"code": Reason.GPU_LOST, "message": message, "nodes": _nodes(found)}]


class FullDisks:
    """Little is left of the local disk, and less than half of what was free at first: a job fills the disk."""

    def __init__(self) -> None:
        self._first: Dict[int, float] = {}

    def look(self, latest: LatestSamples) -> List[Anomaly]:
        full: List[Tuple[float, NodeSample]] = []
        for sample in latest.samples:
            free = number(sample.entry.get("disk_free"))
            if free is None:
                continue
            first = self._first.setdefault(sample.node, free)
            if free < ALMOST_NO_DISK_BYTES or free < min(LOW_DISK_BYTES, first / 2):
                full.append((free, sample))
        if not full:
            return []
        free, sample = min(full, key=lambda it: it[0])
        more = f" and of {counted(len(full) - 1, 'other node')}" if len(full) > 1 else ""
        message = f"the local disk of {sample.host}{more} is nearly full: {spell(int(free))} left"
        return [{"code": Reason.DISK_NEARLY_FULL, "message": message, "nodes": sorted(it.node for _, it in full)}]


class SlowRanks:
    """Ranks that take fewer steps than the median rank, or wait longer for their data, for minutes."""

    def __init__(self) -> None:
        self._lasting = _Lasting()

    def look(self, latest: LatestSamples) -> List[Anomaly]:
        unusual = {
            **self._unusual(latest, "steps_per_second", lambda value, median: value < SLOW_SHARE * median),
            **self._unusual(latest, "data_wait", lambda value, median: value > WAITING_SHARE + median),
        }
        lasting = self._lasting.seconds(latest.now, unusual)
        found = [key for key in unusual if lasting[key] >= SLOW_SECONDS]
        if not found:
            return []
        ranks = sorted({rank for _, rank in found})
        more = f"; also slow: {_of_ranks(ranks)}" if len(ranks) > 1 else ""
        return [{"code": Reason.SLOW_RANK, "message": unusual[found[0]] + more, "ranks": ranks}]

    def _unusual(
        self, latest: LatestSamples, key: str, is_unusual: Callable[[float, float], bool]
    ) -> Dict[Tuple[str, int], str]:
        values = [(sample, rank, number(rank.get(key))) for sample, rank in latest.ranks]
        known = [(sample, rank, value) for sample, rank, value in values if value is not None]
        numbers = {_number_of(rank) for _, rank, _ in known}
        if not FEWEST_RANKS <= len(numbers) == len(known):  # a job script may run several programs, each with a rank 0
            return {}
        import statistics

        median = statistics.median(value for _, _, value in known)
        return {
            (key, _number_of(rank)): _comparison(key, _number_of(rank), sample.host, value, median)
            for sample, rank, value in known
            if is_unusual(value, median)
        }


def _comparison(key: str, rank: int, host: str, value: float, median: float) -> str:
    if key == "data_wait":
        return f"rank {rank} on {host} waits for data {value:.0%} of its time, and the median rank {median:.0%}"
    return f"rank {rank} on {host} takes {value:.3g} steps per second, and the median rank {median:.3g}"


def _entries(samples: Sequence[NodeSample], name: str) -> List[Tuple[NodeSample, Dict[str, Any]]]:
    return [(sample, entry) for sample in samples for entry in entries(sample.entry, name)]


def _is_measured(gpu: Mapping[str, Any]) -> bool:
    """Whether the driver answers: the name and the like are known without it."""
    return any(number(gpu.get(key)) is not None for key in ("busy", "memory", "power", "temperature"))


def _number_of(rank: Mapping[str, Any]) -> int:
    return int(rank["rank"])


def _of_ranks(ranks: Iterable[int]) -> str:
    numbers = sorted(set(ranks))
    return f"rank{'s' * (len(numbers) > 1)} {ranges(numbers)}"


def _of_gpus(found: Sequence[Tuple[NodeSample, Mapping[str, Any]]]) -> str:
    """`GPU 4 on n01 was`, `GPUs 4 and 5 on n01 and 3 GPUs on other nodes were`."""
    host = found[0][0].host
    here = [str(gpu.get("gpu")) for sample, gpu in found if sample.host == host]
    elsewhere = len(found) - len(here)
    more = f" and {counted(elsewhere, 'GPU')} on other nodes" if elsewhere else ""
    was = "was" if len(found) == 1 else "were"
    return f"GPU{'s' * (len(here) > 1)} {', '.join(here)} on {host}{more} {was}"


def _nodes(found: Iterable[Tuple[NodeSample, Any]]) -> List[int]:
    return sorted({sample.node for sample, _ in found})


def _seconds(seconds: float) -> str:
    return show_duration(int(seconds)) if seconds >= 1 else f"{seconds:.2g}s"
