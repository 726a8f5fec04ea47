"""The job that we are in: `salloc`, `qsub -I`, `serried shell`, or a batch script that calls us."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Inside:
    """What a job has to give. Where nodes differ, the least that each has."""

    scheduler: str
    job: str
    hosts: tuple[str, ...]
    """The scheduler's names for its nodes, the first one first."""
    cpus: int
    """On each node."""
    gpus: int
    """On each node."""
    tasks: int
    """Tasks on each node, as whoever asked for it said; 1 where nobody did."""
    seconds: int | None
    """Until its time is over; None has no end."""
    is_here: bool
    """Whether this is its first node: `salloc` leaves its shell where it was typed."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """What tells the scheduler's commands which job they are in."""

    @property
    def to_first_node(self) -> tuple[str, ...]:
        """Words that start the words after them on the first node; none where that is here."""
        if self.is_here or self.scheduler != "slurm":
            return ()
        where = ("--nodes=1", "--ntasks=1", "--cpus-per-task=1", f"--nodelist={self.hosts[0]}", "--gres=none")
        return ("srun", *where, "--overlap", "--export=ALL", "--input=none", "--unbuffered", "--job-name=serried")
