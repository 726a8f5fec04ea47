"""The jobs ahead of a job, and what would start sooner, as options to type."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from serried.base.text import counted, duration, show_duration
from serried.schedulers import occupancy_cache
from serried.schedulers.occupancy import PARTITION, SMALLER, JobShape, Opening, QueuedJob, count_gpus
from serried.views.text import printable

_REMEMBERED_SECONDS = 600.0


def opening_text(opening: Opening, shape: JobShape) -> str:
    its = opening.shape
    partition = printable(its.partitions[0])
    if opening.kind == SMALLER:
        gpus = f" --gpus {its.gpus}" if its.gpus != shape.gpus else ""
        return f"`--nodes {its.nodes}{gpus}` fits what is free now in {partition}"
    limit = f" --time {show_duration(its.seconds)}" if its.seconds and its.seconds != shape.seconds else ""
    if opening.kind == PARTITION:
        return f"`--partition {partition}{limit}` fits what is free there now, and no job waits there"
    return f"`{limit.strip()}` fits before the next job ahead is expected to start"


def ahead_text(jobs: Sequence[QueuedJob]) -> str:
    """`12 jobs with 48 GPUs`: those that come first."""
    if not jobs:
        return "no jobs in the same partition"
    gpus = sum(job.gpus * job.tasks for job in jobs)
    return counted(sum(job.tasks for job in jobs), "job") + (f" with {counted(gpus, 'GPU')}" if gpus else "")


def age_text(seconds: float) -> str:
    return "now" if seconds < 1 else f"{duration(seconds)} ago"


def remembered(scheduler: str, job: str, environ: Mapping[str, str]) -> str:
    """The jobs ahead of a job and the GPUs that are free in its partitions, by an answer of some minutes."""
    look = occupancy_cache.remembered(scheduler, environ, seconds=_REMEMBERED_SECONDS)
    own = next((one for one in look.occupancy.jobs if one.id == job and not one.is_running), None) if look else None
    if look is None or own is None or not own.waits_for_resources:
        return ""
    nodes = [node for node in look.occupancy.nodes if set(own.partitions) & set(node.partitions)]
    counts = [one for one in count_gpus(nodes) if own.gpus and own.gpu_type in ("", one.type)]
    free = ", ".join(f"{one.free} of {one.total}{' ' + one.type if one.type else ''} GPUs" for one in counts)
    ahead = ahead_text(look.occupancy.ahead_of(own))
    age = age_text(look.age(time.time()))
    return f"ahead {ahead}" + (f"; free {free}" if free else "") + f", as of {age}"
