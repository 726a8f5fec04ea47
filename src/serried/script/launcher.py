"""The words before the node agent's own: how each scheduler starts one process on every node of a job."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping

from serried.plan import Plan
from serried.protocol import binds

EACH_HOST = """\
for host in $(awk '!seen[$0]++' "$PBS_NODEFILE" | head -n "$0"); do pbs_tmrsh "$host" "$@" & done
wait"""
"""Starts the words after the first, how many nodes, on each."""


def launcher(plan: Plan) -> str:
    """The launcher as words of bash; empty where the head starts the one agent itself."""
    scheduler = plan.site.inside or plan.site.scheduler
    if plan.site.launcher and scheduler == "pbs":
        return _named(plan)
    return shlex.join(LAUNCHERS[scheduler](plan))


def _named(plan: Plan) -> str:
    """What the profile says: a name of ours, or the site's own words."""
    known = NAMED.get(plan.site.launcher)
    if known:
        return shlex.join(known(plan))
    asked = plan.allocation
    made = plan.site.launcher
    for name, number in (("nodes", asked.nodes), ("ranks", asked.ranks), ("gpus", asked.gpus)):
        made = made.replace(f"{{{name}}}", str(number))
    return made


def _slurm(plan: Plan) -> tuple[str, ...]:
    """Everything is said here: what a step inherits from its job changed in Slurm 22.05 and again in 23.11."""
    nodes = str(plan.allocation.nodes)
    return (
        "srun",
        f"--nodes={nodes}",
        f"--ntasks={nodes}",
        "--ntasks-per-node=1",
        *(_of_the_job(plan) if plan.site.inside else ()),
        f"--cpus-per-task={plan.allocation.cpus}",
        *_gpus(plan),
        "--overlap",
        "--export=ALL",
        "--kill-on-bad-exit=1",
        "--wait=0",
        "--input=none",
        "--unbuffered",
        "--job-name=serried",
        *_pyxis(plan),
    )


def _pyxis(plan: Plan) -> tuple[str, ...]:
    """A container for the whole agent: pyxis is a part of Slurm. Its Python is the image's, and not the head's."""
    if plan.container is None or plan.container.runtime != "pyxis":
        return ()
    of_project = os.path.dirname(os.path.dirname(plan.directory))  # noqa: PTH120 - where another run's checkpoints are too
    mounts = [of_project, plan.source.directory, *plan.container.binds]
    said = plan.environment
    named = ",".join(("PYTHONPATH", *said.env, *said.secrets, *said.env_file))
    return (
        f"--container-image={plan.container.image}",
        f"--container-mounts={','.join(_mount(text) for text in dict.fromkeys(mounts))}",
        f"--container-env={named}",
        *(["--container-writable"] if plan.container.writable else []),
        *plan.container.options,
        "/bin/sh",
        "-c",
        'shift; exec python3 "$@"',
        "sh",
    )


def _mount(text: str) -> str:
    bind = binds.parse(text)
    return f"{bind.source}:{bind.destination}" + (":ro" if bind.is_read_only else "")


def _gpus(plan: Plan) -> tuple[str, ...]:
    """Steps that overlap share CPUs, and no GPUs: where the ranks are a step of their own, the agents' takes none."""
    if not plan.allocation.gpus:
        return ()
    return ("--gres=none",) if plan.launch.kind == "srun" else ("--gpu-bind=none",)


def _of_the_job(plan: Plan) -> tuple[str, ...]:
    """Of a job that may have more nodes the first ones, as the head is on the first.

    Of GPUs all that each node has, also where the job was asked for with some for each task.
    """
    gpus = plan.allocation.gpus
    return ("--relative=0", *((f"--gres=gpu:{gpus}",) if gpus else ()))


def _pbs(plan: Plan) -> tuple[str, ...]:
    """In a job that somebody else asked for, and with `nodes`, a node may stand in the node file more than once."""
    return _pbs_tmrsh(plan) if plan.site.inside or plan.site.node_option == "nodes" else _pbsdsh(plan)


def _pbsdsh(plan: Plan) -> tuple[str, ...]:  # noqa: ARG001 - the table's shape
    """One process for each line of the node file, and `mpiprocs=1` gives each node one. It always exits 0."""
    return ("pbsdsh", "--")


def _pbs_tmrsh(plan: Plan) -> tuple[str, ...]:
    """One after the other, each in the background. What they exit with says nothing."""
    return ("/bin/bash", "-c", EACH_HOST, str(plan.allocation.nodes))


def _local(plan: Plan) -> tuple[str, ...]:  # noqa: ARG001 - the table's shape
    return ()


LAUNCHERS: Mapping[str, Callable[[Plan], tuple[str, ...]]] = {"slurm": _slurm, "pbs": _pbs, "local": _local}

NAMED: Mapping[str, Callable[[Plan], tuple[str, ...]]] = {"pbsdsh": _pbsdsh, "pbs_tmrsh": _pbs_tmrsh}
"""What a profile may name; anything else is a command line."""
