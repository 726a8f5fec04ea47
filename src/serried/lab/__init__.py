"""A throwaway Slurm with real daemons, in one directory of this machine.

lab = serried.lab.up(nodes=2, gpus=4)
lab.run("srun", "-N2", "hostname")
lab.down()

The names of daemons, ports and folders are in `config`; `daemons` starts them, `lab` has the life of one lab. Each lab
listens on loopback only, and its daemons are ended by their pid and start time.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Mapping, Sequence

from serried.base import processes
from serried.base.errors import UsageError
from serried.lab import daemons
from serried.lab.config import CLUSTER as PARTITION
from serried.lab.config import CPUS, MAX_CPUS, MAX_NODES, MEMORY_MB, Spec
from serried.lab.lab import Lab, Status, check_length, claim_ports, clear, create, labs, root

__all__ = [
    "CPUS",
    "MEMORY_MB",
    "PARTITION",
    "Lab",
    "Status",
    "down_all",
    "find",
    "labs",
    "root",
    "sweep_abandoned",
    "up",
]

DEFAULT_NAME = "lab"


def up(
    name: str = DEFAULT_NAME,
    *,
    nodes: int = 4,
    gpus: int = 4,
    gpu_type: str = "",
    cpus: int = CPUS,
    memory_mb: int = MEMORY_MB,
    accounting: bool = False,
    features: Sequence[str] = (),
    settings: Mapping[str, str] | None = None,
    partitions: Sequence[str] = (),
    temporary: bool = False,
    progress: Callable[[str], None] = lambda _: None,
) -> Lab:
    """Start a lab and return it when its nodes are idle.

    `gpus`, `cpus` and `memory_mb` (MiB) are those of each node; this machine may have less. `settings` are further
    lines of slurm.conf, or replace lines of the lab. `partitions` are further partitions (`short MaxTime=10`),
    `features` the names that `--constraint` accepts. A `temporary` lab belongs to this process: once the process has
    ended, the next `up`, `down --all` or `status` of this user deletes the lab.

    Raises:
        MissingProgramError: Slurm is not installed.
        UsageError: a lab of this name is up, or the request is invalid.
    """
    _check(name, nodes, gpus, cpus)
    check_length(root() / name)
    daemons.require(accounting=accounting)
    sweep_abandoned()
    with claim_ports(nodes + 2) as port:
        spec = Spec(
            name=name,
            directory=root() / name,
            user=processes.user(),
            hostname=socket.gethostname().partition(".")[0],
            port=port,
            slurm_version=daemons.slurm_version(),
            nodes=nodes,
            gpus=gpus,
            gpu_type=gpu_type,
            cpus=cpus,
            memory_mb=memory_mb,
            accounting=accounting,
            features=tuple(features),
            settings=dict(settings or {}),
            partitions=tuple(partitions),
            own_hosts=daemons.allow_own_hosts(),
        )
        lab = create(spec, temporary=temporary)
        try:
            lab.start(progress)
        except BaseException:
            lab.down()
            raise
    return lab


def find(name: str | None = None) -> Lab:
    """The lab of this name. Without a name, the only lab, or the lab called `lab`.

    Temporary labs are selected by name only. Raises UsageError if no lab or several labs match.
    """
    known = {lab.name: lab for lab in labs() if name is not None or not lab.temporary}
    if name is None and len(known) == 1:
        return next(iter(known.values()))
    wanted = name or DEFAULT_NAME
    if wanted in known:
        return known[wanted]
    if not known:
        raise UsageError("no lab is up", hint="start one: serried lab up")
    listed = ", ".join(f"`{lab}`" for lab in known)
    if name is None:
        raise UsageError("more than one lab is up", hint=f"name one of {listed}")
    raise UsageError(f"no lab `{name}` is up", hint=f"running labs: {listed}")


def down_all() -> list[str]:
    """Take down every lab of this user, also unfinished ones, and return their names."""
    names = []
    for lab in labs():
        lab.down()
        names.append(lab.name)
    clear()
    return names


def sweep_abandoned() -> None:
    """Take down temporary labs whose processes have ended."""
    for lab in labs():
        if lab.is_abandoned:
            lab.down()


def _check(name: str, nodes: int, gpus: int, cpus: int) -> None:
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,30}", name):
        hint = "use at most 31 lower-case letters, digits and hyphens"
        raise UsageError(f"`{name}` cannot be the name of a lab", hint=hint)
    if not 1 <= nodes <= MAX_NODES:
        raise UsageError(f"a lab has 1 to {MAX_NODES} nodes, not {nodes}")
    if not 0 <= gpus <= 64:
        raise UsageError(f"a node of a lab has 0 to 64 GPUs, not {gpus}")
    if not 1 <= cpus <= MAX_CPUS:
        raise UsageError(f"a node of a lab has 1 to {MAX_CPUS:,} CPUs, not {cpus}")
