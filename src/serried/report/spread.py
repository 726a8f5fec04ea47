"""The spread between ranks: the extreme against the median, with its rank and node."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from serried.metrics.measured import RankFigures
from serried.report.usage import Usage, gpu_name

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
        return {name: getattr(self, name) for name in ("kind", "count", "median", "extreme", "where", "host")}


def spreads(usage: Usage) -> list[Spread]:
    """Those of which two or more values are known. Nodes of a short earlier attempt are not compared."""
    ranks = usage.measured.ranks
    longest = max((gpu.seconds for gpu in usage.rated_gpus), default=0.0)
    gpus = [gpu for gpu in usage.rated_gpus if gpu.seconds >= longest / 2]
    found = [
        _of_ranks(STEP_TIME, ranks, lambda rank: rank.step_seconds),
        _of_ranks(DATA_WAIT, ranks, lambda rank: rank.data_wait),
        _lowest(GPU_BUSY, [(gpu.busy.mean, gpu_name(gpu), gpu.host) for gpu in gpus if gpu.busy]),
        _lowest(GPU_POWER, [(gpu.power.mean, gpu_name(gpu), gpu.host) for gpu in gpus if gpu.power]),
        _of_ranks(RANK_MEMORY, ranks, lambda rank: rank.memory and rank.memory.maximum),
    ]
    return [each for each in found if each is not None]


def _of_ranks(kind: str, ranks: Sequence[RankFigures], value: Callable[[RankFigures], float | None]) -> Spread | None:
    known = [(value(rank), f"rank {rank.rank} on {rank.host}", rank.host) for rank in ranks]
    return _spread(kind, [(each, where, host) for each, where, host in known if each is not None], max)


def _lowest(kind: str, values: Sequence[tuple[float, str, str]]) -> Spread | None:
    return _spread(kind, values, min)


def _spread(kind: str, values: Sequence[tuple[float, str, str]], choose: Callable[..., Any]) -> Spread | None:
    if len(values) < 2:
        return None
    extreme, where, host = choose(values, key=lambda each: each[0])
    return Spread(kind, len(values), statistics.median(value for value, _, _ in values), extreme, where, host)
