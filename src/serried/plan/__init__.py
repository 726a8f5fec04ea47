"""The plan: one experiment on one cluster with nothing left to decide. Immutable, JSON, printable.

The script, the agents and every reader of runs work from the plan. Its parts that users set are in `parts`.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from serried.plan.parts import (
    Build,
    Container,
    Data,
    Dialect,
    Environment,
    Launch,
    Limit,
    Notify,
    Site,
    Staged,
    Sync,
)
from serried.protocol import SCHEMA, names
from serried.protocol.layout import RunDirectory, run_directory
from serried.protocol.successor_commands import part_of, token_of, tokens_of

__all__ = [
    "After",
    "Allocation",
    "Array",
    "Build",
    "Container",
    "Data",
    "Dialect",
    "Environment",
    "Launch",
    "Limit",
    "Notify",
    "Plan",
    "Resume",
    "Site",
    "Source",
    "Staged",
    "Sync",
]

ALL = 0
"""Memory: all that a node has."""


class Allocation(NamedTuple):
    """One Slurm task per node owns everything on that node."""

    nodes: int
    ranks: int
    """Ranks per node."""
    gpus: int
    """GPUs per node; 0 on CPU clusters."""
    cpus: int
    """CPUs per node."""
    memory_mb: int | None
    """Memory per node in MiB; 0 is all of it; None leaves it to the cluster."""
    time_seconds: int | None
    """Walltime limit; None is no limit of ours."""
    gpu_type: str | None = None
    account: str | None = None
    partition: str | None = None
    qos: str | None = None
    reservation: str | None = None
    constraint: tuple[str, ...] = ()
    """Every one must hold: joined by `&`."""
    licenses: tuple[str, ...] = ()
    exclusive: bool = False
    comment: str | None = None
    mail_user: str | None = None
    mail_type: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()
    """Options for the scheduler's submit command, as they are."""


class Source(NamedTuple):
    """What code the ranks run."""

    directory: str
    """The project's folder on the submitting side, absolute."""
    workdir: str = "."
    """Where ranks start, relative to the project's folder."""
    snapshot: bool = True
    """False: run in `directory` itself."""
    archive: str | None = None
    """Path of the tar to unpack."""
    tree_per_task: bool = False
    """Each task of an array unpacks a working tree of its own; else all share one."""
    links: tuple[str, ...] = ()
    """Top-level entries of the project that the unpacked tree links to."""
    python_path: tuple[str, ...] = ()
    """Folders (relative to the tree) put before PYTHONPATH: editable installs redirected to the snapshot."""


class Array(NamedTuple):
    indices: tuple[int, ...]
    parallel: int | None = None
    """How many tasks may run at once; None leaves it to the scheduler."""
    each: bool = False
    """True: task I runs line I of commands.json; False: all run the plan's command."""
    repeat: int | None = None
    """How many tasks in a row are repeats of one command, each with the next seed; None for no repeats."""
    offsets: tuple[int, ...] = ()
    """One for each job that the array is submitted as, where one job cannot hold it: what that job adds to the
    scheduler's own indices, which begin at 0. Empty: one job, whose indices are the tasks."""


class After(NamedTuple):
    """A run, or a task of one, that this one comes after."""

    run: str
    name: str
    directory: str
    """Its run directory, absolute."""
    condition: str = names.AFTER_OK
    """How it has to end: `ok`, `any` or `notok`."""
    task: int | None = None
    job: str | None = None
    """Its first job; of an array in parts all of them, with commas. None where it had ended as it should before this
    one was submitted."""

    def __str__(self) -> str:
        """`k3f9q2`, `k3f9q2/17:any`."""
        task = "" if self.task is None else f"/{self.task}"
        condition = "" if self.condition == names.AFTER_OK else f":{self.condition}"
        return f"{self.run}{task}{condition}"


class Resume(NamedTuple):
    """What a run begins from, where it has no checkpoint of its own yet."""

    checkpoints: tuple[str, ...]
    """Absolute paths: one for each task of the array in its order, or one for all; empty for one without."""
    run: str | None = None
    """The run, or the task (`k3f9q2/17`), whose they are."""

    def __str__(self) -> str:
        if len(self.checkpoints) > 1:
            return f"{self.run}, each task from its own"
        path = self.checkpoints[0]
        return f"{self.run}, {path.rpartition('/')[2]}" if self.run else path


@dataclass(frozen=True)
class Plan:
    run: str
    """The run's id."""
    name: str
    """What the user calls it: --name, else the experiment's."""
    project: str
    experiment: str
    created: str
    """UTC, ISO 8601."""
    command: tuple[str, ...]
    """The program and its arguments, placeholders unfilled; with `shell` one task, a line for bash."""
    site: Site
    allocation: Allocation
    source: Source
    shell: bool = False
    seed: int = 0
    debug: bool = False
    """Ranks get the switches that let NCCL and torch.distributed say what they do."""
    ranks_meet: bool = True
    """False: ranks are independent programs, and no warning is due when none connects to another."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """What the training is told, by dotted name; `serried.train.config` and `{config.NAME}` have it."""
    environment: Environment = field(default_factory=Environment)
    container: Container | None = None
    data: Data | None = None
    sync: Sync | None = None
    limit: Limit = field(default_factory=Limit)
    launch: Launch = Launch("agent")  # noqa: RUF009 - it never changes
    notify: Notify | None = None
    array: Array | None = None
    resume: Resume | None = None
    after: tuple[After, ...] = ()
    """Runs that must have ended, each as it says, before this one begins."""
    smoke: int = 0
    """A smoke test: after how many steps a training saves, loads and leaves; 0 is none."""
    rerun_of: str | None = None
    """The run, or the task, whose plan this is too."""
    defaults: tuple[str, ...] = ()
    """Keys (`resources.cpus`) that nobody set: Serried's or the cluster's defaults."""
    share: str = "user"
    """`user` (0700/0600) or `group` (0750/0640)."""
    schema: int = SCHEMA

    @property
    def directory(self) -> str:
        """The run directory, absolute."""
        return run_directory(self.site.root, self.project, self.experiment, self.run)

    @property
    def private(self) -> str:
        """Where a job's environment goes that the scheduler would show to everybody; absolute."""
        return self.site.private or str(RunDirectory(Path(self.directory)).private)

    @property
    def world_size(self) -> int:
        return self.allocation.nodes * self.allocation.ranks

    @property
    def lead_seconds(self) -> int:
        """How long before the time limit the job is warned; 0 is never."""
        return 0 if self.allocation.time_seconds is None else self.limit.lead_seconds

    @property
    def useful_seconds(self) -> int | None:
        """After which ranks are asked to save and leave; None where there is no limit."""
        limit = self.allocation.time_seconds
        if limit is None:
            return None
        brings = self.sync is not None or bool(self.data and self.data.results)
        return limit - self.limit.lead_seconds - (min(names.COPY_BACK_SECONDS, limit // 20) if brings else 0)

    @property
    def may_requeue(self) -> bool:
        """Whether the job itself may run again."""
        return self.limit.restarts > 0 and self.limit.form == names.REQUEUE

    @property
    def has_links(self) -> bool:
        """Whether further attempts are further jobs."""
        return self.limit.restarts > 0 and self.limit.form != names.REQUEUE

    @property
    def is_in_parts(self) -> bool:
        """Whether its array is several jobs."""
        return self.array is not None and len(self.array.offsets) > 1

    @property
    def tokens(self) -> list[str]:
        """Of the jobs that it is submitted as."""
        return tokens_of(token_of(self.run, None, 1), self.array.offsets if self.array else ())

    def part(self, number: int) -> Plan:
        """The plan as one of those jobs has it: its tasks under the scheduler's own indices."""
        if self.array is None or not self.array.offsets:
            return self
        offsets = self.array.offsets
        own = tuple(each - offsets[number] for each in self.array.indices if part_of(offsets, each) == number)
        return dataclasses.replace(self, array=self.array._replace(indices=own))

    def to_json(self) -> dict[str, Any]:
        return {f.name: _plain(getattr(self, f.name)) for f in dataclasses.fields(self)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Plan:
        """The plan that `to_json` wrote, of this or an earlier schema. Raises ValueError on a later one."""
        if value.get("schema", 0) > SCHEMA:
            raise ValueError(f"this plan has schema {value['schema']}; this Serried reads up to {SCHEMA}")
        return typing.cast("Plan", _build(cls, value))


def _plain(value: Any) -> Any:
    """What JSON holds of a part of a plan: each part is an object by the names of its fields."""
    if not isinstance(value, tuple):
        return value
    items = map(_plain, value)
    return dict(zip(value._fields, items, strict=True)) if hasattr(value, "_fields") else tuple(items)


_hints = functools.cache(typing.get_type_hints)
_FORMER_NAMES = {"element": "task", "tree_per_element": "tree_per_task"}
"""Fields of plans that earlier versions wrote."""


def _build(kind: Any, value: Any) -> Any:
    """Make `value`, read from JSON, an instance of `kind`. Unknown keys (a later minor version's) are dropped."""
    if isinstance(kind, types.UnionType):
        if value is None:
            return None
        choices = [choice for choice in typing.get_args(kind) if choice is not type(None)]
        tuples = [choice for choice in choices if typing.get_origin(choice) is tuple]
        return _build(tuples[0] if tuples and isinstance(value, list) else choices[0], value)
    if kind is Plan or hasattr(kind, "_fields"):
        value = {_FORMER_NAMES.get(name, name): item for name, item in value.items()}
        return kind(**{name: _build(hint, value[name]) for name, hint in _hints(kind).items() if name in value})
    if typing.get_origin(kind) is tuple:
        inner = typing.get_args(kind)[0]
        return tuple(_build(inner, item) for item in value)
    return value
