"""The plan: one experiment on one cluster with nothing left to decide. Immutable, JSON, printable.

The script, the agents and every reader of runs work from the plan. Its parts that users set are in `parts`.
"""

from __future__ import annotations

import dataclasses
import functools
import os
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
    ReportedMetric,
    ReportSettings,
    Sampling,
    SideCommand,
    Site,
    Staged,
    Sync,
    Track,
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
    "ReportSettings",
    "ReportedMetric",
    "Resume",
    "Sampling",
    "SideCommand",
    "Site",
    "Source",
    "Staged",
    "Sweep",
    "Sync",
    "Track",
    "UserScript",
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
    """Memory per node in MiB; 0 for all, None for the cluster's default."""
    time_seconds: int | None
    """Time limit of a job; None if Serried sets none."""
    gpu_type: str | None = None
    account: str | None = None
    partition: str | None = None
    qos: str | None = None
    reservation: str | None = None
    constraint: tuple[str, ...] = ()
    """Features that every node must have: joined by `&`."""
    licenses: tuple[str, ...] = ()
    exclusive: bool = False
    comment: str | None = None
    mail_user: str | None = None
    mail_type: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()
    """Further options for the scheduler's submit command, unchanged."""


class Source(NamedTuple):
    """The code that the ranks run."""

    directory: str
    """The project's folder on the submitting side, absolute."""
    workdir: str = "."
    """The ranks' working directory, relative to the project's folder."""
    snapshot: bool = True
    """False: run in `directory` itself."""
    archive: str | None = None
    """Path of the tar to unpack."""
    tree_per_task: bool = False
    """Each task of an array unpacks its own working tree. Otherwise all tasks share one."""
    links: tuple[str, ...] = ()
    """Top-level entries of the project that the unpacked tree links to."""
    python_path: tuple[str, ...] = ()
    """Folders (relative to the tree) put before PYTHONPATH: editable installs redirected to the snapshot."""


class Array(NamedTuple):
    indices: tuple[int, ...]
    parallel: int | None = None
    """Most tasks that run at once; None for the scheduler's default."""
    each: bool = False
    """Task I runs line I of commands.json. Otherwise all tasks run the plan's command."""
    repeat: int | None = None
    """The number of consecutive tasks that repeat one command, each with the next seed; None without repeats."""
    offsets: tuple[int, ...] = ()
    """If one job cannot hold the array: for each of its jobs, the difference between a task and the scheduler's index,
    which begins at 0. Empty: one job, whose indices are the tasks."""
    draws: bool = False
    """A job runs further tasks after its own, whose jobs still wait, as long as its time allows: see
    `agent/trials/draw.py`."""


class Search(NamedTuple):
    """A search by Optuna, for the agents of the trials: see `agent/trials/search.py`."""

    method: str
    """`bayes`; `grid` or `random` if it only ends trials early."""
    metric: str
    source: str
    goal: str
    pruner: Mapping[str, Any] | None
    """`type` (`hyperband` or `median`) and the arguments of that pruner; None if no trial ends early."""
    space: Mapping[str, Mapping[str, Any]]
    """By parameter: `value`; `choices`; or `low` and `high`, with `int`, `log` and `q`. Empty without `bayes`."""
    journal: str = ""
    """Optuna's journal, in the directory of the sweep's first run."""
    pythons: tuple[str, ...] = ()
    """Those that have Optuna, the first choice first."""


class Sweep(NamedTuple):
    """The sweep that a run belongs to. Each task is a trial; trials.json has the parameters."""

    first: str
    """The sweep's first run, whose id is the sweep's. Later runs repeat trials or add some."""
    parameters: tuple[str, ...]
    """By dotted name."""
    metric: str = ""
    """The logged value that orders the trials; empty without one."""
    goal: str = "minimize"
    """`minimize` or `maximize`."""
    source: str = ""
    """Where the programs report the metric, as `protocol.printed_metric` reads it; empty if they log it."""
    seeds: int = 1
    """The number of consecutive trials that differ in their seed alone."""
    definition: Mapping[str, Any] = {}
    """The keys of `[sweeps.NAME]` that gave the trials, from which further draws follow."""
    description: str = ""
    """The parameters and their values in words: `lr (2 values) x wd (3 values)`."""
    search: Search | None = None
    """What gives trials their parameters when they start, or ends them early; None if neither."""
    service: str = ""
    """`ENTITY/PROJECT/ID` of a sweep at W&B, whose agents start the trials; empty for other sweeps."""


class UserScript(NamedTuple):
    """A job script of the user, which runs unmodified on the first node in place of ranks."""

    path: str
    """The file as of submit, absolute. The run directory has a copy."""
    interpreter: tuple[str, ...]
    """The program of the `#!` line, and at most one argument."""
    options: tuple[str, ...] = ()
    """Options for the scheduler's submit command from the script's directives, unchanged."""
    replaced: tuple[str, ...] = ()
    """Options of directives that settings of the user replace."""
    keys: tuple[str, ...] = ()
    """Keys of `resources` that the user set in place of directives."""
    title: str = ""
    """The job's name by `--name` or its directives; empty if there is none."""
    log: str = ""
    """Where the user expects its output, in the escapes of the scheduler; a link leads to the log."""
    errors: str = ""
    """Where the user expects its stderr, if that is another file; a link leads to the same log."""
    input: str = ""
    """The file that it reads as standard input."""
    dependency: str = ""
    """Jobs that it waits for, in the scheduler's words."""
    notice_to: str = ""
    """Which get the signal `limit.notify`: `script`, `ranks` that it starts, or, if empty, both."""
    has_login: bool = False
    """Its environment begins as that of a login shell."""
    appends: bool = False
    """The logs of its steps are kept when they exist, by its directives."""
    dialect: str = ""
    """The scheduler of its directives; empty without directives."""
    umask: int = 0o077
    """Of the submitting shell, or by its directives. With `has_login` the user's profile may change it."""
    folder: str = ""
    """The folder that it was submitted from, absolute."""

    @property
    def job_name(self) -> str:
        """The name of its job with the scheduler's own command."""
        return self.title or os.path.basename(self.path)  # noqa: PTH119

    @property
    def is_singleton(self) -> bool:
        """Whether it waits for its user's earlier jobs of the same name."""
        return "singleton" in self.dependency.replace("?", ",").split(",")


class After(NamedTuple):
    """A run, or a task of a run, that this run depends on."""

    run: str
    name: str
    directory: str
    """Its run directory, absolute."""
    condition: str = names.AFTER_OK
    """The end that it must have: `ok`, `any` or `notok`."""
    task: int | None = None
    job: str | None = None
    """Its first job, or all jobs of an array, with commas. None if the condition was met before this run was
    submitted."""

    def __str__(self) -> str:
        """`k3f9q2`, `k3f9q2/17:any`."""
        task = "" if self.task is None else f"/{self.task}"
        condition = "" if self.condition == names.AFTER_OK else f":{self.condition}"
        return f"{self.run}{task}{condition}"


class Resume(NamedTuple):
    """The checkpoint that a run starts from, until it has its own."""

    checkpoints: tuple[str, ...]
    """Absolute paths: one for each task of the array in order, or one for all. Empty for a task without."""
    run: str | None = None
    """The run or the task (`k3f9q2/17`) that wrote them."""

    def __str__(self) -> str:
        if len(self.checkpoints) > 1:
            return f"{self.run}, each task from its own checkpoint"
        path = self.checkpoints[0]
        return f"{self.run}, {path.rpartition('/')[2]}" if self.run else path


@dataclass(frozen=True)
class Plan:
    run: str
    """The run's id."""
    name: str
    """The name for users: `--name`, else the experiment's name."""
    project: str
    experiment: str
    created: str
    """UTC, ISO 8601."""
    command: tuple[str, ...]
    """The program and its arguments, with placeholders. With `shell` a single word: a line for bash."""
    site: Site
    allocation: Allocation
    source: Source
    shell: bool = False
    seed: int = 0
    debug: bool = False
    """NCCL and torch.distributed log more."""
    ranks_meet: bool = True
    """False: ranks are independent programs, and Serried does not warn if none connects to another."""
    shares_logs: bool = False
    """The ranks of a node share a log, except rank 0, and only the first of them keeps its metrics."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """The settings of the training, by dotted name, for `serried.train.config` and `{config.NAME}`."""
    environment: Environment = field(default_factory=Environment)
    container: Container | None = None
    data: Data | None = None
    sync: Sync | None = None
    limit: Limit = field(default_factory=Limit)
    launch: Launch = Launch("agent")  # noqa: RUF009 - it never changes
    script: UserScript | None = None
    """In place of ranks; `command` is then the script's path as the user wrote it, and its arguments."""
    notify: Notify | None = None
    track: Track | None = None
    metric: ReportedMetric | None = None
    sampling: Sampling = Sampling()  # noqa: RUF009 - it never changes
    report: ReportSettings = ReportSettings()  # noqa: RUF009 - it never changes
    beside: tuple[SideCommand, ...] = ()
    array: Array | None = None
    sweep: Sweep | None = None
    resume: Resume | None = None
    after: tuple[After, ...] = ()
    """Dependencies: runs that must end first."""
    smoke: int = 0
    """The number of steps of a smoke test, after which a training saves, loads and exits; 0 for other runs."""
    rerun_of: str | None = None
    """The run or the task whose plan this run repeats."""
    defaults: tuple[str, ...] = ()
    """Keys (`resources.cpus`) that have a default of Serried or of the cluster."""
    share: str = "user"
    """`user` (0700/0600) or `group` (0750/0640)."""
    schema: int = SCHEMA

    @property
    def directory(self) -> str:
        """The run directory, absolute."""
        return run_directory(self.site.root, self.project, self.experiment, self.run)

    @property
    def submitted_from(self) -> str:
        """The folder that a job script takes for the one it was submitted from: in a snapshot, the copy's."""
        folder = self.script.folder if self.script else self.source.directory
        inside = os.path.relpath(folder, self.source.directory)
        return os.path.normpath(f"{self.directory}/source/{inside}") if self.source.snapshot else folder

    @property
    def private(self) -> str:
        """The folder for the job's environment, if the scheduler would show it to other users; absolute."""
        return self.site.private or str(RunDirectory(Path(self.directory)).private)

    @property
    def world_size(self) -> int:
        """The number of ranks; 1 for a script."""
        return 1 if self.script else self.allocation.nodes * self.allocation.ranks

    @property
    def has_all_cpus(self) -> bool:
        """Its ranks share all CPUs of each node: the nodes are exclusive, and the user requested no number of CPUs."""
        return self.allocation.exclusive and "resources.cpus" in self.defaults

    @property
    def lead_seconds(self) -> int:
        """The time from the stop notice to the time limit; 0 without a limit."""
        return 0 if self.allocation.time_seconds is None else self.limit.lead_seconds

    @property
    def useful_seconds(self) -> int | None:
        """The time after which ranks receive the stop notice; None without a limit."""
        limit = self.allocation.time_seconds
        if limit is None:
            return None
        copies_back = self.sync is not None or bool(self.data and self.data.results)
        return limit - self.limit.lead_seconds - (min(names.COPY_BACK_SECONDS, limit // 20) if copies_back else 0)

    @property
    def may_requeue(self) -> bool:
        """The scheduler may run the job itself again."""
        return self.limit.restarts > 0 and self.limit.form == names.REQUEUE

    @property
    def has_links(self) -> bool:
        """Further attempts are further jobs."""
        return self.limit.restarts > 0 and self.limit.form != names.REQUEUE

    @property
    def draws(self) -> bool:
        """A job of the array runs further trials after its own."""
        return self.array is not None and self.array.draws

    @property
    def is_in_parts(self) -> bool:
        """The array is several jobs."""
        return self.array is not None and len(self.array.offsets) > 1

    @property
    def tokens(self) -> list[str]:
        """The tokens of its jobs."""
        return tokens_of(token_of(self.run, None, 1), self.array.offsets if self.array else ())

    def part(self, number: int) -> Plan:
        """The plan of one of those jobs: its tasks, with the scheduler's indices."""
        if self.array is None or not self.array.offsets:
            return self
        offsets = self.array.offsets
        own = tuple(task - offsets[number] for task in self.array.indices if part_of(offsets, task) == number)
        return dataclasses.replace(self, array=self.array._replace(indices=own))

    def to_json(self) -> dict[str, Any]:
        return {f.name: _plain(getattr(self, f.name)) for f in dataclasses.fields(self)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Plan:
        """The plan that `to_json` wrote.

        Raises ValueError on a later one, and as `built` on values of other types.
        """
        if value.get("schema") != SCHEMA:
            raise ValueError(f"this plan has schema {value.get('schema')}; this Serried reads {SCHEMA}")
        return typing.cast("Plan", built(cls, value))


def _plain(value: Any) -> Any:
    """A part of a plan as JSON: an object with the names of its fields."""
    if not isinstance(value, tuple):
        return value
    items = map(_plain, value)
    return dict(zip(value._fields, items, strict=True)) if hasattr(value, "_fields") else tuple(items)


_hints = functools.cache(typing.get_type_hints)


def built(kind: Any, value: Any) -> Any:
    """Turn `value`, read from JSON, into an instance of `kind`. Unknown keys, of a later minor version, are dropped.

    Raises TypeError for a value of another type, AttributeError for one that is no object, and ValueError for a text
    with a NUL: a failing disk may have written anything.
    """
    if isinstance(kind, types.UnionType):
        if value is None:
            return None
        choices = [choice for choice in typing.get_args(kind) if choice is not type(None)]
        tuples = [choice for choice in choices if typing.get_origin(choice) is tuple]
        return built(tuples[0] if tuples and isinstance(value, list) else choices[0], value)
    if dataclasses.is_dataclass(kind) or hasattr(kind, "_fields"):
        return kind(**{name: built(hint, value[name]) for name, hint in _hints(kind).items() if name in value})
    origin = typing.get_origin(kind) or kind
    expected = {tuple: (list, tuple), float: (int, float)}.get(origin, origin)
    if origin is not Any and not isinstance(value, expected):
        raise TypeError(f"{value!r:.40} is not {kind}")
    if isinstance(value, str) and "\0" in value:
        raise ValueError(f"{value!r:.40} has a NUL")
    if origin is tuple:
        inner = typing.get_args(kind)[0]
        return tuple(built(inner, item) for item in value)
    return value
