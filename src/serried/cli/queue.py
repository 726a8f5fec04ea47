"""`serried queue`: free resources, waiting jobs, and when one's own jobs may start."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from serried import config, schedulers
from serried.base.errors import UsageError
from serried.base.text import counted, duration, iso, local_time, seconds_of, show_duration
from serried.cli import run_view
from serried.records import index
from serried.records.record import RecordUnreadable
from serried.schedulers import occupancy_cache
from serried.schedulers.occupancy import JobShape, NodeUse, Occupancy, PartitionUse, QueuedJob, count_gpus
from serried.schedulers.occupancy_cache import Look
from serried.schema.reasons import Reason
from serried.views import console
from serried.views.queue_lines import age_text, ahead_text, opening_text
from serried.views.text import fit, printable, width

MOST_JOBS = 5
LONGEST_NAME = 24
_LESS_IMPORTANT = ("LIMIT", "OUT", "CPUS", "NODES", "USED")


@dataclass(frozen=True)
class Planned:
    experiment: str
    shape: JobShape
    tasks: int = 1


@dataclass(frozen=True)
class Page:
    cluster: str
    scheduler: str
    look: Look
    runs: Mapping[str, tuple[str, str]]
    """The id and the name of a run, by job."""
    planned: Planned | None
    now: float
    waiting: Sequence[QueuedJob]
    """Jobs of the user to show."""
    is_for_one: bool = False
    """Whether the page is about one run."""

    @property
    def occupancy(self) -> Occupancy:
        return self.look.occupancy


def rivals_of(occupancy: Occupancy, shape: JobShape) -> list[QueuedJob]:
    """The jobs that wait in the partitions of a job that is not submitted."""
    names = {one.name for one in occupancy.partitions_for(shape)}
    return [job for job in occupancy.jobs if job.waits_for_resources and names.intersection(job.partitions)]


def to_json(page: Page) -> dict[str, Any]:
    occupancy, look, planned = page.occupancy, page.look, page.planned

    def gpus(nodes: Sequence[NodeUse]) -> list[dict[str, Any]]:
        counts = count_gpus(nodes)
        return [{**count._asdict(), "type": count.type or None, "in_use": count.in_use} for count in counts]

    def openings(shape: JobShape, ahead: Sequence[QueuedJob]) -> dict[str, Any]:
        sooner = [opening.to_json() for opening in occupancy.sooner(shape, ahead, page.now)]
        return {"ahead_jobs": _tasks(ahead), "fits_in": occupancy.fits_now(shape), "sooner": sooner}

    def partition(one: PartitionUse) -> dict[str, Any]:
        nodes = [node for node in occupancy.nodes if one.name in node.partitions]
        inside = [job for job in occupancy.jobs if one.name in job.partitions]
        waiting = occupancy.waiting_in(one.name)
        return {
            **one._asdict(),
            "gpus": gpus(nodes),
            "nodes": len(nodes),
            "idle_nodes": sum(node.is_idle for node in nodes),
            "cpus": sum(node.cpus for node in nodes),
            "free_cpus": sum(node.free_cpus for node in nodes),
            "running_jobs": _tasks(job for job in inside if job.is_running),
            "waiting_jobs": _tasks(waiting),
            "waiting_gpus": sum(job.tasks * job.gpus for job in waiting),
            "blocked_jobs": _tasks(job for job in inside if not job.is_running and not job.waits_for_resources),
        }

    def waiting(job: QueuedJob) -> dict[str, Any]:
        scheduler = schedulers.get(page.scheduler)
        value = {
            "job": job.id,
            "run": page.runs.get(job.id, (None, ""))[0],
            "tasks": job.tasks,
            "partitions": list(job.partitions),
            "nodes": job.nodes,
            "gpus": job.gpus,
            "gpu_type": job.gpu_type or None,
            "time_seconds": job.limit_seconds,
            "reason": job.reason or None,
            "meaning": scheduler.explain(job.reason),
            "cause": scheduler.classify(job.reason),
            "expected_start": iso(job.starts),
        }
        if not job.waits_for_resources:
            return {**value, "ahead_jobs": None, "fits_in": [], "sooner": []}
        return {**value, **openings(JobShape.of(job), occupancy.ahead_of(job))}

    plan = None
    if planned:
        plan = {"experiment": planned.experiment, "tasks": planned.tasks, "shape": planned.shape._asdict()}
        plan |= openings(planned.shape, rivals_of(occupancy, planned.shape))
    return {
        "cluster": page.cluster,
        "scheduler": page.scheduler,
        "as_of": iso(look.at),
        "age_seconds": look.age(page.now),
        "problem": look.problem.message if look.problem else None,
        "gpus": gpus(occupancy.nodes),
        "partitions": list(map(partition, occupancy.partitions)),
        "sees_all_jobs": occupancy.sees_all_jobs,
        "waiting": list(map(waiting, page.waiting)),
        "plan": plan,
    }


def _tasks(jobs: Iterable[QueuedJob]) -> int:
    return sum(job.tasks for job in jobs)


def lines(page: Page) -> Iterator[str]:
    title = schedulers.traits(page.scheduler).title
    name = title if page.cluster == page.scheduler else f"{printable(page.cluster)} ({title})"
    yield f"{name}, as of {age_text(page.look.age(page.now))}"
    yield ""
    yield from _labelled(_free(page.occupancy))
    yield ""
    yield from _table(page)
    if notes := [*_notes(page.occupancy)]:
        yield ""
        for note in notes:
            yield from console.behind("  ", note)
    yield ""
    if planned := page.planned:
        tasks = f", {planned.tasks} tasks, each" if planned.tasks > 1 else ","
        yield console.style(f"{printable(planned.experiment)}{tasks} {_shape(planned.shape)}", "head")
        ahead = rivals_of(page.occupancy, planned.shape)
        yield from _labelled([("waiting", ahead_text(ahead)), *_advice(page, planned.shape, ahead)], "  ")
    else:
        yield from _own(page)


def _labelled(facts: Sequence[tuple[str, str]], indent: str = "") -> Iterator[str]:
    for label, text in facts:
        yield from console.behind(f"{indent}{label:9} ", text)


def _free(occupancy: Occupancy) -> list[tuple[str, str]]:
    names = {one.name for one in occupancy.shown_partitions()}
    nodes = [node for node in occupancy.nodes if names.intersection(node.partitions)]
    facts = []
    for count in count_gpus(nodes):
        text = f"{count.free:,} of {count.total:,}{f' {count.type}' if count.type else ''} GPUs"
        text += f", at most {count.most_on_one_node} on one node" if count.free > count.most_on_one_node else ""
        text += f"; {count.planned} kept for a job that waits" if count.planned else ""
        facts.append(text + (f"; {count.out} out of service" if count.out else ""))
    free, total = sum(node.free_cpus for node in nodes), sum(node.cpus for node in nodes)
    idle = sum(node.is_idle for node in nodes)
    facts.append(f"{free:,} of {counted(total, 'CPU')}; {idle:,} of {counted(len(nodes), 'node')}")
    return [("free" if at == 0 else "", text) for at, text in enumerate(facts)]


def _table(page: Page) -> list[str]:
    """A narrow terminal gets fewer columns: no number is cut, and partitions stay apart."""
    own = {name for job in page.waiting for name in job.partitions}
    partitions = [one for one in page.occupancy.shown_partitions() if not page.is_for_one or one.name in own]
    if page.planned:
        partitions = page.occupancy.partitions_for(page.planned.shape)
    heads = ["PARTITION", "LIMIT", "GPU", "FREE", "USED", "OUT", "NODES", "CPUS", "RUN", "WAIT"]
    rows = [row for one in partitions for row in _rows(page.occupancy, one)]
    for dropped in _LESS_IMPORTANT:
        widths = [max(map(width, column)) + 2 for column in zip(heads, *rows)]
        if not console.is_terminal() or sum(widths) - 2 <= console.columns():
            break
        at = heads.index(dropped)
        heads, *rows = ([*row[:at], *row[at + 1 :]] for row in [heads, *rows])
    return console.table(heads, rows, shrink=0)


def _rows(occupancy: Occupancy, partition: PartitionUse) -> Iterator[list[str]]:
    nodes = [node for node in occupancy.nodes if partition.name in node.partitions]
    name = partition.name + (" *" if partition.is_default else "") + ("" if partition.is_open else " (closed)")
    first = [name, "-" if partition.limit_seconds is None else show_duration(partition.limit_seconds)]
    last = [
        f"{sum(node.is_idle for node in nodes)}/{len(nodes)}",
        f"{sum(node.free_cpus for node in nodes)}/{sum(node.cpus for node in nodes)}",
        str(_tasks(job for job in occupancy.jobs if job.is_running and partition.name in job.partitions)),
        str(_tasks(occupancy.waiting_in(partition.name))),
    ]
    counts = [[one.type or "any", str(one.free), str(one.in_use), str(one.out)] for one in count_gpus(nodes)]
    for gpus in counts or [["-"] * 4]:
        yield [*first, *gpus, *last]
        first, last = ["", ""], [""] * 4


def _notes(occupancy: Occupancy) -> Iterator[str]:
    if blocked := _tasks(job for job in occupancy.jobs if not job.is_running and not job.waits_for_resources):
        yield f"{counted(blocked, 'more job')} cannot start yet: held, behind another job, or at a limit"
    if not occupancy.sees_all_jobs:
        yield "this site hides the jobs of others: RUN and WAIT count yours alone"
    hidden = len(occupancy.partitions) - len(occupancy.shown_partitions())
    if hidden:
        yield f"{counted(hidden, 'partition')} that you cannot use or that the site hides: `--json` lists all"


def _own(page: Page) -> Iterator[str]:
    running = sum(job.is_running for job in page.occupancy.mine)
    if not page.waiting:
        age = page.look.age(page.now)
        as_of = f", as of {age_text(age)}" if age >= 1 else ""
        yield (f"none of your jobs waits; {running} run" if running else "you have no jobs here") + as_of
        return
    for at, job in enumerate(page.waiting[:MOST_JOBS]):
        if at:
            yield ""
        run, name = page.runs.get(job.id, ("", ""))
        tasks = f", {counted(job.tasks, 'task')}" if job.tasks > 1 else ""
        who = f"{run} {fit(printable(name), LONGEST_NAME)}, job {job.id}" if run else f"job {printable(job.id)}"
        yield console.style(f"{who}{tasks}: {_shape(JobShape.of(job))}", "head")
        yield from _labelled([*_facts(page, job)], "  ")
    if len(page.waiting) > MOST_JOBS:
        yield ""
        yield f"{len(page.waiting) - MOST_JOBS} more of your jobs wait: `serried queue --json` lists all"


def _shape(shape: JobShape) -> str:
    size = counted(shape.nodes, "node")
    if shape.gpus:
        kind = f"{shape.gpu_type} " if shape.gpu_type else ""
        size += f" x {shape.gpus} {kind}GPU{'s' * (shape.gpus > 1)}"
    else:
        size += f" x {counted(shape.cpus, 'CPU')}"
    limit = f" for {show_duration(shape.seconds)}" if shape.seconds else ""
    where = f" in {printable(', '.join(shape.partitions))}" if shape.partitions else ""
    return f"{size}{limit}{where}"


def _facts(page: Page, job: QueuedJob) -> Iterator[tuple[str, str]]:
    scheduler = schedulers.get(page.scheduler)
    yield "reason", scheduler.explain(job.reason)
    ahead = page.occupancy.ahead_of(job)
    if job.waits_for_resources:
        yield "ahead", ahead_text(ahead)
    if job.starts is not None:
        yield "expected", f"{local_time(job.starts)}, in {duration(job.starts - page.now)}: an estimate, it changes"
    ends = [one.ends for one in page.occupancy.mine if one.ends is not None]
    if ends and scheduler.classify(job.reason) is Reason.SITE_LIMIT:
        yield "then", f"your next running job ends at the latest {local_time(min(ends))}"
    if job.waits_for_resources:
        yield from _advice(page, JobShape.of(job), ahead)


def _advice(page: Page, shape: JobShape, ahead: Sequence[QueuedJob]) -> Iterator[tuple[str, str]]:
    if where := page.occupancy.fits_now(shape):
        first = ", if the jobs ahead leave it" if ahead else ""
        yield "fits", f"all that it requests is free now in {printable(', '.join(where))}{first}"
    for at, opening in enumerate(page.occupancy.sooner(shape, ahead, page.now)):
        yield ("sooner" if at == 0 else ""), opening_text(opening, shape)


_DELAY_SECONDS = 5.0
"""From the intent to submit a job until the scheduler lists the job, mostly."""


@click.command()
@click.argument("run", metavar="[RUN]", required=False, shell_complete=run_view.complete_runs)
@click.option("--plan", "experiment", metavar="EXPERIMENT", help="Would this experiment fit into what is free?")
@click.option("--cluster", type=run_view.CLUSTER, help="The cluster; `serried clusters` lists them.")
@click.option("--refresh", is_flag=True, help="Ask the scheduler again, if the answer is older than 10 s.")
@run_view.as_json
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
        raise UsageError("`--plan` and RUN cannot be combined", hint="leave one of them out")
    name, scheduler = _cluster(cluster)
    plan = _plan(experiment, cluster) if experiment else None
    submissions = run_view.select(run).record.submissions if run else ()
    wanted = {job for submission in submissions for job in submission.jobs}
    known_from = max((seconds_of(submission.at) or 0.0 for submission in submissions), default=0.0) + _DELAY_SECONDS
    look = occupancy_cache.look(scheduler, os.environ, refresh=refresh)
    if run and look.at < known_from:
        look = occupancy_cache.look(scheduler, os.environ, refresh=True)
        if look.at < known_from:  # it was queried a moment ago, before the run was submitted
            with console.status_line("waiting for the scheduler's next answer"):
                time.sleep(occupancy_cache.REFRESH_SECONDS)
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
        console.out("\n".join(lines(page)))


def _cluster(name: str | None) -> tuple[str, str]:
    """Its name and its scheduler. Raises UsageError for one that does not answer here."""
    known = config.catalogue(Path.cwd(), os.environ)
    name = name or known.here
    entry = next((one for one in known.clusters if one.name == name), None)
    if entry is None:
        raise UsageError(f"unknown cluster `{name}`", hint="`serried clusters` lists the clusters")
    traits = schedulers.traits(entry.scheduler)
    run_view.check_here(name)
    if not traits.is_this_machine and not traits.is_here(os.environ):
        message = f"cluster `{name}` cannot be queried here: {schedulers.absent(os.environ)}"
        raise UsageError(message, hint="run `serried queue` on its login node")
    if name not in (known.here, entry.scheduler, schedulers.LOCAL):
        console.warning(f"this machine does not look like `{name}`: the {traits.title} that answers may be another")
    return name, entry.scheduler


def _plan(experiment: str, cluster: str | None) -> Planned:
    from serried.submission.request import Request, decide  # only for `--plan`

    plan = decide(Request(experiment=experiment, cluster=cluster), Path.cwd(), os.environ).plan
    its = plan.allocation
    shape = JobShape(
        nodes=its.job_nodes,
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
