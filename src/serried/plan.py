"""The plan: one experiment on one cluster with nothing left to decide. Immutable, JSON, printable."""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from serried.contract import SCHEMA, names
from serried.contract.layout import run_directory
from serried.errors import UsageError
from serried.resources import Allocation, allocate, left_out

if TYPE_CHECKING:
    from serried import config

MOST_CONFIG = 100_000
"""Linux refuses a variable of 128 KiB, its name and what a sweep adds included."""

__all__ = ["Allocation", "Array", "Environment", "Limit", "Plan", "Site", "Source", "plan"]


@dataclass(frozen=True)
class Environment:
    """What ranks inherit. Values of secrets are never here, only their names."""

    env: Mapping[str, str] = field(default_factory=dict)
    secrets: tuple[str, ...] = ()
    env_file: tuple[str, ...] = ()
    """Names that the env_file defines; their values travel like secrets."""
    inherit: str | tuple[str, ...] = "all"
    """`all`, `none`, or the names to take from the submitting shell."""
    env_file_path: str | None = None
    """Absolute."""


@dataclass(frozen=True)
class Limit:
    lead_seconds: int = 60
    """How long before the time limit ranks are told."""
    grace_seconds: int = 30
    """Between TERM and KILL."""
    silence_seconds: int | None = None
    """No output from any rank for so long is a failure; None is off."""
    restarts: int = 0
    """How many further attempts the run may have."""
    form: str = names.REQUEUE
    """How the next one comes about: `requeue`, `successor` or `prequeued`."""
    notify: str | None = None
    """A signal that goes to ranks with the request to save and leave, `USR1` say; None sends nothing."""


@dataclass(frozen=True)
class Source:
    """What code the ranks run."""

    directory: str
    """The project's folder on the submitting side, absolute."""
    workdir: str = "."
    """Where ranks start, relative to the project's folder."""
    snapshot: bool = True
    """False: run in `directory` itself."""
    archive: str | None = None
    """Path of the tar to unpack."""
    links: tuple[str, ...] = ()
    """Top-level entries of the project that the unpacked tree links to."""
    python_path: tuple[str, ...] = ()
    """Folders (relative to the tree) put before PYTHONPATH: editable installs redirected to the snapshot."""


@dataclass(frozen=True)
class Array:
    indices: tuple[int, ...]
    parallel: int | None = None
    """How many elements may run at once; None leaves it to the scheduler."""
    each: bool = False
    """True: element I runs line I of commands.json; False: all run the plan's command."""


@dataclass(frozen=True)
class Resume:
    """What a run begins from, where it has no checkpoint of its own yet."""

    checkpoints: tuple[str, ...]
    """Absolute paths: one for each element of the array in its order, or one for all; empty for one without."""
    run: str | None = None
    """The run, or the element (`k3f9q2/17`), whose they are."""

    def __str__(self) -> str:
        if len(self.checkpoints) > 1:
            return f"{self.run}, each element from its own"
        path = self.checkpoints[0]
        return f"{self.run}, {path.rpartition('/')[2]}" if self.run else path


@dataclass(frozen=True)
class Site:
    """What the script and the agent must know about the cluster."""

    name: str
    scheduler: str
    root: str
    """Where run directories go, absolute."""
    python: str | None = None
    """Runs the agent on compute nodes; None looks for python3 there."""
    gpu_option: str = "gres"
    """`gres` or `gpus-per-node`."""
    kill_wait_seconds: int = 30
    """Between the scheduler's TERM and its KILL."""
    local_disk: str | None = None
    """Node-local scratch; may name environment variables of the node."""
    hides_gpus: bool = False
    """Whether PBS lets a job see none but its own GPUs."""
    private: str = ""
    """Where a job's environment goes in files that only its user can read, on schedulers that show it; absolute."""


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
    """The program and its arguments, placeholders unfilled; with `shell` one element, a line for bash."""
    site: Site
    allocation: Allocation
    source: Source
    shell: bool = False
    seed: int = 0
    debug: bool = False
    """Ranks get the switches that let NCCL and torch.distributed say what they do."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """What the training is told, by dotted name; `serried.train.config` and `{config.NAME}` have it."""
    environment: Environment = field(default_factory=Environment)
    limit: Limit = field(default_factory=Limit)
    array: Array | None = None
    resume: Resume | None = None
    smoke: int = 0
    """A smoke test: after how many steps a training saves, loads and leaves; 0 is none."""
    rerun_of: str | None = None
    """The run, or the element, whose plan this is too."""
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
    def world_size(self) -> int:
        return self.allocation.nodes * self.allocation.ranks

    @property
    def lead_seconds(self) -> int:
        """How long before the time limit the job is warned; 0 is never."""
        return 0 if self.allocation.time_seconds is None else self.limit.lead_seconds

    @property
    def may_requeue(self) -> bool:
        """Whether the job itself may run again."""
        return self.limit.restarts > 0 and self.limit.form == names.REQUEUE

    @property
    def has_links(self) -> bool:
        """Whether further attempts are further jobs."""
        return self.limit.restarts > 0 and self.limit.form != names.REQUEUE

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Plan:
        """The plan that `to_json` wrote, of this or an earlier schema. Raises ValueError on a later one."""
        if value.get("schema", 0) > SCHEMA:
            raise ValueError(f"this plan has schema {value['schema']}; this Serried reads up to {SCHEMA}")
        return typing.cast("Plan", _build(cls, value))


def _build(kind: Any, value: Any) -> Any:
    """Make `value`, read from JSON, an instance of `kind`. Unknown keys (a later minor version's) are dropped."""
    if isinstance(kind, types.UnionType):
        if value is None:
            return None
        choices = [choice for choice in typing.get_args(kind) if choice is not type(None)]
        tuples = [choice for choice in choices if typing.get_origin(choice) is tuple]
        return _build(tuples[0] if tuples and isinstance(value, list) else choices[0], value)
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        known = {f.name: _build(hints[f.name], value[f.name]) for f in dataclasses.fields(kind) if f.name in value}
        return typing.cast("Any", kind)(**known)
    if typing.get_origin(kind) is tuple:
        return tuple(value)
    return value


def plan(
    resolved: config.Resolved, *, run_id: str, created: str, array: Array | None = None, name: str | None = None
) -> Plan:
    """Decide all that is left to decide. Pure: the snapshot fills in `source` afterwards.

    Raises UsageError where the request cannot be met on this cluster.
    """
    project, experiment, cluster = resolved.project, resolved.experiment, resolved.cluster
    allocation = allocate(experiment.resources, cluster)
    return Plan(
        run=run_id,
        name=name or experiment.name,
        project=project.name,
        experiment=experiment.name,
        created=created,
        command=experiment.command,
        shell=experiment.shell,
        seed=experiment.seed,
        debug=experiment.debug,
        config=_config(experiment.config),
        site=_site(cluster),
        allocation=allocation,
        source=Source(project.directory, experiment.workdir, project.snapshot),
        environment=Environment(
            experiment.environment.env,
            experiment.environment.secrets,
            experiment.environment.env_file_names,
            experiment.environment.inherit,
            experiment.environment.env_file,
        ),
        limit=_limit(experiment.limit, allocation.time_seconds),
        array=array,
        defaults=_defaults(resolved, left_out(experiment.resources)),
        share=project.share,
    )


def _config(told: Mapping[str, Any]) -> Mapping[str, Any]:
    size = len(json.dumps(told))
    if size > MOST_CONFIG:
        raise UsageError(
            f"`config` is {size:,} bytes of JSON, and a variable holds {MOST_CONFIG:,}",
            hint="put the long values into a file of the project and name that",
        )
    return dict(told)


def _site(cluster: config.Cluster) -> Site:
    return Site(
        name=cluster.name,
        scheduler=cluster.scheduler,
        root=cluster.root,
        python=cluster.python,
        gpu_option=cluster.gpu_option,
        kill_wait_seconds=cluster.kill_wait,
        local_disk=cluster.local_disk,
        hides_gpus=bool(cluster.hides_gpus),
        private=cluster.private,
    )


def _limit(asked: config.Limit, time_seconds: int | None) -> Limit:
    """The lead is at most a quarter of the time limit: a longer one would warn at birth."""
    lead = asked.lead if time_seconds is None else min(asked.lead, time_seconds // 4)
    return Limit(
        lead_seconds=lead,
        grace_seconds=asked.grace,
        silence_seconds=asked.silence,
        restarts=asked.restarts,
        form=asked.continue_,
        notify=asked.notify,
    )


def _defaults(resolved: config.Resolved, left_out: tuple[str, ...]) -> tuple[str, ...]:
    """Keys that nobody set, in the order of their definition."""
    profile = [key for key, origin in resolved.origins.items() if origin.is_default and key.startswith("resources.")]
    return tuple(dict.fromkeys([*left_out, *profile]))
