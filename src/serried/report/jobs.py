"""The usage of a job that Serried did not start, from the scheduler's accounts alone."""

from __future__ import annotations

import os

from serried import schedulers
from serried.errors import RunNotFoundError
from serried.metrics.measured import GpuFigures, Measurements, NodeFigures
from serried.metrics.samples import Range
from serried.report.usage import Spelling, Usage
from serried.schedulers.accounts import GpuAccount, JobAccount, NodeAccount

_SESSIONS = ("interactive", "sys/dashboard/")
"""How the names of jobs begin that `salloc` and Open OnDemand submit."""
_SESSION_SECONDS = 8 * 3600
"""jobstats: no notes about sessions of up to 8 hours."""


def usages_of_job(job: str) -> list[Usage]:
    """The usage of a job, or of each task of an array. Raises RunNotFoundError and SchedulerUnreachable."""
    name = schedulers.here(os.environ)
    found = schedulers.get(name).accounts(job) if name is not None else []
    if not found:
        known = f"{schedulers.traits(name).title} does not list job {job}" if name else "this machine has no scheduler"
        raise RunNotFoundError(f"unknown run: `{job}`, and {known}", hint="serried ps --all lists the runs")
    return [usage_of_account(account) for account in found]


def usage_of_account(account: JobAccount) -> Usage:
    """Pure."""
    nodes = max(account.nodes, 1)
    gpus = account.gpus // nodes
    measured = Measurements(
        nodes=tuple(_node(at, node, account) for at, node in enumerate(account.used)),
        gpus=tuple(_gpu(at, node, gpu, account) for at, node in enumerate(account.used) for gpu in node.gpus),
        source=account.source,
    )
    return Usage(
        id=account.id,
        name=account.name,
        state=account.state,
        job=account.id,
        cluster=account.cluster,
        started=account.started,
        ended=account.ended,
        seconds=account.seconds,
        limit_seconds=account.limit_seconds,
        nodes=nodes,
        node_names=account.node_names,
        gpus=gpus,
        gpu_type=account.gpu_type,
        cpus=account.cpus / nodes or None,
        memory=account.memory / nodes if account.memory else None,
        measured=measured,
        missing=account.missing,
        spelling=Spelling(
            memory=account.options.memory,
            time=account.options.time,
            is_walltime=True,
            cpus="",
            gpus=account.options.gpus,
            nodes=account.options.nodes,
            verb="submit with",
        ),
        is_ours=False,
        is_session=account.name.startswith(_SESSIONS) and (account.limit_seconds or 0) <= _SESSION_SECONDS,
    )


def _host(node: NodeAccount, account: JobAccount) -> str:
    return node.host or (account.node_names[0] if account.nodes == 1 and account.node_names else "mean")


def _node(at: int, node: NodeAccount, account: JobAccount) -> NodeFigures:
    cores = node.cpu_seconds / account.seconds if node.cpu_seconds is not None and account.seconds else None
    return NodeFigures(
        host=_host(node, account),
        node=at,
        cpus=node.cpus,
        cpu=_same(cores),
        memory=_same(node.memory),
        memory_total=node.memory_total or (account.memory / account.nodes if account.memory else None),
        memory_scope="job",
        seconds=account.seconds or 0.0,
    )


def _gpu(at: int, node: NodeAccount, gpu: GpuAccount, account: JobAccount) -> GpuFigures:
    return GpuFigures(
        host=_host(node, account),
        node=at,
        gpu=gpu.gpu,
        name=account.gpu_type,
        busy=_same(gpu.busy),
        memory=_same(gpu.memory),
        memory_total=gpu.memory_total,
        seconds=account.seconds or 0.0,
    )


def _same(value: float | None) -> Range | None:
    """Accounts have one number for the whole job."""
    return None if value is None else Range(value, value, value)
