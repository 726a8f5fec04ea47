"""A throwaway Slurm, real daemons and all, in one directory of this machine.

lab = serried.lab.up(nodes=2, gpus=4)
lab.run("srun", "-N2", "hostname")
lab.down()
"""

from __future__ import annotations

import getpass
import os
import re
import socket
from collections.abc import Callable, Mapping, Sequence

from serried.errors import UsageError
from serried.lab import daemons, directory, ports
from serried.lab.config import MAX_NODES, Spec
from serried.lab.directory import labs, root
from serried.lab.lab import Lab, Status

__all__ = ["Lab", "Status", "down_all", "find", "labs", "root", "sweep_abandoned", "up"]

DEFAULT_NAME = "lab"


def up(
    name: str = DEFAULT_NAME,
    *,
    nodes: int = 4,
    gpus: int = 4,
    gpu_type: str = "",
    accounting: bool = False,
    features: Sequence[str] = (),
    settings: Mapping[str, str] | None = None,
    partitions: Sequence[str] = (),
    temporary: bool = False,
    progress: Callable[[str], None] = lambda _: None,
) -> Lab:
    """Start a lab and return it when its nodes are idle.

    `settings` are more lines of slurm.conf, or other values for the lab's own; `partitions` are further ones
    (`short MaxTime=10`); `features` are what `--constraint` may ask for. A `temporary` lab is
    removed by the next `up`, `down --all` or `status` of this user when the process that made it has gone.

    Raises:
        MissingProgramError: Slurm is not installed.
        UsageError: a lab of this name is up, or the request makes no sense.
    """
    _check(name, nodes, gpus)
    directory.check_length(root() / name)
    daemons.require(accounting=accounting)
    sweep_abandoned()
    with ports.claimed(nodes + 2) as port:
        spec = Spec(
            name=name,
            directory=root() / name,
            user=getpass.getuser() if os.getuid() else "root",
            hostname=socket.gethostname().partition(".")[0],
            port=port,
            slurm_version=daemons.slurm_version(),
            nodes=nodes,
            gpus=gpus,
            gpu_type=gpu_type,
            accounting=accounting,
            features=tuple(features),
            settings=dict(settings or {}),
            partitions=tuple(partitions),
        )
        lab = directory.furnish(spec, temporary=temporary)
        try:
            lab.start(progress)
        except BaseException:
            lab.down()
            raise
    return lab


def find(name: str | None = None) -> Lab:
    """The lab of this name; without a name, the only one, or the one called `lab`.

    A temporary lab is its maker's: it has to be asked for by name.

    Raises UsageError when there is none, or the choice is not clear.
    """
    known = {lab.name: lab for lab in labs() if name is not None or not lab.temporary}
    if name is None and len(known) == 1:
        return next(iter(known.values()))
    wanted = name or DEFAULT_NAME
    if wanted in known:
        return known[wanted]
    if not known:
        raise UsageError("no lab is up", hint="start one: serried lab up")
    listed = ", ".join(f"`{each}`" for each in known)
    if name is None:
        raise UsageError("more than one lab is up", hint=f"say which: {listed}")
    raise UsageError(f"there is no lab `{name}`", hint=f"these are up: {listed}")


def down_all() -> list[str]:
    """Take down every lab of this user, also half-made ones; return their names."""
    names = []
    for lab in labs():
        lab.down()
        names.append(lab.name)
    directory.clear()
    return names


def sweep_abandoned() -> None:
    """Take down temporary labs whose makers were killed."""
    for lab in labs():
        if lab.is_abandoned:
            lab.down()


def _check(name: str, nodes: int, gpus: int) -> None:
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,30}", name):
        raise UsageError(f"`{name}` cannot be a lab's name", hint="at most 31 lower-case letters, digits and hyphens")
    if not 1 <= nodes <= MAX_NODES:
        raise UsageError(f"a lab has 1 to {MAX_NODES} nodes, not {nodes}")
    if not 0 <= gpus <= 64:
        raise UsageError(f"a lab's node has 0 to 64 GPUs, not {gpus}")
