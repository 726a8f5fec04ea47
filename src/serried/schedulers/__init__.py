"""Schedulers: what builds their argv and reads their output. Differences between them live here alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from serried.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from serried.schedulers.current_job import Inside
    from serried.schedulers.interface import Scheduler

NAMES = ("local", "slurm", "pbs")


def get(name: str) -> Scheduler:
    """The scheduler that a profile calls `name`; its module is imported now, not before."""
    if name == "slurm":
        from serried.schedulers.slurm.scheduler import Slurm

        return Slurm()
    if name == "pbs":
        from serried.schedulers.pbs.scheduler import Pbs

        return Pbs()
    if name == "local":
        from serried.schedulers.local.scheduler import Local

        return Local()
    raise UsageError(f"there is no scheduler `{name}`", hint=f"use one of: {', '.join(NAMES)}")


def job_around(environ: Mapping[str, str]) -> Inside | None:
    """The job that `environ` is of, as its scheduler describes it; None outside of any.

    Raises SchedulerUnreachable where the scheduler does not answer.
    """
    if environ.get("SLURM_JOB_ID") and environ.get("SLURM_JOB_NODELIST"):
        from serried.schedulers.slurm import current_job as slurm

        return slurm.inside(environ)
    if environ.get("PBS_JOBID") and (environ.get("PBS_NODEFILE") or environ.get("PBS_TASKNUM")):
        from serried.schedulers.pbs import current_job as pbs

        return pbs.inside(environ)
    return None
