"""The status of a run, as every reading command prints it, and its end in the record.

The first reader that is certain of an end writes it, and all later ones read it.
"""

from __future__ import annotations

import contextlib
import functools
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from serried import schedulers
from serried.base.errors import SerriedError
from serried.base.files import read_journal, write_text
from serried.base.text import expand, iso, seconds_of
from serried.records.evidence import Evidence, latest_attempt
from serried.records.record import Record, RecordUnreadable, Summary
from serried.records.verdict import Verdict, ranges_by_state
from serried.schedulers.interface import Job
from serried.schema import SCHEMA, names, reasons
from serried.schema.events import JournalEvent
from serried.schema.reasons import Reason
from serried.schema.successor_commands import part_of

if TYPE_CHECKING:
    from serried.records.live import RunProgress

MOST_TASKS_READ = 16

_FOR_GOOD_SECONDS = 86400.0
"""A file system may be away for hours. An end without proof, LOST above all, is written down after a day."""


@dataclass(frozen=True)
class RunStatus:
    """The status of a run, or of one task of an array."""

    record: Record
    summary: Summary | None
    """None if the record cannot be read; the verdict's message says why."""
    verdict: Verdict
    task: int | None = None
    job: str | None = None
    """The job id; for an array in parts all of them, with commas."""
    attempt: int | None = None
    started: float | None = None
    seconds: float | None = None
    """How long it ran, once it has ended."""
    reason: str = ""
    """Why it waits, as the scheduler puts it."""
    starts: float | None = None
    """When the scheduler expects to start it."""
    node_names: tuple[str, ...] = ()
    tasks: Mapping[int, Verdict] | None = None
    """An array's tasks; None for other runs."""
    jobs: Mapping[int, Job] = field(default_factory=dict)
    """The scheduler's answers, by task."""
    warnings: tuple[Mapping[str, str], ...] = ()
    """Doubts about a run that has not failed, each a `code` and a `message`."""
    is_elsewhere: bool = False
    """The job belongs to another cluster: the scheduler that answers has a job of another name under its id."""

    @property
    def id(self) -> str:
        return self.record.id if self.task is None else f"{self.record.id}/{self.task}"

    def job_of(self, task: int | None) -> str | None:
        """The current job of a task, or of the run itself (None)."""
        if task is not None and task in self.jobs:
            return self.jobs[task].id
        jobs = self.job.split(",") if self.job else []
        is_one_of = task is not None and len(jobs) > 1
        return jobs[part_of(self.record.offsets, self.record.worker_of(task or 0))] if is_one_of else self.job

    @property
    def state(self) -> str:
        return self.verdict.state

    @property
    def has_ended(self) -> bool:
        return self.verdict.has_ended

    @property
    def waits_because(self) -> Reason | None:
        """The code of `reason`; None if it does not wait, and for a word that its scheduler's room does not know."""
        return waits_because(self.summary, self.reason) if self.state == names.PENDING else None

    @property
    def scheduler_explanation(self) -> str:
        """`reason` in plain words."""
        if not self.reason or self.summary is None:
            return "the scheduler gives no reason"
        try:
            return schedulers.get(self.summary.scheduler).explain(self.reason)
        except SerriedError:  # a scheduler that this version does not have
            return ""

    @functools.cached_property
    def progress(self) -> RunProgress | None:
        """What the run does now, from one file; None unless it runs, and for a whole array."""
        if self.state != names.RUNNING or self.summary is None or self.tasks is not None:
            return None
        from serried.records import live  # only for runs that run

        place = self.record.where.task(self.task)
        attempt = latest_attempt(place) if self.attempt is None else place.attempt(self.attempt)
        return live.progress_of(attempt.live, self.summary.metric, time.time()) if attempt else None

    @functools.cached_property
    def progress_of_tasks(self) -> Mapping[int, RunProgress]:
        """What the first running tasks of an array do now: at most MOST_TASKS_READ, each by a listing and a file."""
        running = [index for index, found in (self.tasks or {}).items() if found.state == names.RUNNING]
        ones = ((index, self._task_progress(index)) for index in running[:MOST_TASKS_READ])
        return {index: progress for index, progress in ones if progress is not None}

    def _task_progress(self, index: int) -> RunProgress | None:
        return RunStatus(self.record, self.summary, Verdict(names.RUNNING), task=index).progress

    @property
    def created(self) -> float:
        return (seconds_of(self.summary.created) if self.summary else None) or 0.0

    def to_json(self) -> dict[str, Any]:
        """An entry of `runs` in the --json output of every reading command."""
        summary, verdict = self.summary, self.verdict
        return {
            "id": self.id,
            "name": summary and summary.name,
            "project": summary and summary.project,
            "experiment": summary and summary.experiment,
            "cluster": summary and summary.cluster,
            "scheduler": summary and summary.scheduler,
            "job": self.job,
            "state": verdict.state,
            "exit_code": verdict.exit_code,
            "cause": verdict.cause or self.waits_because,
            "message": verdict.message or None,
            "conditions": [dict(one) for one in verdict.conditions],
            "reason": self.reason or None,
            "attempt": self.attempt,
            "created": summary and summary.created,
            "expected_start": iso(self.starts),
            "started": iso(self.started),
            "ended": iso(verdict.since) if verdict.has_ended else None,
            "seconds": self.seconds,
            "stale_since": iso(verdict.stale),
            "nodes": summary and summary.nodes,
            "ranks_per_node": summary and summary.ranks,
            "gpus_per_node": summary and summary.gpus,
            "node_names": list(self.node_names),
            "resumed_from": summary and summary.resumed_from,
            "rerun_of": summary and summary.rerun_of,
            "after": list(summary.after) if summary else [],
            "smoke": summary and summary.smoke,
            "rehearsal": summary and summary.rehearsal,
            "directory": summary and str(self.record.where.path),
            "warnings": [dict(warning) for warning in self.warnings],
            "progress": self._progress_json(),
            "tasks": None if self.tasks is None else ranges_by_state(self.tasks),
        }

    def _progress_json(self) -> dict[str, Any] | None:
        if self.tasks is None:
            return self.progress.to_json() if self.progress else None
        of_tasks = self.progress_of_tasks
        return {"tasks": {str(index): one.to_json() for index, one in of_tasks.items()}} if of_tasks else None


def just_submitted(record: Record) -> RunStatus:
    """Without a look at its files or a question to its scheduler."""
    return RunStatus(record, record.summary, Verdict(names.PENDING), job=record.submissions[0].job)


def waits_because(summary: Summary | None, reason: str) -> Reason | None:
    """The code of the scheduler's `reason` for not starting a run."""
    return _code_of(summary.scheduler, reason) if reason and summary is not None else None


@functools.cache
def _code_of(scheduler: str, reason: str) -> Reason | None:
    """Thousands of runs wait for a few reasons."""
    with contextlib.suppress(SerriedError):  # a scheduler that this version does not have
        return schedulers.get(scheduler).classify(reason)
    return None


def keep_end(status: RunStatus, evidence: Evidence, now: float) -> RunStatus:
    """Write the end into the record once no later evidence can change it. Returns `status`."""
    verdict = status.verdict
    is_old = verdict.has_ended and verdict.since is not None and now - verdict.since > _FOR_GOOD_SECONDS
    if not verdict.settled and not is_old:
        return status
    document: dict[str, Any] = {
        **evidence.document,
        "schema": SCHEMA,
        "run": status.record.id,
        "task": None,
        "job": status.job,
        "attempts": status.attempt,
        "state": verdict.state,
        "exit_code": verdict.exit_code,
        "cause": verdict.cause,
        "message": verdict.message,
        "ended": iso(verdict.since),
    }
    document["conditions"] = [*verdict.conditions] or reasons.conditions({**document, "conditions": None})
    if status.started is not None:
        document.setdefault("started", iso(status.started))
    document.setdefault("seconds", status.seconds)
    if status.tasks is not None:
        document["tasks"] = ranges_by_state(status.tasks)
    with contextlib.suppress(OSError):  # a full home must not hide how a run ended
        if status.tasks is None:
            _keep_usage(status.record)
        status.record.write_end(document)
    return status


def _keep_usage(record: Record) -> None:
    """Write the samples in a few numbers into the record: sites purge run directories. Raises OSError."""
    if next(record.where.attempts.glob("*/node-*/samples.jsonl"), None) is None:
        return
    from serried.records import measured, samples  # once in the life of a run

    found = measured.measured_of(samples.read(record.where))
    if found.nodes:
        write_text(record.directory.usage, json.dumps(found.to_json(), separators=(",", ":")) + "\n")


def read_end(record: Record) -> RunStatus:
    """The status of an ended run, from one file of its record."""
    end = record.end or {}
    code, attempts = end.get("exit_code"), end.get("attempts", end.get("attempt"))
    verdict = Verdict(
        state=str(end.get("state", names.UNKNOWN)),
        exit_code=code if isinstance(code, int) else None,
        cause=end.get("cause"),
        message=str(end.get("message") or ""),
        since=seconds_of(end.get("ended")),
        settled=True,
        conditions=tuple(reasons.conditions(end)),
    )
    return RunStatus(
        record,
        record.summary,
        verdict,
        job=end.get("job"),
        attempt=attempts if isinstance(attempts, int) else None,
        started=seconds_of(end.get("started")),
        seconds=end.get("seconds"),
        node_names=node_names(end),
        tasks=_tasks(record, end),
        warnings=warnings(end),
    )


def _tasks(record: Record, end: Mapping[str, Any]) -> dict[int, Verdict] | None:
    by_state = end.get("tasks")
    if not isinstance(by_state, dict):
        return None
    try:
        states = {index: state for state, text in by_state.items() for index in expand(text)}
    except (ValueError, AttributeError) as error:
        raise RecordUnreadable(f"exit.json of run `{record.id}` is not valid ({error})") from error
    return {index: Verdict(states[index], settled=True) for index in sorted(states)}


def node_names(document: Mapping[str, Any]) -> tuple[str, ...]:
    nodes = document.get("nodes")
    return tuple(str(node) for node in nodes) if isinstance(nodes, list) else ()


def warnings(document: Mapping[str, Any]) -> tuple[Mapping[str, str], ...]:
    """The warnings in an exit.json."""
    entries = document.get("warnings")
    if not isinstance(entries, list):
        return ()
    return tuple(entry for entry in entries if isinstance(entry, dict) and isinstance(entry.get("message"), str))


def warnings_of(status: RunStatus) -> tuple[Mapping[str, str], ...]:
    """The doubts that agents have recorded about a run, or about an attempt that still runs."""
    if status.has_ended or status.summary is None or status.tasks is not None:
        return status.warnings
    from serried.schema import side_commands  # `serried ps` needs no warnings

    attempt = latest_attempt(status.record.where.task(status.task))
    events = list(read_journal(attempt.events)) if attempt else []
    apart = [entry for entry in events if entry.get("event") == JournalEvent.RANKS_UNCONNECTED]
    if any(entry.get("event") == JournalEvent.RANKS_CONNECTED for entry in events):
        apart = []
    return (
        *({"code": Reason.RANKS_APART, "message": str(entry["message"])} for entry in apart),
        *side_commands.warnings(events),
        *_warnings_of_gpus(events),
        *_doubts(status.progress),
    )


def _doubts(progress: RunProgress | None) -> list[dict[str, str]]:
    if progress is None:
        return []
    from serried.records.doubts import doubts  # only for runs that run

    return doubts(progress)


def _warnings_of_gpus(events: list[dict[str, Any]]) -> list[dict[str, str]]:
    if not any(event.get("event") == JournalEvent.GPUS_IN_USE for event in events):
        return []
    from serried.schema import gpu_use  # rare

    return gpu_use.warnings(events)
