"""The samples of a run over time, for pictures and other readers of curves.

Clocks of nodes differ, and attempts may be days apart. So the time of each file counts from its own first sample, and
attempts follow each other without the waits between them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from serried.metrics.samples import NodeSamples, Period, Quantities, Samples, by_number, range_in

_FAR = 1.5
"""A period farther from the middle of its file than so many lengths of the file has a wrong time."""


@dataclass(frozen=True)
class Stretch:
    begin: float
    end: float
    """Seconds of measured time since the start of the first attempt."""
    value: float


@dataclass(frozen=True)
class Series:
    host: str
    gpu: str
    """Empty for a quantity of the node."""
    points: tuple[Stretch, ...]

    @property
    def label(self) -> str:
        return f"{self.host} GPU {self.gpu}" if self.gpu else self.host


@dataclass(frozen=True)
class Axis:
    """The time of all attempts together."""

    seconds: float
    starts: tuple[float, ...]
    """Where each attempt begins."""


def axis_of(samples: Samples) -> Axis:
    starts = _starts(samples)
    ends = [starts[node.attempt] + _length(node) for node in samples.nodes]
    return Axis(max(ends, default=0.0), tuple(starts.values()))


def of_gpus(samples: Samples, name: str) -> list[Series]:
    """The mean of a quantity of each GPU: `busy`, `memory`, `power` …"""
    found: dict[tuple[str, str], list[Stretch]] = {}
    starts = _starts(samples)
    for node in samples.nodes:
        for gpu in sorted({gpu for period in node.periods for gpu in period.gpus}, key=by_number):
            quantities = [(period, period.gpus.get(gpu, {})) for period in plausible(node)]
            points = _points(node, starts[node.attempt], name, quantities)
            found.setdefault((node.host, gpu), []).extend(points)
    return [Series(host, gpu, tuple(points)) for (host, gpu), points in found.items()]


def of_nodes(samples: Samples, name: str) -> list[Series]:
    """The mean of a quantity of each node: `cpu`, `memory`, `net_in` …"""
    found: dict[str, list[Stretch]] = {}
    starts = _starts(samples)
    for node in samples.nodes:
        quantities = [(period, period.node) for period in plausible(node)]
        points = _points(node, starts[node.attempt], name, quantities)
        found.setdefault(node.host, []).extend(points)
    return [Series(host, "", tuple(points)) for host, points in found.items()]


def _starts(samples: Samples) -> dict[int, float]:
    """When each attempt begins, by its number."""
    lengths: dict[int, float] = {}
    for node in samples.nodes:
        lengths[node.attempt] = max(lengths.get(node.attempt, 0.0), _length(node))
    starts, at = {}, 0.0
    for attempt in sorted(lengths):
        starts[attempt] = at
        at += lengths[attempt]
    return starts


def _length(node: NodeSamples) -> float:
    kept = plausible(node)
    return kept[-1].t - kept[0].t + kept[0].seconds


def plausible(node: NodeSamples) -> Sequence[Period]:
    """Without periods whose clock was far off. Never empty."""
    middle = node.periods[len(node.periods) // 2].t
    room = _FAR * node.one_in * sum(period.seconds for period in node.periods)
    return [period for period in node.periods if abs(period.t - middle) <= room]


def _points(
    node: NodeSamples, start: float, name: str, quantities: Sequence[tuple[Period, Quantities]]
) -> list[Stretch]:
    zero = quantities[0][0].t - quantities[0][0].seconds
    reach = 1 if node.one_in == 1 else 2 * node.one_in  # distances between lines that were read differ
    before = start
    points = []
    for period, found in quantities:
        values = range_in(found, name)
        if values is not None:
            end = start + period.t - zero
            points.append(Stretch(max(end - period.seconds * reach, before), end, values.mean))
            before = end
    return points
