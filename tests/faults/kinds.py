"""The kinds of faults."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from faults.case import Case
from faults.injections import (
    Heal,
    cancel,
    cut_network,
    damage_record,
    fill_disk,
    hit_daemon,
    hit_process,
    lose_directory,
    step_clock,
    strangers,
)
from faults.nesting import hit_nested, nest
from faults.odd_sessions import end_oddly, make_odd


@dataclass(frozen=True)
class Kind:
    inject: Callable[[Case], Heal]
    is_early: bool = False
    """It meets the command that submits, not the run."""
    where: str = ""
    """`slurm` or `local`, where it is possible there alone."""
    is_shared: bool = False
    """It meets everything in the lab, so that no other case may run meanwhile."""
    nodes: int | None = None
    needs_disk: bool = False
    """The case needs a disk of its own, which only root can make."""
    arrange: Callable[[Case], None] = lambda _: None
    """What the fault needs to be in place before the run is submitted."""


KINDS: Mapping[str, Kind] = {
    "kill submit": Kind(partial(hit_process, name="submit", kill=True), is_early=True),
    "stop submit": Kind(partial(hit_process, name="submit", kill=False), is_early=True),
    **{f"kill {name}": Kind(partial(hit_process, name=name, kill=True)) for name in ("job.sh", "head", "finish")},
    **{f"stop {name}": Kind(partial(hit_process, name=name, kill=False)) for name in ("job.sh", "head")},
    "kill node agent": Kind(partial(hit_process, name="node", kill=True)),
    "stop node agent": Kind(partial(hit_process, name="node", kill=False)),
    "kill rank": Kind(partial(hit_process, name="rank", kill=True)),
    "stop rank": Kind(partial(hit_process, name="rank", kill=False)),
    "kill local supervisor": Kind(partial(hit_process, name="supervisor", kill=True), where="local"),
    "kill slurmctld": Kind(
        partial(hit_daemon, name="slurmctld", kill=True), where="slurm", is_shared=True, is_early=True
    ),
    "stop slurmctld": Kind(
        partial(hit_daemon, name="slurmctld", kill=False), where="slurm", is_shared=True, is_early=True
    ),
    "kill slurmd": Kind(
        partial(hit_daemon, name="slurmd", kill=True), where="slurm", nodes=2, is_shared=True, is_early=True
    ),
    "stop slurmd": Kind(
        partial(hit_daemon, name="slurmd", kill=False), where="slurm", nodes=2, is_shared=True, is_early=True
    ),
    "full disk": Kind(fill_disk, needs_disk=True),
    "directory renamed": Kind(partial(lose_directory, for_good=False)),
    "directory removed": Kind(partial(lose_directory, for_good=True)),
    "network cut": Kind(cut_network, where="slurm", nodes=2),
    "strangers": Kind(strangers, is_early=True),
    "damaged record": Kind(damage_record),
    "clock step": Kind(step_clock),
    "nested runs": Kind(hit_nested, arrange=nest),
    "odd end of a session": Kind(end_oddly, arrange=make_odd),
    "cancel": Kind(partial(cancel, by_scheduler=False)),
    "scancel": Kind(partial(cancel, by_scheduler=True), where="slurm"),
    "cancel, kill head": Kind(partial(cancel, by_scheduler=False, then="head")),
    "cancel, kill job.sh": Kind(partial(cancel, by_scheduler=False, then="job.sh")),
}
