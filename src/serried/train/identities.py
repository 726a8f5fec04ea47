"""The identity of this process: its rank and the world size, from any launcher's variables. Needs no torch.

The first launcher whose marker variables are present decides. All other launchers that are present must agree, or must
have started only that launcher: one task per node. With a wrong rank a training hangs, or runs eight times.
"""

from __future__ import annotations

import os
import re
import socket
from dataclasses import dataclass, field, replace
from typing import Dict, List, Mapping, Optional, Sequence, Tuple

from serried.schema import launchers, names
from serried.schema.launchers import LauncherVariables
from serried.train.errors import IdentityError

_COUNT = re.compile(r"(\d+)(?:\(x(\d+)\))?")


@dataclass(frozen=True)
class Identity:
    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    node_rank: int = 0
    source: str = "local"
    """The launcher that set the variables: a name in `launchers.SOURCES`, or `local`."""
    evidence: Mapping[str, str] = field(default_factory=dict)
    """The variables that decided, with their values."""
    notes: Tuple[str, ...] = ()
    """Other launchers that were detected, and why they do not count."""
    launch: str = ""
    """Identifies this launch on all its nodes; empty if the launcher gives no id."""
    hosts: str = ""
    """The nodes as a host list, rank 0's first; empty if the launcher does not name them."""
    node_name: str = ""
    """This node's name in Slurm, else its host name."""

    @property
    def spans_nodes(self) -> bool:
        return self.local_world_size < self.world_size

    def explain(self) -> str:
        """A description of the identity and its evidence, in a few lines."""
        titles = {source.name: source.title for source in launchers.SOURCES}
        place = f"local rank {self.local_rank} of {self.local_world_size}, node {self.node_rank}"
        origin = f"according to {titles[self.source]}:" if self.evidence else "one process: no launcher set variables"
        variables = [f"  {name}={value}" for name, value in self.evidence.items()]
        return "\n".join([f"rank {self.rank} of {self.world_size}, {place}", origin, *variables, *self.notes])

    def variables(self) -> Dict[str, str]:
        """The identity as torchrun's variables, for libraries that read only these."""
        return {
            "RANK": str(self.rank),
            "WORLD_SIZE": str(self.world_size),
            "LOCAL_RANK": str(self.local_rank),
            "LOCAL_WORLD_SIZE": str(self.local_world_size),
            "GROUP_RANK": str(self.node_rank),
            "NODE_RANK": str(self.node_rank),
        }


def identity(environ: Optional[Mapping[str, str]] = None) -> Identity:
    """Read `environ`, by default the process's own. Raises IdentityError if it is contradictory or incomplete."""
    if environ is None:
        environ = os.environ
    readings = [_Reading(source, environ) for source in launchers.SOURCES if _is_present(source, environ)]
    if not readings:
        return replace(_alone(environ), node_name=socket.gethostname())
    winner = _decide(readings)
    for other in readings:
        _cross_check(winner, other)
    # Variables such as RANK without an address do not count as a launch, but must not contradict the launcher.
    if all(each.source not in (launchers.SERRIED, launchers.TORCHRUN, launchers.GENERIC) for each in readings):
        _cross_check(winner, _Reading(launchers.GENERIC, environ))
    # MPI's launchers pass the first node's variables on to the ranks of all nodes.
    is_own = winner.source in (launchers.SERRIED, launchers.SLURM)
    name = environ.get("SLURMD_NODENAME") if is_own else None
    return replace(winner.conclude(), node_name=name or socket.gethostname())


def tasks_per_node(text: str) -> List[int]:
    """`4(x2),2` is [4, 4, 2]."""
    counts: List[int] = []
    for part in text.split(","):
        match = _COUNT.fullmatch(part.strip())
        if not match:
            raise IdentityError(f"cannot read `{text}` as tasks per node")
        counts += [int(match.group(1))] * int(match.group(2) or 1)
    return counts


def _is_present(source: LauncherVariables, environ: Mapping[str, str]) -> bool:
    if not all(environ.get(name) for name in source.markers):
        return False
    # A torchrun within a rank of ours puts its own run id there, and its own ranks.
    return source is not launchers.SERRIED or environ["TORCHELASTIC_RUN_ID"] == names.elastic_id(
        environ["SERRIED_RUN_ID"]
    )


class _Reading:
    """The identity according to one launcher; parts may be missing."""

    def __init__(self, source: LauncherVariables, environ: Mapping[str, str]) -> None:
        self.source = source
        self.environ = environ
        self.evidence: Dict[str, str] = {}
        self.rank = self._number(source.rank)
        self.world_size = self._number(source.world_size) or self._of_node_file()
        self.local_rank = self._number(source.local_rank)
        self.node_rank = self._number(source.node_rank)
        self.local_world_size = self._local_world_size()
        for part, whole in (("rank", "world_size"), ("local_rank", "local_world_size")):
            inner, outer = getattr(self, part), getattr(self, whole)
            if inner is not None and outer is not None and inner >= outer:
                conflict = f"{self.quote(getattr(source, part))}, but {self.quote(getattr(source, whole))}"
                raise IdentityError(conflict, "one of them is left over from another launch; `unset` it")

    def _value(self, names: Sequence[str]) -> Optional[str]:
        for name in names:
            if self.environ.get(name):
                self.evidence[name] = self.environ[name]
                return self.environ[name]
        return None

    def _number(self, names: Sequence[str]) -> Optional[int]:
        value = self._value(names)
        if value is None:
            return None
        if not value.isdecimal():
            name = next(name for name in names if self.environ.get(name))
            raise IdentityError(f"`{name}={value}` is not a number")
        return int(value)

    def _of_node_file(self) -> Optional[int]:
        """PBS writes a line for each MPI rank, on the first node only."""
        path = self.environ.get("PBS_NODEFILE", "")
        if self.source is not launchers.PALS or not os.path.isfile(path):  # noqa: PTH113 - "" is no path
            return None
        self.evidence["PBS_NODEFILE"] = path
        with open(path, encoding="utf-8") as lines:  # noqa: PTH123 - a plain read
            return sum(1 for line in lines if line.strip())

    def _local_world_size(self) -> Optional[int]:
        count = self._number(self.source.local_world_size)
        layout = self._value(self.source.tasks_per_node)
        if count is None and layout is not None:
            counts = tasks_per_node(layout)
            node = self.node_rank or 0
            if node >= len(counts):
                raise IdentityError(
                    f"{self.quote(self.source.node_rank)}, but {self.quote(self.source.tasks_per_node)}"
                )
            return counts[node]
        nodes = self._number(self.source.nodes)
        if count is None and nodes and self.world_size and self.world_size % nodes == 0:
            return self.world_size // nodes
        return 1 if count is None and self.world_size == 1 else count

    def quote(self, names: Sequence[str]) -> str:
        """The variables of `names` that are set, with their values, for a message."""
        return " and ".join(f"`{name}={self.environ[name]}`" for name in names if self.environ.get(name))

    @property
    def is_complete(self) -> bool:
        return None not in (self.rank, self.world_size, self.local_rank, self.local_world_size)

    @property
    def carries(self) -> bool:
        """Whether this launcher may only have started another launcher on this node."""
        return self.source.can_carry and self.local_world_size == 1

    def agrees(self, other: _Reading) -> bool:
        """Whether rank, world size and local rank are the same, as far as both are known."""
        pairs = [(getattr(self, name), getattr(other, name)) for name in ("rank", "world_size", "local_rank")]
        return all(mine == theirs for mine, theirs in pairs if mine is not None and theirs is not None)

    def conclude(self) -> Identity:
        if self.rank is None or self.world_size is None or self.local_rank is None or self.local_world_size is None:
            parts = ("world_size", "local_rank", "local_world_size")
            variables = [getattr(self.source, part) for part in parts if getattr(self, part) is None]
            missing = " nor ".join(" or ".join(f"`{name}`" for name in group) for group in variables if group)
            raise IdentityError(
                f"{self.source.title} started this process, but does not set "
                f"{missing or 'the number of its ranks on this node'}",
                "export RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT yourself",
            )
        node = self.rank // self.local_world_size if self.node_rank is None else self.node_rank
        hosts = self._value(self.source.hosts) or ""
        launch = ".".join(self.environ[name] for name in self.source.launch if self.environ.get(name))
        return Identity(
            self.rank,
            self.world_size,
            self.local_rank,
            self.local_world_size,
            node,
            self.source.name,
            dict(self.evidence),
            launch=launch,
            hosts=hosts,
        )


def _decide(readings: Sequence[_Reading]) -> _Reading:
    """Choose the first reading, unless it only started another launcher, or another agrees and has more values."""
    winner = readings[0]
    for other in readings[1:]:
        is_launcher = other.source is not launchers.GENERIC or winner.world_size == 1
        has_started_it = winner.carries and is_launcher and not winner.agrees(other) and not other.carries
        is_more_complete = not winner.is_complete and winner.agrees(other)
        if other.is_complete and (has_started_it or is_more_complete):
            winner = other
    return winner


def _cross_check(winner: _Reading, other: _Reading) -> None:
    if other is winner or winner.agrees(other) or other.carries:
        return
    if other.source in (launchers.TORCHRUN, launchers.GENERIC) and _is_present(launchers.SERRIED, other.environ):
        return  # the agent sets these variables too
    part = next(name for name in ("rank", "world_size", "local_rank") if getattr(winner, name) != getattr(other, name))
    mine, theirs = winner.quote(getattr(winner.source, part)), other.quote(getattr(other.source, part))
    hint = "one of them is left over from another launch; `unset` it"
    if winner.source is launchers.TORCHRUN and other.source is launchers.SLURM:
        hint = "start torchrun once on each node: `srun --ntasks-per-node=1`"
    raise IdentityError(f"{winner.source.title} sets {mine}, but {other.source.title} sets {theirs}", hint)


def _alone(environ: Mapping[str, str]) -> Identity:
    """One process. Raises IdentityError if variables claim several ranks."""
    size, rank = environ.get("WORLD_SIZE") or "1", environ.get("RANK") or "0"
    if (size, rank) != ("1", "0"):
        given = " and ".join(f"`{name}={environ[name]}`" for name in ("RANK", "WORLD_SIZE") if environ.get(name))
        missing = [f"`{name}`" for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR") if not environ.get(name)]
        raise IdentityError(f"{given} without {' and '.join(missing)}", "set all of them, or none")
    notes = []
    if environ.get("SLURM_JOB_ID") and int(environ.get("SLURM_NTASKS") or 1) > 1:
        notes.append(
            f"SLURM_NTASKS={environ['SLURM_NTASKS']} tasks may run in this job, and this process is not one of them: "
            "`srun` starts one rank for each"
        )
    elif environ.get("PBS_NODEFILE"):
        notes.append("PBS does not start ranks: start them with Serried, or with the site's MPI")
    return Identity(notes=tuple(notes))


def threads(who: Identity, environ: Mapping[str, str]) -> Optional[int]:
    """The number of threads for torch, if no variable sets it: this rank's share of the node."""
    if environ.get("OMP_NUM_THREADS") or who.local_world_size == 1:
        return None
    count = environ.get("SLURM_CPUS_PER_TASK", "")
    if who.source == "slurm" and count.isdecimal():
        return max(1, int(count))
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, allowed // who.local_world_size)
