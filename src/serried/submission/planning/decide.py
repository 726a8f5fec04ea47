"""An experiment on a cluster -> the plan."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from serried import schedulers
from serried.base.errors import UsageError
from serried.schema.plan import Allocation, Array, Environment, Limit, Plan, Source, Track, UserScript
from serried.submission.planning.allocate import allocate, left_out, longest
from serried.submission.planning.launch import launch as launch_of
from serried.submission.planning.launch import words as launch_words

if TYPE_CHECKING:
    from serried import config
    from serried.config.job_script import JobScript

MOST_CONFIG = 100_000
"""Bytes of JSON. Linux refuses a variable of 128 KiB, and a sweep adds to it."""

MOST_LOGS = 4096
"""With more ranks, those of a node share a log: file systems limit the number of files."""


def plan(
    resolved: config.Resolved, *, run_id: str, created: str, array: Array | None = None, name: str | None = None
) -> Plan:
    """Decide every open value. Pure: the snapshot completes `source` afterwards.

    Raises UsageError if the cluster cannot meet the request.
    """
    project, experiment, cluster = resolved.project, resolved.experiment, resolved.cluster
    data = experiment.data.planned
    links = _chain(experiment, cluster)
    request = experiment.resources
    if links:
        request = dataclasses.replace(request, time=links.link_seconds)
    launch, allocation = launch_of(experiment, cluster, allocate(request, cluster, is_script=bool(experiment.script)))
    source = Source(project.directory, experiment.workdir, project.snapshot)
    return Plan(
        run=run_id,
        name=name or (resolved.script.directives.name if resolved.script else None) or experiment.name,
        project=project.name,
        experiment=experiment.name,
        created=created,
        command=launch_words(experiment, experiment.command),
        shell=experiment.shell,
        seed=experiment.seed,
        debug=experiment.debug,
        ranks_meet=experiment.ranks_meet,
        shares_logs=_shares_logs(experiment, allocation),
        config=_config(experiment.config),
        site=cluster.site,
        allocation=allocation,
        source=_in_place(source, resolved.script, resolved) if resolved.script else source,
        environment=_with_webhook(experiment),
        container=experiment.container if experiment.container.image else None,
        data=data if data.stage or data.in_place or data.results else None,
        sync=experiment.checkpoint if experiment.checkpoint.watch else None,
        limit=_limit(experiment.limit, allocation.time_seconds, links, has_own_signal=_has_own_signal(resolved)),
        launch=launch,
        script=_script(resolved.script, resolved, name) if resolved.script else None,
        notify=experiment.notify if experiment.notify.command or experiment.notify.webhook else None,
        track=_track(experiment, project.name),
        metric=experiment.metric if experiment.metric.source else None,
        sampling=experiment.sampling,
        report=experiment.report,
        beside=experiment.beside,
        array=array,
        defaults=_defaults(resolved, left_out(experiment.resources)),
        share=project.share,
    )


def _shares_logs(experiment: config.Experiment, allocation: Allocation) -> bool:
    """The launches of a job script keep a log for each rank: how many ranks they have is not known."""
    return not experiment.script and allocation.ranks > 1 and allocation.nodes * allocation.ranks > MOST_LOGS


def _in_place(source: Source, script: JobScript, resolved: config.Resolved) -> Source:
    """A job script runs where it was submitted, as the scheduler would run it, unless a setting demands a snapshot."""
    origin = resolved.origins.get("project.snapshot")
    source = source._replace(snapshot=source.snapshot if origin and not origin.is_default else False)
    folder = os.path.expanduser(script.folder)  # noqa: PTH111 - it stays relative
    return source._replace(workdir=os.path.normpath(os.path.join(source.workdir, folder)))  # noqa: PTH118


def _script(script: JobScript, resolved: config.Resolved, name: str | None) -> UserScript:
    """The options of the directives, except those about resources that a stronger source has set otherwise.

    Directives of another scheduler are no options here: then the plan's resources are the request.
    """
    directives = script.directives
    return UserScript(
        path=str(script.path),
        interpreter=script.interpreter,
        options=script.options(resolved.replaced),
        replaced=script.replaced(resolved.replaced),
        keys=tuple(sorted(resolved.replaced)),
        title=name or directives.name or "",
        log=directives.output or "",
        errors=directives.error or "",
        input=directives.input or "",
        dependency=(directives.dependency or "") if script.is_native else "",
        notice_to="" if directives.signal is None else "script" if directives.signal.to_script else "ranks",
        has_login=directives.export.has_login,
        appends=bool(directives.appends),
        dialect=script.dialect,
        umask=script.umask,
        folder=os.path.normpath(os.path.join(resolved.project.directory, resolved.experiment.workdir)),  # noqa: PTH118
    )


class Chain(NamedTuple):
    """The attempts of a long training."""

    link_seconds: int
    """The time limit of each job."""
    links: int
    """The number of attempts."""


def _chain(experiment: config.Experiment, cluster: config.Cluster) -> Chain | None:
    """The links for `limit.total_time`, or None if it is not set. Raises UsageError if their length is unknown."""
    total, asked = experiment.limit.total_seconds, experiment.resources.time
    if total is None:
        return None
    most = asked or longest(experiment.resources, cluster)
    if most is None and not schedulers.traits(cluster.scheduler).is_this_machine:
        raise UsageError(
            f"`limit.total_time` needs the longest time limit on `{cluster.name}`, which is not known",
            hint="pass `--time 6h`, or set `time` of the partition in the cluster's profile",
        )
    link = min(total, most or total)
    return Chain(link, -(-total // link))


def environment_of(resolved: config.Resolved) -> Plan:
    """A plan with the ranks' environment and image alone, and without an id.

    It counts nothing and checks no launcher, so an experiment that cannot run has such a plan too.
    """
    project, experiment, cluster = resolved.project, resolved.experiment, resolved.cluster
    asked = experiment.resources
    queueing = {
        name: getattr(asked, name)
        for name in ("gpu_type", "account", "partition", "qos", "reservation", "constraint", "extra")
    }
    return Plan(
        run="",
        name=experiment.name,
        project=project.name,
        experiment=experiment.name,
        created="",
        command=experiment.command,
        shell=experiment.shell,
        site=cluster.site,
        allocation=Allocation(nodes=1, ranks=1, gpus=0, cpus=1, memory_mb=None, time_seconds=None, **queueing),
        source=Source(project.directory, experiment.workdir, project.snapshot),
        environment=experiment.environment.planned,
        container=experiment.container if experiment.container.image else None,
        share=project.share,
    )


def _config(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    size = len(json.dumps(settings))
    if size > MOST_CONFIG:
        raise UsageError(
            f"`config` is {size:,} bytes of JSON, and at most {MOST_CONFIG:,} fit a variable",
            hint="move long values to a file of the project, and set its path",
        )
    return dict(settings)


def _track(experiment: config.Experiment, project: str) -> Track | None:
    track = experiment.track
    return track._replace(project=track.project or project) if track.sinks else None


def _with_webhook(experiment: config.Experiment) -> Environment:
    """The address of a webhook is a secret: anybody with the address can write to it."""
    environment, webhook = experiment.environment.planned, experiment.notify.webhook
    if webhook is None or webhook in (*environment.secrets, *environment.env_file):
        return environment
    return environment._replace(secrets=(*environment.secrets, webhook))


def _has_own_signal(resolved: config.Resolved) -> bool:
    return resolved.script is not None and resolved.script.directives.signal is not None


def _limit(asked: Limit, time_seconds: int | None, links: Chain | None, *, has_own_signal: bool) -> Limit:
    """The stop notice comes at most a quarter of the time limit before the end, unless a job script says otherwise.

    `restarts` are further attempts beyond those of a chain.
    """
    most = asked.lead_seconds if time_seconds is None else time_seconds if has_own_signal else time_seconds // 4
    lead = min(asked.lead_seconds, most)
    return asked._replace(lead_seconds=lead, restarts=asked.restarts + (links.links - 1 if links else 0))


def _defaults(resolved: config.Resolved, left_out: tuple[str, ...]) -> tuple[str, ...]:
    """Keys that no user set, in the order of their definition."""
    profile = [key for key, origin in resolved.origins.items() if origin.is_default and key.startswith("resources.")]
    return tuple(dict.fromkeys([*left_out, *profile]))
