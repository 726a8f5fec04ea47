"""`serried stage`: the data that an experiment stages, and a job that leaves the data on the nodes for later jobs."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Collection, Mapping
from typing import Any

from serried import config, schedulers
from serried.builds import Observe
from serried.errors import UsageError
from serried.fs.files import read_journal
from serried.plan import Plan
from serried.planning import environment_of
from serried.planning import plan as make_plan
from serried.planning.data import data as data_of
from serried.protocol.events import JournalEvent
from serried.protocol.times import iso
from serried.records.evidence import latest_attempt
from serried.records.record import new_id
from serried.records.run_status import RunStatus
from serried.submission.prepare import prepare
from serried.submission.prepared import Prepared

NAME = "stage"
DEFAULTS: Mapping[str, Any] = {
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


def staging_plan(resolved: config.Resolved) -> Plan:
    """A plan with the experiment's data alone. Only the data is checked: to count files, no account is needed."""
    plan = environment_of(resolved)
    nodes = resolved.experiment.resources.nodes or 1
    return dataclasses.replace(
        plan,
        allocation=plan.allocation._replace(nodes=nodes),
        data=data_of(resolved.experiment.data, resolved.cluster, resolved.project),
    )


def staging_job(
    resolved: config.Resolved, environ: Mapping[str, str], requested: Collection[str], observe: Observe | None
) -> Prepared:
    """A job that stages the experiment's data and ends. `requested` are keys of `resources` that the user has set.

    Raises UsageError if no data would stay on the nodes.
    """
    cluster = resolved.cluster
    if not (cluster.local_disk or schedulers.traits(cluster.scheduler).has_node_disk):
        raise UsageError(
            f"`{cluster.name}` has no known disk on its nodes",
            hint=f"`[clusters.{cluster.name}] local_disk` names the folder of the nodes' own disks",
        )
    if not cluster.data_cache:
        raise UsageError(
            f"no data stays on the nodes of `{cluster.name}` after a job",
            hint=f"`[clusters.{cluster.name}] data_cache` sets how much may stay, if the site allows that",
        )
    alone = dataclasses.replace(
        resolved,
        project=dataclasses.replace(resolved.project, snapshot=False),
        experiment=_alone(resolved.experiment, cluster, requested),
    )
    plan = make_plan(alone, run_id=new_id(), created=iso(time.time()))
    return prepare(plan, alone, environ, observe=observe)


def _alone(experiment: config.Experiment, cluster: config.Cluster, requested: Collection[str]) -> config.Experiment:
    """An experiment with the same data that only stages."""
    most = cluster.cpus_per_node or DEFAULTS["cpus"]
    own = {**DEFAULTS, "cpus": min(DEFAULTS["cpus"], most)}
    resources = {name: value for name, value in own.items() if name not in requested}
    return config.Experiment(
        NAME,
        ("true",),
        cluster=experiment.cluster,
        resources=dataclasses.replace(experiment.resources, **resources),
        # The whole environment: `data.prepare` runs in it, and would run again in a different one.
        environment=dataclasses.replace(experiment.environment, check=""),
        data=dataclasses.replace(experiment.data, results=()),
    )


def staged_items(status: RunStatus) -> list[dict[str, Any]]:
    """The items that each node has staged: `node`, `item`, `origin`, `bytes`, `files`, `seconds`."""
    attempt = latest_attempt(status.record.where)
    if attempt is None:
        return []
    return [
        {"node": name, **{key: it[key] for key in ("item", "origin", "bytes", "files", "seconds")}}
        for number, name in enumerate(status.node_names)
        for it in read_journal(attempt.node_events(number))
        if it["event"] == JournalEvent.ITEM_STAGED
    ]
