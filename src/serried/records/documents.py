"""What the files of a record hold: how a submission stands, and the summary of a plan that an end carries."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from serried.errors import SerriedError
from serried.plan import After, Plan
from serried.protocol import SCHEMA, names
from serried.protocol.layout import run_directory
from serried.protocol.successor_commands import number_of

Document = TypeVar("Document", "Summary", "Submission")

MOST_NAMED = 5
"""Jobs of one submission that are listed one by one."""

OPEN = ("submitting", "uncertain")
"""States of a submission that somebody has to find out about."""


class RecordUnreadable(SerriedError):  # noqa: N818 - reads as what happened
    """A record that somebody tore, or that a later Serried wrote."""


@dataclass(frozen=True)
class Summary:
    """What a listing shows of a plan. The record's exit.json carries it, so that one file tells all."""

    name: str
    project: str
    experiment: str
    cluster: str
    scheduler: str
    created: str
    """UTC, ISO 8601."""
    nodes: int
    ranks: int
    """Per node."""
    gpus: int
    """Per node."""
    time_seconds: int | None
    directory: str
    elements: int | None = None
    """How many an array has; None is no array."""
    resumed_from: str | None = None
    """The run, element or path whose checkpoint it began from."""
    rerun_of: str | None = None
    """The run, or the element, whose plan it has too."""
    smoke: bool = False
    """A smoke test."""
    rehearsal: bool = False
    """A run of `serried rehearse`: it may end after a few steps as well, and is no smoke test."""
    after: tuple[str, ...] = ()
    """What it comes after: `k3f9q2`, `k3f9q2/17:any`."""
    stages: bool = False
    """Its ranks wait for data."""

    @classmethod
    def of(cls, plan: Plan) -> Summary:
        return cls.from_plan(plan.to_json())

    @classmethod
    def from_plan(cls, plan: Mapping[str, Any]) -> Summary:
        """From plan.json as it is read: building a whole Plan would cost a listing a millisecond for each run."""
        try:
            site, allocation, array = plan["site"], plan["allocation"], plan.get("array")
            rehearsal = names.REHEARSAL in ((plan.get("environment") or {}).get("env") or {})
            return cls(
                name=str(plan["name"]),
                project=str(plan["project"]),
                experiment=str(plan["experiment"]),
                cluster=str(site["name"]),
                scheduler=str(site["scheduler"]),
                created=str(plan["created"]),
                nodes=int(allocation["nodes"]),
                ranks=int(allocation["ranks"]),
                gpus=int(allocation["gpus"]),
                time_seconds=allocation.get("time_seconds"),
                directory=run_directory(site["root"], plan["project"], plan["experiment"], plan["run"]),
                elements=len(array["indices"]) if array else None,
                resumed_from=(resume := plan.get("resume")) and str(resume["run"] or resume["checkpoints"][0]),
                rerun_of=plan.get("rerun_of"),
                smoke=bool(plan.get("smoke")) and not rehearsal,
                rehearsal=rehearsal,
                after=tuple(map(_after, plan.get("after") or ())),
                stages=bool((plan.get("data") or {}).get("stage")),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise RecordUnreadable(f"its plan.json makes no sense ({error!r})") from error

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Summary:
        return _built(cls, {**value, "after": tuple(value.get("after", ()))}, "its exit.json")


def _after(value: Mapping[str, Any]) -> str:
    return str(After(**{name: value[name] for name in After._fields if name in value}))


@dataclass(frozen=True)
class Submission:
    """One job given, or about to be given, to the scheduler: `submissions/S.json`."""

    token: str
    state: str
    """submitting | submitted | failed | uncertain"""
    cluster: str
    scheduler: str
    at: str
    """UTC, ISO 8601."""
    by_pid: int
    job: str | None = None
    """Its id. Of an array in parts the ids of all its jobs, or of those accepted so far, with commas."""
    message: str | None = None
    by_host: str = ""
    """Where `by_pid` means something."""
    by_started: str = ""
    """When that process started, as the machine counts: a later one may have its pid."""
    site: str = ""
    """What the scheduler calls itself, where job ids alone do not say whose they are: Slurm's ClusterName."""
    moved: bool = False
    """Its first attempt is here: the job before it was too early for a run that comes after others."""
    missed: float | None = None
    """When the scheduler was first asked and did not know of it; seconds since the epoch."""
    schema: int = SCHEMA

    @property
    def number(self) -> int:
        return number_of(self.token)

    @property
    def jobs(self) -> tuple[str, ...]:
        """The ids in `job`."""
        return tuple(self.job.split(",")) if self.job else ()

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Submission:
        return _built(cls, value, "a submission of it")


def jobs_text(jobs: Sequence[str]) -> str:
    """`job 12`; of an array in parts `jobs 12, 13, 14`, or `120 jobs, 12 to 131`."""
    if len(jobs) > MOST_NAMED:
        return f"{len(jobs)} jobs, {jobs[0]} to {jobs[-1]}"
    return f"job{'s' if len(jobs) > 1 else ''} {', '.join(jobs)}"


def _built(kind: type[Document], value: Mapping[str, Any], whose: str) -> Document:
    """From what it has of the fields of `kind`: a later Serried may have written more. Raises RecordUnreadable."""
    known = {field.name: value[field.name] for field in dataclasses.fields(kind) if field.name in value}
    try:
        return kind(**known)
    except TypeError as error:
        raise RecordUnreadable(f"{whose} makes no sense ({error})") from error
