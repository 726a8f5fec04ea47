"""`serried queue`: free resources, waiting jobs, and when one's own jobs may start."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

import click

from serried import config, schedulers
from serried.base.errors import UsageError
from serried.base.text import seconds_of
from serried.cli import queue_view, run_view
from serried.cli.queue_view import Page, Planned, to_json
from serried.records import index
from serried.records.record import RecordUnreadable
from serried.schedulers import occupancy_cache
from serried.schedulers.occupancy import QueuedJob
from serried.schedulers.openings import JobShape
from serried.views import console

_DELAY_SECONDS = 5.0
"""From the intent to submit a job until the scheduler lists the job, mostly."""


@click.command()
@click.argument("run", metavar="[RUN]", required=False, shell_complete=run_view.complete_runs)
@click.option("--plan", "experiment", metavar="EXPERIMENT", help="Would this experiment fit into what is free?")
@click.option("--cluster", metavar="NAME", help="The cluster; `serried clusters` lists them.")
@click.option("--refresh", is_flag=True, help="Ask the scheduler again, if the answer is older than 10 s.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(*, run: str | None, experiment: str | None, cluster: str | None, refresh: bool, as_json: bool) -> None:
    r"""Show free GPUs, waiting jobs, and when your jobs may start.

    The scheduler is queried at most once a minute, for all your commands together. The first line shows the age of
    its answer. Start times are estimates of the scheduler, and change.

    \b
    serried queue
    serried queue k3f9q2           why this run waits, and what would start sooner
    serried queue --plan train     whether an experiment would fit now
    """
    if run and experiment:
        raise UsageError("`--plan` and a run are two questions", hint="ask one of them")
    name, scheduler = _cluster(cluster)
    plan = _plan(experiment, cluster) if experiment else None
    submissions = run_view.select(run).record.submissions if run else ()
    wanted = {job for submission in submissions for job in submission.jobs}
    known_from = max((seconds_of(submission.at) or 0.0 for submission in submissions), default=0.0) + _DELAY_SECONDS
    look = occupancy_cache.look(scheduler, os.environ, refresh=refresh)
    if run and look.at < known_from:
        look = occupancy_cache.look(scheduler, os.environ, refresh=True)
    waiting = [job for job in look.occupancy.mine if not job.is_running and (not run or job.id in wanted)]
    if run and not waiting:
        if look.at < known_from:
            message = f"`{run}` is newer than the last answer of the scheduler"
            raise UsageError(message, hint=f"in {occupancy_cache.REFRESH_SECONDS:.0f} seconds: serried queue {run}")
        raise UsageError(f"`{run}` has no job that waits on `{name}`", hint=f"serried why {run}")
    runs = _runs(waiting)
    waiting.sort(key=lambda job: job.id not in runs)
    page = Page(name, scheduler, look, runs, plan, time.time(), waiting, is_for_one=bool(run))
    if look.problem:  # before the page: its reader may be a pager that ends
        console.warning(f"{look.problem.message}; this answer is old")
    if as_json:
        console.out_json(**to_json(page))
    else:
        for line in queue_view.lines(page):
            console.out(line)


def _cluster(name: str | None) -> tuple[str, str]:
    """Its name and its scheduler. Raises UsageError for one that does not answer here."""
    known = config.catalogue(Path.cwd(), os.environ)
    name = name or known.here
    entry = next((one for one in known.clusters if one.name == name), None)
    if entry is None:
        raise UsageError(f"unknown cluster `{name}`", hint="`serried clusters` lists the clusters")
    traits = schedulers.traits(entry.scheduler)
    if not traits.is_this_machine and not traits.is_here(os.environ):
        raise UsageError(
            f"cluster `{name}` cannot be queried here: the commands of {traits.title} are missing",
            hint="run `serried queue` on its login node",
        )
    if name not in (known.here, entry.scheduler, schedulers.LOCAL):
        console.warning(f"this machine does not look like `{name}`: the {traits.title} that answers may be another")
    return name, entry.scheduler


def _plan(experiment: str, cluster: str | None) -> Planned:
    from serried.submission.request import Request, decide  # only for `--plan`

    plan = decide(Request(experiment=experiment, cluster=cluster), Path.cwd(), os.environ).plan
    its = plan.allocation
    shape = JobShape(
        nodes=its.nodes,
        gpus=its.gpus,
        gpu_type=its.gpu_type or "",
        cpus=its.cpus,
        memory_mb=its.memory_mb or 0,
        seconds=its.time_seconds,
        partitions=tuple(its.partition.split(",")) if its.partition else (),
        whole_nodes=its.exclusive or its.memory_mb == 0,
    )
    return Planned(experiment, shape, len(plan.array.indices) if plan.array else 1)


def _runs(jobs: Sequence[QueuedJob]) -> dict[str, tuple[str, str]]:
    """The id and the name of the run of each job, as far as the job is Serried's."""
    ids = {job.id for job in jobs}
    found: dict[str, tuple[str, str]] = {}
    for record in index.records() if ids else []:
        try:
            if record.end is None:
                own = {job for submission in record.submissions for job in submission.jobs}
                found |= dict.fromkeys(own & ids, (record.id, record.summary.name))
        except RecordUnreadable:
            continue
    return found
