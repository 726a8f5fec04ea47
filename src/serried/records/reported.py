"""The usage of a run or a task: its plan, its status and its samples."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from serried import schedulers
from serried.base.errors import ConfigError
from serried.base.files import read_json
from serried.records import index, samples
from serried.records.evidence import claimed_at, latest_attempt
from serried.records.explain import explain
from serried.records.measured import Measurements, measured_of
from serried.records.record import Record, RecordUnreadable
from serried.records.rules import Note, judge
from serried.records.run_status import RunStatus
from serried.records.usage import Peer, Spelling, Usage
from serried.schema import names
from serried.schema.layout import TaskDirectory
from serried.schema.plan import Plan
from serried.schema.reasons import Reason

PEER_LINES = 200
"""How many lines of samples are read of another run."""
_OUT_OF_MEMORY = (names.OUT_OF_MEMORY, names.FAILED)
"""States of runs that may have needed more memory of a GPU: the program then ends with an error of its own."""
_MOST_PEERS, _MOST_PLANS = 4, 40
"""How many smaller runs are measured, and of how many the plan is compared."""


def usage_of(status: RunStatus, now: float, *, most_lines: int = samples.MOST_LINES) -> Usage:
    """Of a run or of one task of an array. Raises RecordUnreadable."""
    measured = measured_in(status.record, status.task, most_lines)
    return _usage(status, now, measured, spelling_of(status.record.plan))


def kept_notes(status: RunStatus, now: float) -> list[Note]:
    """The notes by the summary in the record alone, for readers in a hurry; none without a summary.

    Reads no configuration, so changes are options.
    """
    measured = _kept(status.record) if status.has_ended and status.tasks is None and status.task is None else None
    with contextlib.suppress(RecordUnreadable):
        return judge(_usage(status, now, measured, _options_of(status.record.plan))) if measured else []
    return []


def _usage(status: RunStatus, now: float, measured: Measurements, spelling: Spelling) -> Usage:
    record, task = status.record, status.task
    plan = record.plan
    allocation = plan.allocation
    started = _started(status)
    return Usage(
        id=status.id,
        name=plan.name,
        state=status.state,
        job=status.job_of(task),
        cluster=plan.site.name,
        command=_command(record, task),
        attempt=status.attempt or 1,
        started=started,
        ended=status.verdict.since if status.has_ended else None,
        seconds=_seconds(status, started, now),
        limit_seconds=allocation.time_seconds,
        nodes=allocation.nodes,
        node_names=status.node_names or tuple(node.host for node in measured.nodes),
        ranks=None if plan.script else allocation.ranks,
        gpus=allocation.gpus,
        gpu_type=allocation.gpu_type or "",
        cpus=allocation.cpus,
        memory=allocation.memory_mb * (1 << 20) if allocation.memory_mb else None,
        has_default_memory="resources.mem" in plan.defaults,
        has_default_cpus="resources.cpus" in plan.defaults,
        has_whole_nodes=allocation.exclusive or schedulers.traits(plan.site.scheduler).is_this_machine,
        measured=measured,
        missing="" if measured.nodes else _missing(status),
        spelling=spelling,
        mute=plan.report.mute,
        is_task=task is not None,
        needed_gpu_memory=status.state in _OUT_OF_MEMORY and explain(status).reason is Reason.GPU_MEMORY,
    )


def whole_usage(status: RunStatus, now: float) -> Usage:
    """As `usage_of`, and compared with an earlier run."""
    usage = usage_of(status, now)
    return usage if status.task is not None else dataclasses.replace(usage, peer=peer_of(usage, status.record))


def measured_in(record: Record, task: int | None, most_lines: int) -> Measurements:
    """From the summary in the record, which an ended run has and arrays have not; else from the samples."""
    kept = _kept(record) if task is None else None
    return kept or measured_of(samples.read(record.where.task(task), most_lines=most_lines))


def _kept(record: Record) -> Measurements | None:
    kept = read_json(record.directory.usage)
    with contextlib.suppress(ValueError):
        return Measurements.from_json(kept) if kept else None
    return None


def _started(status: RunStatus) -> float | None:
    """Of a task that runs, only its attempt knows."""
    if status.started is not None or status.state != names.RUNNING or status.tasks is not None:
        return status.started
    attempt = latest_attempt(status.record.where.task(status.task))
    return claimed_at(attempt) if attempt is not None else None


def _seconds(status: RunStatus, started: float | None, now: float) -> float | None:
    """Of the last attempt: of one that runs, so far."""
    if status.has_ended:
        return status.seconds
    return max(now - started, 0.0) if status.state == names.RUNNING and started is not None else None


def _command(record: Record, task: int | None) -> str:
    with contextlib.suppress(RecordUnreadable):
        plan = record.plan_of(task)
        return plan.command[0] if plan.shell else shlex.join(plan.command)
    return ""


def _missing(status: RunStatus) -> str:
    place: TaskDirectory = status.record.where.task(status.task)
    if status.state == names.PENDING:
        return "the run has not started"
    if not status.record.where.path.is_dir():
        return "the run directory was removed, and the record has no summary of its samples"
    if not place.attempts.is_dir():
        return "no attempt has started"
    if not status.has_ended:
        return "the first samples arrive about half a minute after the start"
    return "the run was too short for samples, or sampling was off"


def spelling_of(plan: Plan) -> Spelling:
    """The keys that the project's file uses, by which the next run gets another amount, or options of a command."""
    options = _options_of(plan)
    resources = None if plan.script else _resources(Path(plan.source.directory), plan.experiment)
    if resources is None:
        return options
    key, count = next(((key, count) for key, count in _PER.items() if key in resources), ("mem", options.cpu_units))
    units = count or plan.allocation.cpus
    return Spelling(memory=f'{key} = "{{}}"', memory_units=units, cpu_units=options.cpu_units)


def _options_of(plan: Plan) -> Spelling:
    return dataclasses.replace(_OPTIONS, cpu_units=max(plan.allocation.gpus or plan.allocation.ranks, 1))


_PER = {"mem_per_node": 1, "mem_per_cpu": 0}
"""Keys for memory, and how many of their amounts a node has; 0: as many as CPUs."""
_OPTIONS = Spelling(
    memory="--mem-per-node {}",
    time="--time {}",
    cpus="--cpus {}",
    gpus="--gpus {}",
    nodes="--nodes {}",
    verb="submit with",
)
"""For job scripts, whose directives these options replace, and for commands."""


def _resources(directory: Path, experiment: str) -> Mapping[str, Any] | None:
    """The table `resources` of an experiment, with the defaults below; None if the file does not have it."""
    from serried.config import layers  # not for `kept_notes`

    with contextlib.suppress(ConfigError, OSError, AttributeError, KeyError, TypeError):
        document = layers.find(directory, os.environ).project
        tables: Mapping[str, Any] = document.tables if document else {}
        own = tables.get("experiments", {})[experiment].get("resources", {})
        return {**tables.get("defaults", {}).get("resources", {}), **own}
    return None


def peer_of(usage: Usage, record: Record) -> Peer | None:
    """The smallest earlier run of the same command that has reported samples per second."""
    if usage.samples_per_second is None or usage.units < 2:
        return None
    for units, other in itertools.islice(_smaller(record, usage.units), _MOST_PEERS):
        measured = measured_in(other, None, PEER_LINES)
        rate = measured.samples_per_second
        if rate:
            return Peer(other.id, units, rate)
    return None


def _smaller(record: Record, units: int) -> Iterator[tuple[int, Record]]:
    """The earlier completed runs of the same command with fewer GPUs, the fewest and newest first."""
    own = record.summary
    found = []
    for other in index.records():
        with contextlib.suppress(RecordUnreadable):
            summary, end = other.summary, other.end
            is_same = (summary.project, summary.experiment, summary.tasks) == (own.project, own.experiment, None)
            is_before = end is not None and end.get("state") == names.COMPLETED and summary.created <= own.created
            count = summary.nodes * (summary.gpus or summary.ranks)
            if is_same and is_before and bool(summary.gpus) == bool(own.gpus) and count < units:
                found.append((count, summary.created, other))
    newest_first = sorted(found, key=lambda each: each[1], reverse=True)
    for count, _, other in sorted(newest_first, key=lambda each: each[0])[:_MOST_PLANS]:
        with contextlib.suppress(RecordUnreadable):
            if _work(other.plan) == _work(record.plan):
                yield count, other


def _work(plan: Plan) -> tuple[object, ...]:
    return plan.command, plan.script and plan.script.path, plan.allocation.gpu_type
