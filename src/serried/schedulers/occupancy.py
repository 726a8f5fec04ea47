"""How full a cluster is, in the same terms for all schedulers: free resources, and jobs. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol


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


@dataclass(frozen=True)
class Occupancy:
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


class OccupancySurvey(Protocol):
    """The module `occupancy` of a scheduler."""

    def ask(self, environ: Mapping[str, str], user: str, seconds: float) -> dict[str, str]:
        """Output of its commands, by name. Raises SchedulerUnreachable, at the latest after `seconds`."""

    def read(self, texts: Mapping[str, str], user: str) -> Occupancy:
        """What `ask` returned. Pure."""

    def identity(self, environ: Mapping[str, str]) -> tuple[str, ...]:
        """What tells this cluster from others that share this home."""


@dataclass(frozen=True)
class GpuCount:
    """The GPUs of one type on some nodes."""

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
    """The GPUs of each type, the most common type first."""
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
