"""The words before the node agent's own: how each scheduler starts one process on every node of a job."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from serried.plan import Plan


def launcher(plan: Plan) -> tuple[str, ...]:
    """The launcher's argv; empty where the head starts the one agent itself."""
    return LAUNCHERS[plan.site.scheduler](plan)


def _slurm(plan: Plan) -> tuple[str, ...]:
    """Everything is said here: what a step inherits from its job changed in Slurm 22.05 and again in 23.11."""
    nodes = str(plan.allocation.nodes)
    return (
        "srun",
        f"--nodes={nodes}",
        f"--ntasks={nodes}",
        "--ntasks-per-node=1",
        f"--cpus-per-task={plan.allocation.cpus}",
        *(("--gpu-bind=none",) if plan.allocation.gpus else ()),
        "--overlap",
        "--export=ALL",
        "--kill-on-bad-exit=1",
        "--wait=0",
        "--input=none",
        "--unbuffered",
        "--job-name=serried",
    )


def _pbs(plan: Plan) -> tuple[str, ...]:  # noqa: ARG001 - the table's shape
    """One process for each line of the node file, and `mpiprocs=1` gives each node one. It always exits 0."""
    return ("pbsdsh", "--")


def _local(plan: Plan) -> tuple[str, ...]:  # noqa: ARG001 - the table's shape
    return ()


LAUNCHERS: Mapping[str, Callable[[Plan], tuple[str, ...]]] = {"slurm": _slurm, "pbs": _pbs, "local": _local}
