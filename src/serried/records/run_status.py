"""How a run, or one element of it, stands: what every reading verb prints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from serried.protocol.successor_commands import part_of
from serried.protocol.times import iso, seconds_of
from serried.records import arrays
from serried.records.documents import Summary
from serried.records.record import Record
from serried.records.verdict import Verdict
from serried.schedulers.interface import Job


@dataclass(frozen=True)
class RunStatus:
    """How a run, or one element of it, stands."""

    record: Record
    summary: Summary | None
    """None where the record cannot be read; the verdict's message says why."""
    verdict: Verdict
    element: int | None = None
    job: str | None = None
    """The scheduler's id; of an array in parts all of them, with commas."""
    attempt: int | None = None
    started: float | None = None
    seconds: float | None = None
    """How long it ran, where it has ended."""
    reason: str = ""
    """Why it waits, in the scheduler's word."""
    starts: float | None = None
    """When the scheduler expects to start it."""
    node_names: tuple[str, ...] = ()
    elements: Mapping[int, Verdict] | None = None
    """An array's elements; None for anything else."""
    jobs: Mapping[int, Job] = field(default_factory=dict)
    """What the scheduler said of elements."""
    warnings: tuple[Mapping[str, str], ...] = ()
    """What is doubtful about it though nothing has failed: each a `code` and a `message`."""
    is_elsewhere: bool = False
    """The scheduler that answers has given the job's id to a job of another name: it is another cluster's."""

    @property
    def id(self) -> str:
        return self.record.id if self.element is None else f"{self.record.id}/{self.element}"

    def job_of(self, element: int | None) -> str | None:
        """The job that an element is in now, or the run itself."""
        found = self.jobs.get(element) if element is not None else None
        if found is not None:
            return found.id
        jobs = self.job.split(",") if self.job else []
        is_one_of = element is not None and len(jobs) > 1
        return jobs[part_of(self.record.offsets, element or 0)] if is_one_of else self.job

    @property
    def state(self) -> str:
        return self.verdict.state

    @property
    def has_ended(self) -> bool:
        return self.verdict.has_ended

    @property
    def created(self) -> float:
        return (seconds_of(self.summary.created) if self.summary else None) or 0.0

    def to_json(self) -> dict[str, Any]:
        """One of `runs` in what every reading verb prints with --json."""
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
            "cause": verdict.cause,
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
            "tasks": None if self.elements is None else arrays.ranges_by_state(self.elements),
            "elements": None if self.elements is None else arrays.ranges_by_state(self.elements),  # former name
        }
