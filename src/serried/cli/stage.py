"""`serried stage`: show the data that would be staged and its cost, or stage the data ahead of a job."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import click

from serried import config, schedulers
from serried.base.errors import UsageError, did_you_mean
from serried.base.files import read_journal
from serried.base.text import duration, iso, spell
from serried.cli import options, run_view
from serried.records.record import new_id
from serried.records.status import latest_attempt
from serried.records.timeline import staging_rate
from serried.schema.events import JournalEvent
from serried.schema.names import COMPLETED
from serried.submission import data
from serried.submission.deliver import Observe, Prepared, see_through
from serried.submission.plan import environment_of, make_plan
from serried.submission.prepare import prepare
from serried.submission.request import check_here
from serried.views import console
from serried.views.plan_lines import amount
from serried.views.text import printable

NOTHING = ("true",)
"""The command of a plan that only stages."""
DEFAULTS: Mapping[str, Any] = {
    "spare_nodes": 0,
    "gpus": 0,
    "gpu_type": None,
    "ranks": 1,
    "cpus": 2,
    "mem": None,
    "mem_per_node": 4096,
    "time": 3600,
    "exclusive": False,
}
"""The request of a job that only stages. Its partition and its number of nodes are the experiment's."""


@click.command(cls=options.Sorted)
@click.argument("what", metavar="[EXPERIMENT|PATH...]", nargs=-1)
@options.resources
@options.common
@click.option("--warm", is_flag=True, help="Stage the data now, where it may stay for the next job.")
@options.yes
@options.dry_runs
@run_view.as_json
def command(*, what: tuple[str, ...], warm: bool, yes: bool, dry_run: bool, as_json: bool, **values: Any) -> None:
    r"""Show the data that an experiment stages to its nodes and the cost, or stage the data now.

    \b
    serried stage train                          size, target and duration
    serried stage /project/imagenet labels.tar   the same for any paths
    serried stage train --warm --nodes 2         now, by a job that only stages

    With --warm, data stays on the nodes' disks for the next job, up to the cluster's `data_cache`. The
    scheduler chooses the nodes.
    """
    overrides = options.overrides(values, values["settings"])
    resolved = _resolve(what, {"resources.gpus": 0, **overrides}, values["cluster"])  # unknown GPUs do not matter here
    if not warm:
        _show(resolved, as_json=as_json)
        return
    if not dry_run:
        check_here(resolved, os.environ)
    requested = [key.removeprefix("resources.") for key in overrides if key.startswith("resources.")]
    with options.progress(dry_run=dry_run) as observe:
        prepared = _staging_job(resolved, os.environ, requested, observe)
    if dry_run:
        options.dry_run(prepared, as_json=as_json)
        return
    options.show_plan(prepared)
    options.agree(prepared.warnings, yes=yes)
    with console.status_line("staging") as line:
        status = see_through(
            prepared,
            lambda: line.update(f"staging by run {prepared.plan.run}"),
            lambda record: console.say(f"run {record.id} stages the data"),
        )
    attempt = latest_attempt(status.record.where)
    staged = [
        {"node": name, **{key: event[key] for key in ("item", "origin", "bytes", "files", "seconds")}}
        for number, name in enumerate(status.node_names if attempt else ())
        for event in (read_journal(attempt.node_events(number)) if attempt else ())
        if event["event"] == JournalEvent.ITEM_STAGED
    ]
    if as_json:
        console.out_json(run=status.id, state=status.state, brought=staged)
    else:
        rows = [
            [item["node"], item["item"], spell(item["bytes"]), item["origin"], f"{item['seconds']:g} s"]
            for item in staged
        ]
        console.out_table(["NODE", "DATA", "SIZE", "FROM", "TOOK"], rows)
        run_view.say_how(status)
    if status.state != COMPLETED:
        console.next_steps([(f"serried why {status.id}", "what happened, and what to do")])
        sys.exit(1)


def _resolve(what: tuple[str, ...], overrides: dict[str, Any], cluster: str | None) -> config.Resolved:
    """The settings of the named experiment, or of a plan that only stages the paths in `what`."""
    known = config.catalogue(Path.cwd(), os.environ).experiments
    name, command = next(iter(what), None), None
    if what and (len(what) > 1 or what[0] not in known):
        for path in what:
            if os.path.lexists(path):
                continue
            if path in known:
                raise UsageError(f"`{path}` is an experiment, which must be the only argument")
            hint = did_you_mean(path, known) or f"paths are relative to the current folder: {Path.cwd()}"
            raise UsageError(f"`{path}` is neither an experiment nor an existing path", hint=hint)
        items = [{"from": os.path.abspath(path)} for path in what]  # noqa: PTH100 - links are to be followed later
        name, command, overrides = None, NOTHING, {**overrides, "data.stage": items}
    resolved = config.resolve(name, command, overrides, cluster, Path.cwd(), os.environ)
    if not resolved.experiment.data.planned.stage:
        hint = "list paths in `[experiments.NAME.data] stage`, or name them: serried stage PATH …"
        raise UsageError(f"`{resolved.experiment.name}` stages nothing", hint=hint)
    return resolved


def _staging_job(
    resolved: config.Resolved, environ: Mapping[str, str], requested: Collection[str], observe: Observe | None
) -> Prepared:
    """A job that stages the experiment's data and ends. `requested` are keys of `resources` that the user has set.

    Raises UsageError if no data would stay on the nodes.
    """
    cluster = resolved.cluster
    if not (cluster.site.local_disk or schedulers.traits(cluster.scheduler).has_node_disk):
        hint = f"`[clusters.{cluster.name}] local_disk` names the folder of the nodes' own disks"
        raise UsageError(f"`{cluster.name}` has no known disk on its nodes", hint=hint)
    if not cluster.site.data_cache_bytes:
        hint = f"`[clusters.{cluster.name}] data_cache` sets how much may stay, if the site allows that"
        raise UsageError(f"no data stays on the nodes of `{cluster.name}` after a job", hint=hint)
    experiment = resolved.experiment
    environment, data = experiment.environment, experiment.data
    defaults = {**DEFAULTS, "cpus": min(DEFAULTS["cpus"], cluster.cpus_per_node or DEFAULTS["cpus"])}
    resources = {name: value for name, value in defaults.items() if name not in requested}
    alone = resolved._replace(
        project=resolved.project._replace(snapshot=False),
        experiment=config.Experiment(
            "stage",
            NOTHING,
            cluster=experiment.cluster,
            resources=experiment.resources._replace(**resources),
            # The whole environment: `data.prepare` runs in it, and would run again in a different one.
            environment=environment._replace(planned=environment.planned._replace(check="")),
            data=data._replace(planned=data.planned._replace(results=())),
        ),
    )
    return prepare(make_plan(alone, run_id=new_id(), created=iso(time.time())), alone, environ, observe=observe)


def _show(resolved: config.Resolved, *, as_json: bool) -> None:
    # Only the data is checked: to count files, no account is needed.
    plan = environment_of(resolved)
    allocation = plan.allocation._replace(nodes=resolved.experiment.resources.nodes or 1)
    plan = plan._replace(allocation=allocation, data=resolved.experiment.data.planned)
    plan, notes, _ = data.settle(plan, resolved, {}, None)
    stage, site, nodes = plan.data.stage if plan.data else (), plan.site, allocation.nodes
    size = sum(item.bytes or 0 for item in stage) if all(item.bytes is not None for item in stage) else None
    rate = staging_rate(site.name)
    seconds = None if size is None or rate is None else size / rate.bytes_per_second
    if as_json:
        console.out_json(
            experiment=plan.experiment,
            cluster=site.name,
            nodes=nodes,
            items=[item._asdict() for item in stage],
            bytes=size,
            files=None if size is None else sum(item.files or 0 for item in stage),
            local_disk=site.local_disk,
            disk_needs_bytes=data.needs(stage),
            local_disk_size_bytes=site.local_disk_size_bytes,
            data_cache_bytes=site.data_cache_bytes,
            data_transfer=site.data_transfer,
            seconds=None if seconds is None else round(seconds, 1),
            notes=list(notes),
        )
        return
    rows = [
        [
            item.source,
            f"{item.to}/ (unpacked)" if item.unpack else item.to,
            *(("", "") if item.bytes is None else (spell(item.bytes), f"{item.files:,}")),
        ]
        for item in stage
    ]
    console.out_table(["FROM", "AS", "SIZE", "FILES"], rows, shrink=0)
    takes = "not known yet" + ("" if rate else ": no run on this cluster has staged enough data to measure")
    if rate is not None and seconds is not None:
        takes = f"about {duration(seconds)}, at {spell(round(rate.bytes_per_second))}/s as in run {rate.run}"
    room = f", {spell(site.local_disk_size_bytes)} for each job" if site.local_disk_size_bytes else ""
    stays = f"{spell(site.data_cache_bytes)} may stay" if site.data_cache_bytes else "no data stays"
    chain = "read once and passed from node to node" if site.data_transfer == "chain" else "read by each node"
    needed = data.needs(stage) if any(item.unpack for item in stage) else None
    least = "at least " if data.has_more(stage) else ""
    facts = {
        "all": f"{amount(stage) or 'not known yet,'} {f'on each of {nodes} nodes' if nodes > 1 else 'on its node'}",
        "disk": f"{site.local_disk}{room}" if site.local_disk else "not known: data is read in place",
        "needs": f"{least}{spell(needed)} there, archives packed and unpacked" if needed else "",
        "cache": f"{stays} for the next job",
        "way": chain if nodes > 1 else "read once",
        "takes": takes,
    }
    for label, text in facts.items():
        if text:
            console.out(f"{console.style(f'{label:<6}', 'quiet')}  {printable(text)}")
    options.say_about(notes, resolved.warnings)
