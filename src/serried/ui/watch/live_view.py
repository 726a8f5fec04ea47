"""What a run does now, for its page: from live.json, whatever is missing or damaged there. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

_STALE_INTERVALS = 4
_LONGEST = 1e12
_MOST_WARNINGS = 20

GpuKey = tuple[int, int]
"""A node and a GPU's index on it."""


@dataclass(frozen=True)
class Gpu:
    node: int
    host: str
    index: int
    busy: float | None = None
    memory: float | None = None
    memory_total: float | None = None
    power: float | None = None
    power_cap: float | None = None
    temperature: float | None = None

    @property
    def key(self) -> GpuKey:
        return self.node, self.index


@dataclass(frozen=True)
class Rank:
    number: int
    node: int
    host: str
    busy: float | None = None
    """Of its GPU; the mean of the node's GPUs if ranks and GPUs differ in number."""
    cpu: float | None = None
    step: float | None = None
    total_steps: float | None = None
    step_age: float | None = None
    """At the time of the file."""
    steps_per_second: float | None = None
    data_wait: float | None = None


@dataclass(frozen=True)
class LiveView:
    """What live.json says. Without one, nothing is known."""

    t: float = 0.0
    interval: float = 5.0
    gpus: tuple[Gpu, ...] = ()
    ranks: tuple[Rank, ...] = ()
    all_ranks: int = 0
    """Ranks of the run; with many nodes more than `ranks`."""
    all_gpus: int = 0
    gpu_busy: float | None = None
    samples_per_second: float | None = None
    limit_seconds_left: float | None = None
    warnings: tuple[str, ...] = ()
    age: float = field(default=0.0, compare=False)
    """Seconds since the file changed, by the reader's own clock."""

    @property
    def is_stale(self) -> bool:
        """Whether the head has not written for several of its own intervals."""
        return self.age > _STALE_INTERVALS * self.interval

    @property
    def leader(self) -> Rank | None:
        """The rank with the highest step."""
        stepping = [rank for rank in self.ranks if rank.step is not None]
        return max(stepping, key=lambda rank: rank.step or 0.0, default=None)

    @property
    def slowest_step(self) -> float | None:
        return min((rank.step for rank in self.ranks if rank.step is not None), default=None)

    @property
    def step_age(self) -> float | None:
        """Seconds since any rank made a step."""
        ages = [rank.step_age for rank in self.ranks if rank.step_age is not None]
        return min(ages) + self.age if ages else None

    @property
    def steps_per_second(self) -> float | None:
        rates = [rank.steps_per_second for rank in self.ranks if rank.steps_per_second is not None]
        return statistics.median(rates) if rates else None

    @property
    def seconds_left(self) -> float | None:
        """Until the last step, at the present rate."""
        leader, rate = self.leader, self.steps_per_second
        if leader is None or leader.step is None or leader.total_steps is None or not rate:
            return None
        return max((leader.total_steps - leader.step) / rate - self.age, 0.0)


def view(document: Mapping[str, Any] | None, age: float = 0.0) -> LiveView | None:
    """The facts of a live.json that changed `age` seconds ago; None without a usable one."""
    t = _number(document or {}, "t")
    if document is None or t is None:
        return None
    nodes = [_Node.of(entry) for entry in _entries(document, "nodes")]
    gpus = tuple(gpu for node in nodes for gpu in node.gpus)
    ranks = tuple(sorted((rank for node in nodes for rank in node.ranks), key=lambda rank: rank.number))
    warnings = [str(entry["message"]) for entry in _entries(document, "warnings") if entry.get("message")]
    return LiveView(
        t=t,
        interval=_positive(document, "interval") or 5.0,
        gpus=gpus,
        ranks=ranks,
        all_ranks=max(int(_positive(document, "ranks") or 0), len(ranks)),
        all_gpus=max(int(_positive(document, "gpus") or 0), len(gpus)),
        gpu_busy=_number(document, "gpu_busy"),
        samples_per_second=_number(document, "samples_per_second"),
        limit_seconds_left=_positive(document, "limit_seconds_left"),
        warnings=tuple(warnings[:_MOST_WARNINGS]),
        age=max(age, 0.0),
    )


class _Node(NamedTuple):
    gpus: list[Gpu]
    ranks: list[Rank]

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> _Node:
        node = int(_positive(entry, "node") or 0)
        host = str(entry.get("host") or f"node {node}")
        gpus = [_gpu(node, host, one) for one in _entries(entry, "gpus")]
        ranks = [one for one in _entries(entry, "ranks") if _positive(one, "rank") is not None]
        busy = [gpu.busy for gpu in gpus if gpu.busy is not None]
        mean = statistics.mean(busy) if busy else None
        of_rank = [gpu.busy for gpu in gpus] if len(gpus) == len(ranks) else [mean] * len(ranks)
        return cls(gpus, [_rank(node, host, one, its) for one, its in zip(ranks, of_rank, strict=True)])


def _gpu(node: int, host: str, entry: Mapping[str, Any]) -> Gpu:
    names = ("busy", "memory", "memory_total", "power", "power_cap", "temperature")
    return Gpu(node, host, int(_positive(entry, "gpu") or 0), **{name: _number(entry, name) for name in names})


def _rank(node: int, host: str, entry: Mapping[str, Any], busy: float | None) -> Rank:
    names = ("cpu", "step", "total_steps", "steps_per_second", "data_wait")
    return Rank(
        int(_positive(entry, "rank") or 0),
        node,
        host,
        busy,
        step_age=_positive(entry, "step_age"),
        **{name: _number(entry, name) for name in names},
    )


def _entries(entry: Mapping[str, Any], name: str) -> Iterator[Mapping[str, Any]]:
    value = entry.get(name)
    yield from (one for one in value if isinstance(one, dict)) if isinstance(value, list) else ()


def _number(entry: Mapping[str, Any], name: str) -> float | None:
    value = entry.get(name)
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _LONGEST**2
    return float(value) if is_number and value is not None else None


def _positive(entry: Mapping[str, Any], name: str) -> float | None:
    """A number from 0 to some thousand years, as ages and counts are."""
    value = _number(entry, name)
    return None if value is None or value >= _LONGEST else max(value, 0.0)


class Quantity(NamedTuple):
    """What the map of ranks shows of each rank."""

    name: str
    title: str
    value: Callable[[Rank], float | None]
    text: Callable[[float], str]
    top: float | None
    """The value of a full cell; None for the largest of all ranks."""
    judge: Callable[[float, float], str]
    """The style of a value, with the median of all ranks."""


def _of_busy(value: float, _: float) -> str:
    return "bad" if value <= 15 else "warning" if value < 50 else "good"


def _of_rate(value: float, median: float) -> str:
    return "bad" if value * 1.2 < median else "good"


def _of_wait(value: float, _: float) -> str:
    return "bad" if value > 0.2 else "warning" if value > 0.1 else "good"


QUANTITIES = (
    Quantity("busy", "GPU busy, %", lambda rank: rank.busy, lambda value: f"{value:.0f}%", 100.0, _of_busy),
    Quantity("steps", "steps per second", lambda rank: rank.steps_per_second, lambda it: f"{it:.3g}", None, _of_rate),
    Quantity("wait", "data wait, %", lambda rank: rank.data_wait, lambda value: f"{100 * value:.0f}%", 1.0, _of_wait),
    Quantity("cpu", "CPU cores", lambda rank: rank.cpu, lambda value: f"{value:.1f}", None, lambda *_: "good"),
)


def known_quantities(ranks: Sequence[Rank]) -> list[Quantity]:
    """Those that at least one rank has."""
    return [quantity for quantity in QUANTITIES if any(quantity.value(rank) is not None for rank in ranks)]
