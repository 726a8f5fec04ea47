"""Schedulers: what builds their argv and reads their output. Differences between them live here alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from serried.errors import UsageError

if TYPE_CHECKING:
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
