"""How full a cluster is, in the same terms for all schedulers, and where a job could start. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from serried.base import NamedTuple

SHORTEST_WINDOW_SECONDS = 600
"""A shorter limit than this helps nobody."""
_STEPS = ((2 * 3600, 3600), (3600, 1800), (0, 300))
"""How a window is rounded down: one of two hours or more to hours."""

SMALLER, PARTITION, SHORTER = "smaller", "partition", "shorter"


class NodeUse(NamedTuple):
    name: str
    partitions: tuple[str, ...]
    state: str
    """The scheduler's word."""
    is_up: bool
    """Whether it takes jobs of every user."""
    is_planned: bool
    """Whether the scheduler keeps its free part for a job that waits."""
    cpus: int
    free_cpus: int
    memory_mb: int
    free_memory_mb: int
    gpus: Mapping[str, int]
    """By type; the type of untyped GPUs is empty."""
    free_gpus: Mapping[str, int]
    """Those that a job can get now: none on a node that is not up, or that has no free CPU."""

    @property
    def is_idle(self) -> bool:
        return (
            self.is_up and 0 < self.cpus == self.free_cpus and sum(self.gpus.values()) == sum(self.free_gpus.values())
        )


class PartitionUse(NamedTuple):
    name: str
    is_open: bool
    """Whether its jobs start."""
    is_default: bool = False
    limit_seconds: int | None = None
    """The longest time limit; None without a limit."""
    is_for_me: bool = True
    """Whether the user may submit to it, as far as the scheduler reports that."""
    is_hidden: bool = False


class QueuedJob(NamedTuple):
    """A job that runs or waits. Tasks of an array that wait together are one."""

    id: str
    """The scheduler's own id; for tasks of an array the array's."""
    is_running: bool
    is_mine: bool
    partitions: tuple[str, ...]
    tasks: int = 1
    waits_for_resources: bool = False
    """Whether it could start once enough is free: not held, not behind another job, not at a limit."""
    priority: float = 0.0
    """Higher starts first; of equals, the one that comes first in the scheduler's list."""
    nodes: int = 1
    gpus: int = 0
    """On all nodes of one task, as all amounts here."""
    gpu_type: str = ""
    cpus: int = 0
    memory_mb: int = 0
    limit_seconds: int | None = None
    reason: str = ""
    """In the scheduler's word."""
    starts: float | None = None
    """The scheduler's estimate, in seconds since the epoch."""
    ends: float | None = None
    """By its time limit, if it runs."""


class JobShape(NamedTuple):
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

    @property
    def size(self) -> int:
        return self.nodes * (self.gpus or self.cpus)

    def fits(self, node: NodeUse) -> bool:
        if not node.is_up or node.free_cpus < self.cpus or node.free_memory_mb < self.memory_mb:
            return False
        if self.whole_nodes and not node.is_idle:
            return False
        suitable = {"", self.gpu_type}  # some schedulers do not report types
        return sum(n for kind, n in node.free_gpus.items() if not self.gpu_type or kind in suitable) >= self.gpus


class Opening(NamedTuple):
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


class Occupancy(NamedTuple):
    nodes: tuple[NodeUse, ...] = ()
    partitions: tuple[PartitionUse, ...] = ()
    """In the scheduler's order."""
    jobs: tuple[QueuedJob, ...] = ()
    """In the order in which the scheduler looks at them, if it tells."""
    sees_all_jobs: bool = True
    """Whether jobs of other users are listed."""

    @property
    def mine(self) -> list[QueuedJob]:
        return [job for job in self.jobs if job.is_mine]

    def shown_partitions(self) -> list[PartitionUse]:
        """Those that concern this user: open to the user and not hidden, or with a job of the user."""
        used = {name for job in self.mine for name in job.partitions}
        return [one for one in self.partitions if (one.is_for_me and not one.is_hidden) or one.name in used]

    def ahead_of(self, job: QueuedJob) -> list[QueuedJob]:
        """The jobs that wait for resources of one of its partitions and come first, as far as they are listed."""
        before: list[QueuedJob] = []
        for other in self.jobs:
            if other is job:
                break
            if other.waits_for_resources and set(other.partitions) & set(job.partitions):
                before.append(other)
        return before

    def waiting_in(self, partition: str) -> list[QueuedJob]:
        return [job for job in self.jobs if job.waits_for_resources and partition in job.partitions]

    def partitions_for(self, shape: JobShape) -> list[PartitionUse]:
        """The partitions that the job names, or the default one, or all that are open to the user."""
        if shape.partitions:
            return [one for one in self.partitions if one.name in shape.partitions]
        default = [one for one in self.partitions if one.is_default]
        return default or [one for one in self.partitions if one.is_for_me and not one.is_hidden]

    def free_nodes(self, shape: JobShape, partition: str, *, with_planned: bool = False) -> int:
        """How many of the job's nodes fit into what is free in a partition now.

        `with_planned` counts nodes that the scheduler keeps for another job.
        """
        return sum(
            partition in node.partitions and (with_planned or not node.is_planned) and shape.fits(node)
            for node in self.nodes
        )

    def fits_now(self, shape: JobShape) -> list[str]:
        """The partitions of the job in which all that it requests is free."""
        return [
            one.name
            for one in self.partitions_for(shape)
            if one.is_open
            and not (shape.seconds and one.limit_seconds and shape.seconds > one.limit_seconds)
            and self.free_nodes(shape, one.name) >= shape.nodes
        ]

    def sooner(self, shape: JobShape, ahead: Sequence[QueuedJob], now: float) -> list[Opening]:
        """What would fit now and is not kept for another job."""
        openings = [*self._shorter(shape, ahead, now)]
        if not self.fits_now(shape):
            openings += [*self._elsewhere(shape), *self._smaller(shape)]
        return openings

    def _shorter(self, shape: JobShape, ahead: Sequence[QueuedJob], now: float) -> Iterator[Opening]:
        """A job that ends before the next one ahead is expected to start may go first (backfill)."""
        starts = [job.starts for job in ahead if job.starts is not None and job.starts > now]
        window = int(min(starts) - now) if starts else 0
        window -= window % next(step for least, step in _STEPS if window >= least)
        if window < SHORTEST_WINDOW_SECONDS or (shape.seconds is not None and window >= shape.seconds):
            return
        for one in self.partitions_for(shape):
            if one.is_open and self.free_nodes(shape, one.name, with_planned=True) >= shape.nodes:
                yield Opening(SHORTER, shape._replace(seconds=window, partitions=(one.name,)))
                return

    def _elsewhere(self, shape: JobShape) -> Iterator[Opening]:
        """Another partition that has room and where no job waits for resources."""
        own = {one.name for one in self.partitions_for(shape)}
        for one in self.partitions:
            is_possible = one.is_open and one.is_for_me and not one.is_hidden and one.name not in own
            if is_possible and not self.waiting_in(one.name) and self.free_nodes(shape, one.name) >= shape.nodes:
                seconds = min((limit for limit in (shape.seconds, one.limit_seconds) if limit), default=shape.seconds)
                yield Opening(PARTITION, shape._replace(partitions=(one.name,), seconds=seconds))
                return

    def _smaller(self, shape: JobShape) -> Iterator[Opening]:
        """Fewer nodes, or fewer GPUs on one node with CPUs and memory in proportion: the most that fits now in a
        partition of the job.
        """
        best: JobShape | None = None
        for one in self.partitions_for(shape):
            if not one.is_open:
                continue
            fewer_nodes = min(self.free_nodes(shape, one.name), shape.nodes - 1)
            on_one_node = (
                shape._replace(
                    nodes=1,
                    gpus=gpus,
                    cpus=max(shape.cpus * gpus // shape.gpus, 1),
                    memory_mb=shape.memory_mb * gpus // shape.gpus,
                )
                for gpus in range(shape.gpus - 1, 0, -1)
            )
            candidates = [shape._replace(nodes=fewer_nodes)] if fewer_nodes else on_one_node
            smaller = next((each for each in candidates if self.free_nodes(each, one.name)), None)
            if smaller and (best is None or smaller.size > best.size):
                best = smaller._replace(partitions=(one.name,))
        if best:
            yield Opening(SMALLER, best)


class GpuCount(NamedTuple):
    type: str
    total: int = 0
    free: int = 0
    out: int = 0
    """On nodes that are down, drained or reserved."""
    planned: int = 0
    """Of the free ones, those that the scheduler keeps for a job that waits."""
    most_on_one_node: int = 0
    """The most free ones on one node."""

    @property
    def in_use(self) -> int:
        return self.total - self.free - self.out


def count_gpus(nodes: Iterable[NodeUse]) -> list[GpuCount]:
    total, free, out, planned, most = Counter[str](), Counter[str](), Counter[str](), Counter[str](), dict[str, int]()
    for node in nodes:
        for kind, count in node.gpus.items():
            total[kind] += count
            if not node.is_up:
                out[kind] += count
                continue
            available = node.free_gpus.get(kind, 0)
            free[kind] += available
            planned[kind] += available if node.is_planned else 0
            most[kind] = max(most.get(kind, 0), available)
    return [
        GpuCount(kind, count, free[kind], out[kind], planned[kind], most.get(kind, 0))
        for kind, count in total.most_common()
        if count
    ]
