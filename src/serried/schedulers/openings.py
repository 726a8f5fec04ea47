"""Where a job could start: the jobs ahead of it, whether it fits into what is free, what would start sooner. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from serried.schedulers.occupancy import NodeUse, Occupancy, PartitionUse, QueuedJob

SHORTEST_WINDOW_SECONDS = 600
"""A shorter limit than this helps nobody."""
_STEPS = ((2 * 3600, 3600), (3600, 1800), (0, 300))
"""How a window is rounded down: one of two hours or more to hours."""

SMALLER, PARTITION, SHORTER = "smaller", "partition", "shorter"


@dataclass(frozen=True)
class JobShape:
    """What a job requests. Amounts are those of each node."""

    nodes: int
    gpus: int = 0
    gpu_type: str = ""
    cpus: int = 1
    memory_mb: int = 0
    """0 if unknown."""
    seconds: int | None = None
    partitions: tuple[str, ...] = ()
    """Empty for the scheduler's choice."""
    whole_nodes: bool = False

    @classmethod
    def of(cls, job: QueuedJob) -> JobShape:
        """A job in the queue has totals: its nodes are taken for equal."""
        nodes = max(job.nodes, 1)
        return cls(
            nodes=nodes,
            gpus=math.ceil(job.gpus / nodes),
            gpu_type=job.gpu_type,
            cpus=max(math.ceil(job.cpus / nodes), 1),
            memory_mb=job.memory_mb // nodes,
            seconds=job.limit_seconds,
            partitions=job.partitions,
        )


@dataclass(frozen=True)
class Opening:
    """A change that fits into what is free now."""

    kind: str
    """SMALLER, PARTITION or SHORTER."""
    shape: JobShape
    """The changed request."""

    def to_json(self) -> dict[str, Any]:
        shape = self.shape
        return {
            "kind": self.kind,
            "nodes": shape.nodes,
            "gpus_per_node": shape.gpus,
            "gpu_type": shape.gpu_type or None,
            "partition": ",".join(shape.partitions) or None,
            "time_seconds": shape.seconds,
        }


def ahead_of(occupancy: Occupancy, job: QueuedJob) -> list[QueuedJob]:
    """The jobs that wait for resources of one of its partitions and come first, as far as they are listed."""
    before: list[QueuedJob] = []
    for other in occupancy.jobs:
        if other is job:
            break
        if other.waits_for_resources and set(other.partitions) & set(job.partitions):
            before.append(other)
    return before


def waiting_in(occupancy: Occupancy, partition: str) -> list[QueuedJob]:
    """The jobs that wait for resources in a partition."""
    return [job for job in occupancy.jobs if job.waits_for_resources and partition in job.partitions]


def partitions_for(occupancy: Occupancy, shape: JobShape) -> list[PartitionUse]:
    """The partitions that the job names, or the default one, or all that are open to the user."""
    if shape.partitions:
        return [one for one in occupancy.partitions if one.name in shape.partitions]
    default = [one for one in occupancy.partitions if one.is_default]
    return default or [one for one in occupancy.partitions if one.is_for_me and not one.is_hidden]


def room(occupancy: Occupancy, shape: JobShape, partition: str, *, with_planned: bool = False) -> int:
    """How many of its nodes fit into what is free in a partition now.

    `with_planned` counts nodes that the scheduler keeps for another job.
    """
    return sum(
        partition in node.partitions and (with_planned or not node.is_planned) and _has_room(node, shape)
        for node in occupancy.nodes
    )


def fits_now(occupancy: Occupancy, shape: JobShape) -> list[str]:
    """The partitions of the job in which all that it requests is free."""
    return [
        one.name
        for one in partitions_for(occupancy, shape)
        if one.is_open and _within(shape, one) and room(occupancy, shape, one.name) >= shape.nodes
    ]


def sooner(occupancy: Occupancy, shape: JobShape, ahead: Sequence[QueuedJob], now: float) -> list[Opening]:
    """What would fit now and is not kept for another job."""
    shorter = [*_shorter(occupancy, shape, ahead, now)]
    if fits_now(occupancy, shape):
        return shorter
    return [*shorter, *_elsewhere(occupancy, shape), *_smaller(occupancy, shape)]


def _shorter(occupancy: Occupancy, shape: JobShape, ahead: Sequence[QueuedJob], now: float) -> Iterator[Opening]:
    """A job that ends before the next one ahead is expected to start may go first (backfill)."""
    starts = [job.starts for job in ahead if job.starts is not None and job.starts > now]
    if not starts:
        return
    window = int(min(starts) - now)
    window -= window % next(step for least, step in _STEPS if window >= least)
    is_shorter = shape.seconds is None or window < shape.seconds
    if window < SHORTEST_WINDOW_SECONDS or not is_shorter:
        return
    for one in partitions_for(occupancy, shape):
        if one.is_open and room(occupancy, shape, one.name, with_planned=True) >= shape.nodes:
            yield Opening(SHORTER, replace(shape, seconds=window, partitions=(one.name,)))
            return


def _elsewhere(occupancy: Occupancy, shape: JobShape) -> Iterator[Opening]:
    """Another partition that has room and where no job waits for resources."""
    own = {one.name for one in partitions_for(occupancy, shape)}
    for one in occupancy.partitions:
        is_possible = one.is_open and one.is_for_me and not one.is_hidden and one.name not in own
        if not is_possible or waiting_in(occupancy, one.name):
            continue
        limit = one.limit_seconds
        seconds = limit if limit and (shape.seconds is None or limit < shape.seconds) else shape.seconds
        if room(occupancy, shape, one.name) >= shape.nodes:
            yield Opening(PARTITION, replace(shape, partitions=(one.name,), seconds=seconds))
            return


def _smaller(occupancy: Occupancy, shape: JobShape) -> Iterator[Opening]:
    """Fewer nodes, or fewer GPUs on one node: the most that fits now in a partition of the job."""
    best: Opening | None = None
    for one in partitions_for(occupancy, shape):
        if not one.is_open:
            continue
        nodes = min(room(occupancy, shape, one.name), shape.nodes - 1)
        smaller = replace(shape, nodes=nodes) if nodes else _on_one_node(occupancy, shape, one.name)
        if smaller and (best is None or _size(smaller) > _size(best.shape)):
            best = Opening(SMALLER, replace(smaller, partitions=(one.name,)))
    if best:
        yield best


def _on_one_node(occupancy: Occupancy, shape: JobShape, partition: str) -> JobShape | None:
    """With CPUs and memory in proportion."""
    for gpus in range(shape.gpus - 1, 0, -1):
        smaller = replace(
            shape,
            nodes=1,
            gpus=gpus,
            cpus=max(shape.cpus * gpus // shape.gpus, 1),
            memory_mb=shape.memory_mb * gpus // shape.gpus,
        )
        if room(occupancy, smaller, partition):
            return smaller
    return None


def _size(shape: JobShape) -> int:
    return shape.nodes * (shape.gpus or shape.cpus)


def _within(shape: JobShape, partition: PartitionUse) -> bool:
    return not (shape.seconds and partition.limit_seconds and shape.seconds > partition.limit_seconds)


def _has_room(node: NodeUse, shape: JobShape) -> bool:
    if not node.is_up or node.free_cpus < shape.cpus or node.free_memory_mb < shape.memory_mb:
        return False
    if shape.whole_nodes and not node.is_idle:
        return False
    is_any = {"", shape.gpu_type}  # some schedulers do not report types
    return sum(n for kind, n in node.free_gpus.items() if not shape.gpu_type or kind in is_any) >= shape.gpus
