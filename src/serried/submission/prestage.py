"""`serried stage`: what an experiment would stage, and a job that leaves it on the nodes for the next one."""

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
"""What a job asks for that only stages. It queues where the experiment does, and on as many nodes."""


def as_it_stages(resolved: config.Resolved) -> Plan:
    """The plan as far as its data goes. It refuses nothing that it does not look at: no account is needed to count."""
    plan = environment_of(resolved)
    nodes = resolved.experiment.resources.nodes or 1
    return dataclasses.replace(
        plan,
        allocation=plan.allocation._replace(nodes=nodes),
        data=data_of(resolved.experiment.data, resolved.cluster, resolved.project),
    )


def warmer(
    resolved: config.Resolved, environ: Mapping[str, str], asked: Collection[str], observe: Observe | None
) -> Prepared:
    """A job that stages what the experiment does, and ends. `asked` are keys of `resources` that hold all the same.

    Raises UsageError where nothing would stay.
    """
    cluster = resolved.cluster
    if not (cluster.local_disk or schedulers.traits(cluster.scheduler).has_node_disk):
        raise UsageError(
            f"`{cluster.name}` has no disk on its nodes to stage to",
            hint=f"`[clusters.{cluster.name}] local_disk` says where they have one",
        )
    if not cluster.data_cache:
        raise UsageError(
            f"no data stays on the nodes of `{cluster.name}` when no job uses it",
            hint=f"`[clusters.{cluster.name}] data_cache` says how much may, where the site allows that",
        )
    alone = dataclasses.replace(
        resolved,
        project=dataclasses.replace(resolved.project, snapshot=False),
        experiment=_alone(resolved.experiment, cluster, asked),
    )
    plan = make_plan(alone, run_id=new_id(), created=iso(time.time()))
    return prepare(plan, alone, environ, observe=observe)


def _alone(experiment: config.Experiment, cluster: config.Cluster, asked: Collection[str]) -> config.Experiment:
    """The experiment without all but its data."""
    most = cluster.cpus_per_node or DEFAULTS["cpus"]
    own = {**DEFAULTS, "cpus": min(DEFAULTS["cpus"], most)}
    resources = {name: value for name, value in own.items() if name not in asked}
    return config.Experiment(
        NAME,
        ("true",),
        cluster=experiment.cluster,
        resources=dataclasses.replace(experiment.resources, **resources),
        # Whole: what makes the data runs in it, and again in another.
        environment=dataclasses.replace(experiment.environment, check=""),
        data=dataclasses.replace(experiment.data, results=()),
    )


def brought(status: RunStatus) -> list[dict[str, Any]]:
    """What came to each node, and from where: `node`, `item`, `origin`, `bytes`, `files`, `seconds`."""
    attempt = latest_attempt(status.record.where)
    if attempt is None:
        return []
    return [
        {"node": name, **{key: it[key] for key in ("item", "origin", "bytes", "files", "seconds")}}
        for number, name in enumerate(status.node_names)
        for it in read_journal(attempt.node_events(number))
        if it["event"] == JournalEvent.ITEM_STAGED
    ]
