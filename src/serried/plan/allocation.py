"""What the scheduler is asked for."""

from __future__ import annotations

from typing import NamedTuple

ALL = 0
"""Memory: all that a node has."""


class Allocation(NamedTuple):
    """One Slurm task per node owns everything on that node."""

    nodes: int
    ranks: int
    """Ranks per node."""
    gpus: int
    """GPUs per node; 0 on CPU clusters."""
    cpus: int
    """CPUs per node."""
    memory_mb: int | None
    """Memory per node in MiB; 0 is all of it; None leaves it to the cluster."""
    time_seconds: int | None
    """Walltime limit; None is no limit of ours."""
    gpu_type: str | None = None
    account: str | None = None
    partition: str | None = None
    qos: str | None = None
    reservation: str | None = None
    constraint: tuple[str, ...] = ()
    """Every one must hold: joined by `&`."""
    licenses: tuple[str, ...] = ()
    exclusive: bool = False
    comment: str | None = None
    mail_user: str | None = None
    mail_type: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()
    """Options for the scheduler's submit command, as they are."""
