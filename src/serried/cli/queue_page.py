"""The facts of `serried queue` as one value, and its JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from serried import schedulers
from serried.protocol.times import iso
from serried.schedulers import openings
from serried.schedulers.occupancy import GpuCount, Occupancy, PartitionUse, QueuedJob, count_gpus
from serried.schedulers.occupancy_cache import Look
from serried.schedulers.openings import JobShape


@dataclass(frozen=True)
class Planned:
    """An experiment that is not submitted."""

    experiment: str
    shape: JobShape
    tasks: int = 1


@dataclass(frozen=True)
class Page:
    cluster: str
    scheduler: str
    look: Look
    runs: Mapping[str, tuple[str, str]]
    """The id and the name of a run, by job."""
    planned: Planned | None
    now: float
    waiting: Sequence[QueuedJob]
    """Jobs of the user to show."""
    is_for_one: bool = False
    """Whether the page is about one run."""

    @property
    def occupancy(self) -> Occupancy:
        return self.look.occupancy

    @property
    def partitions(self) -> list[PartitionUse]:
        if self.planned:
            return openings.partitions_for(self.occupancy, self.planned.shape)
        own = {name for job in self.waiting for name in job.partitions}
        return [one for one in self.occupancy.shown_partitions() if not self.is_for_one or one.name in own]


def rivals_of(occupancy: Occupancy, shape: JobShape) -> list[QueuedJob]:
    """The jobs that wait in the partitions of a job that is not submitted."""
    names = {one.name for one in openings.partitions_for(occupancy, shape)}
    return [job for job in occupancy.jobs if job.waits_for_resources and names.intersection(job.partitions)]


def to_json(page: Page) -> dict[str, Any]:
    occupancy, look = page.occupancy, page.look
    return {
        "cluster": page.cluster,
        "scheduler": page.scheduler,
        "as_of": iso(look.at),
        "age_seconds": look.age(page.now),
        "problem": look.problem.message if look.problem else None,
        "gpus": [_count_json(count) for count in count_gpus(occupancy.nodes)],
        "partitions": [_partition_json(occupancy, one) for one in occupancy.partitions],
        "sees_all_jobs": occupancy.sees_all_jobs,
        "waiting": [_job_json(page, job) for job in page.waiting],
        "plan": _planned_json(page, page.planned) if page.planned else None,
    }


def _count_json(count: GpuCount) -> dict[str, Any]:
    return {**asdict(count), "type": count.type or None, "in_use": count.in_use}


def _partition_json(occupancy: Occupancy, one: PartitionUse) -> dict[str, Any]:
    nodes = [node for node in occupancy.nodes if one.name in node.partitions]
    inside = [job for job in occupancy.jobs if one.name in job.partitions]
    waiting = openings.waiting_in(occupancy, one.name)
    return {
        **one._asdict(),
        "gpus": [_count_json(count) for count in count_gpus(nodes)],
        "nodes": len(nodes),
        "idle_nodes": sum(node.is_idle for node in nodes),
        "cpus": sum(node.cpus for node in nodes),
        "free_cpus": sum(node.free_cpus for node in nodes),
        "running_jobs": sum(job.tasks for job in inside if job.is_running),
        "waiting_jobs": sum(job.tasks for job in waiting),
        "waiting_gpus": sum(job.tasks * job.gpus for job in waiting),
        "blocked_jobs": sum(job.tasks for job in inside if not job.is_running and not job.waits_for_resources),
    }


def _job_json(page: Page, job: QueuedJob) -> dict[str, Any]:
    ahead = openings.ahead_of(page.occupancy, job)
    run, _ = page.runs.get(job.id, (None, ""))
    scheduler = schedulers.get(page.scheduler)
    return {
        "job": job.id,
        "run": run,
        "tasks": job.tasks,
        "partitions": list(job.partitions),
        "nodes": job.nodes,
        "gpus": job.gpus,
        "gpu_type": job.gpu_type or None,
        "time_seconds": job.limit_seconds,
        "reason": job.reason or None,
        "meaning": scheduler.explain(job.reason),
        "cause": scheduler.classify(job.reason),
        "ahead_jobs": sum(one.tasks for one in ahead) if job.waits_for_resources else None,
        "expected_start": iso(job.starts),
        **(_openings_json(page, JobShape.of(job), ahead) if job.waits_for_resources else _NO_OPENINGS),
    }


_NO_OPENINGS: Mapping[str, Any] = {"fits_in": [], "sooner": []}


def _planned_json(page: Page, planned: Planned) -> dict[str, Any]:
    ahead = rivals_of(page.occupancy, planned.shape)
    return {
        "experiment": planned.experiment,
        "tasks": planned.tasks,
        "shape": asdict(planned.shape),
        "ahead_jobs": sum(one.tasks for one in ahead),
        **_openings_json(page, planned.shape, ahead),
    }


def _openings_json(page: Page, shape: JobShape, ahead: Sequence[QueuedJob]) -> dict[str, Any]:
    return {
        "fits_in": openings.fits_now(page.occupancy, shape),
        "sooner": [opening.to_json() for opening in openings.sooner(page.occupancy, shape, ahead, page.now)],
    }
