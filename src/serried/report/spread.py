"""The spread between ranks: the extreme against the median, with its rank and node."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

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
    return [each for each in found if each is not None]


def _spread(kind: str, choose: Callable[..., Any], values: Sequence[tuple[float | None, str, str]]) -> Spread | None:
    known = [(value, where, host) for value, where, host in values if value is not None]
    if len(known) < 2:
        return None
    extreme, where, host = choose(known, key=lambda each: each[0])
    return Spread(kind, len(known), statistics.median(value for value, _, _ in known), extreme, where, host)
