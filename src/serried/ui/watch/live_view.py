"""What a run does now, as its page shows it: GPUs and ranks of all nodes, from live.json. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from serried.records.live import Live, LiveGpu, LiveNode, LiveRank, RunProgress

GpuKey = tuple[int, int]
"""A node and a GPU's index on it."""


@dataclass(frozen=True)
class GpuView:
    node: int
    host: str
    now: LiveGpu

    @property
    def key(self) -> GpuKey:
        return self.node, self.now.gpu


@dataclass(frozen=True)
class RankView:
    host: str
    now: LiveRank
    busy: float | None = None
    """Of its GPU; the mean of the node's GPUs if ranks and GPUs differ in number."""


@dataclass(frozen=True)
class LiveView:
    progress: RunProgress

    @property
    def live(self) -> Live:
        return self.progress.live

    @cached_property
    def gpus(self) -> list[GpuView]:
        return [GpuView(node.node, node.host, gpu) for node in self.live.nodes for gpu in node.gpus]

    @cached_property
    def ranks(self) -> list[RankView]:
        ranks = [rank for node in self.live.nodes for rank in _ranks(node)]
        return sorted(ranks, key=lambda it: it.now.rank)

    @property
    def step_age(self) -> float | None:
        """Seconds since any rank made a step; None if there was one shortly before the file was written."""
        age = min((rank.now.step_age for rank in self.ranks if rank.now.step_age is not None), default=0.0)
        return age + self.progress.age if age > self.live.interval else None


def _ranks(node: LiveNode) -> Iterator[RankView]:
    busy = [gpu.busy for gpu in node.gpus]
    known = [value for value in busy if value is not None]
    mean = statistics.mean(known) if known else None
    each = busy if len(busy) == len(node.ranks) else [mean] * len(node.ranks)
    for rank, its in zip(sorted(node.ranks, key=lambda it: it.rank), each, strict=True):
        yield RankView(node.host, rank, its)


class Quantity(NamedTuple):
    """What the map of ranks shows of each rank."""

    title: str
    value: Callable[[RankView], float | None]
    text: Callable[[float], str]
    top: float | None
    """The value of a full cell; None for the largest of all ranks."""
    judge: Callable[[float, float], str]
    """The style of a value, with the median of all ranks."""
    worst: str = "min"
    """The end that a straggler is at."""


def _of_busy(value: float, _: float) -> str:
    return "bad" if value <= 15 else "warning" if value < 50 else "good"


def _of_rate(value: float, median: float) -> str:
    return "bad" if value * 1.2 < median else "good"


def _of_wait(value: float, _: float) -> str:
    return "bad" if value > 0.2 else "warning" if value > 0.1 else "good"


QUANTITIES = (
    Quantity("GPU busy, %", lambda it: it.busy, lambda value: f"{value:.0f}%", 100.0, _of_busy),
    Quantity("steps per second", lambda it: it.now.steps_per_second, lambda it: f"{it:.3g}", None, _of_rate),
    Quantity("data wait, %", lambda it: it.now.data_wait, lambda it: f"{100 * it:.0f}%", 1.0, _of_wait, "max"),
    Quantity("CPU cores", lambda it: it.now.cpu, lambda value: f"{value:.1f}", None, lambda *_: "good"),
)


def known_quantities(ranks: Sequence[RankView]) -> list[Quantity]:
    """Those that at least one rank has."""
    return [quantity for quantity in QUANTITIES if any(quantity.value(rank) is not None for rank in ranks)]
