"""The jobs ahead of a job, and what would start sooner, as options to type."""

from __future__ import annotations

from collections.abc import Sequence

from serried.base.text import counted, show_duration
from serried.schedulers import openings
from serried.schedulers.occupancy import QueuedJob
from serried.schedulers.openings import JobShape, Opening
from serried.views.text import printable


def opening_text(opening: Opening, shape: JobShape) -> str:
    its = opening.shape
    partition = printable(its.partitions[0])
    if opening.kind == openings.SMALLER:
        gpus = f" --gpus {its.gpus}" if its.gpus != shape.gpus else ""
        return f"`--nodes {its.nodes}{gpus}` fits what is free now in {partition}"
    limit = f" --time {show_duration(its.seconds)}" if its.seconds and its.seconds != shape.seconds else ""
    if opening.kind == openings.PARTITION:
        return f"`--partition {partition}{limit}` fits what is free there now, and no job waits there"
    return f"`{limit.strip()}` fits before the next job ahead is expected to start"


def ahead_text(jobs: Sequence[QueuedJob]) -> str:
    """`12 jobs with 48 GPUs`: those that come first."""
    if not jobs:
        return "no jobs in the same partition"
    gpus = sum(job.gpus * job.tasks for job in jobs)
    return counted(sum(job.tasks for job in jobs), "job") + (f" with {counted(gpus, 'GPU')}" if gpus else "")
