"""A plan for the job that we are in: its nodes, GPUs and time, whatever the file asks a queue for."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from serried import schedulers
from serried.errors import UsageError
from serried.plan import Allocation
from serried.schedulers.survey import Inside
from serried.submission.request import Decided, Request
from serried.submission.request import decide as decide_anywhere


def decide(request: Request, inside: Inside, directory: Path, environ: Mapping[str, str]) -> Decided:
    """The plan of a request within a job. The command line may ask for less than there is.

    Raises UsageError where it asks for more.
    """
    there = {"nodes": len(inside.hosts), "gpus": inside.gpus}
    if inside.seconds is not None:
        there["time"] = inside.seconds
    for name, amount in there.items():
        if f"resources.{name}" not in request.overrides:
            request = request.with_setting(f"resources.{name}", value=f"{amount}s" if name == "time" else amount)
    if request.cluster is None and "SERRIED_CLUSTER" not in environ and schedulers.here(environ) != inside.scheduler:
        # Its commands may be missing on compute nodes. `serried shell` says which cluster it is.
        request = dataclasses.replace(request, cluster=inside.scheduler)
    decided = decide_anywhere(request, directory, environ)
    plan = decided.plan
    own = schedulers.traits(schedulers.LOCAL).dialect
    dialect = schedulers.traits(inside.scheduler).dialect._replace(
        element=own.element, awaited=own.awaited, state_query=own.state_query
    )
    site = plan.site._replace(
        scheduler=schedulers.LOCAL, inside=inside.scheduler, is_this_machine=False, dialect=dialect
    )
    allocation = _allocation(plan.allocation, inside, ranks_are_said="resources.ranks" not in plan.defaults)
    return dataclasses.replace(decided, plan=dataclasses.replace(plan, site=site, allocation=allocation))


def _allocation(asked: Allocation, inside: Inside, *, ranks_are_said: bool) -> Allocation:
    for what, wanted, there in (("nodes", asked.nodes, len(inside.hosts)), ("GPUs per node", asked.gpus, inside.gpus)):
        if wanted > there:
            raise UsageError(
                f"{wanted} {what} were asked for and job {inside.job} has {there}",
                hint="leave that out: `serried run` uses all that the job has",
            )
    return Allocation(
        nodes=asked.nodes,
        ranks=asked.ranks if ranks_are_said or asked.gpus else inside.tasks,
        gpus=asked.gpus,
        cpus=inside.cpus,
        memory_mb=None,
        time_seconds=asked.time_seconds,
    )
