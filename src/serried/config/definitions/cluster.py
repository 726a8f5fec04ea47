"""The settings of a cluster's profile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from serried import schedulers
from serried.config import values
from serried.config.definitions.experiment import Resources
from serried.config.definitions.key import key, keys
from serried.config.values import BadValue, Kind, data
from serried.errors import did_you_mean

_NAMED = " or ".join(", ".join(f"`{name}`" for name in schedulers.NAMES).rsplit(", ", 1))


def resource_keys(value: Any) -> tuple[str, ...]:
    """Keys of the table `resources`."""
    names = values.texts(value)
    for name in names:
        if name not in keys(Resources):
            raise BadValue(f"must be keys of `resources`, not `{name}`", did_you_mean(name, keys(Resources)))
    return names


def continuing(value: Any) -> tuple[str, ...]:
    """Values of `limit.continue`."""
    return tuple(values.FORM.parse(word) for word in values.texts(value))


@dataclass(frozen=True)
class Partition:
    time: int | None = key(values.DURATION, "Longest time limit.")
    nodes: int | None = key(values.COUNT, "Most nodes of a job.")
    gpus: int | None = key(values.COUNT_OR_NONE, "GPUs on each node.")
    total_gpus: int | None = key(values.COUNT_OR_NONE, "Most GPUs of a job, over all its nodes.")
    cpus: int | None = key(values.COUNT, "CPUs on each node.")
    mem: int | None = key(values.MEMORY_PART, "Memory on each node.")
    jobs: int | None = key(values.COUNT, "Most running jobs of one user.")


@dataclass(frozen=True)
class Gpu:
    """A rule of thumb."""

    cpus: int | None = key(values.COUNT, "CPUs per GPU, unless the job sets them.")
    mem: int | None = key(values.MEMORY_PART, "Memory per GPU, unless the job sets it.")


@dataclass(frozen=True)
class Match:
    hostname: tuple[str, ...] = key(values.TEXTS, "Patterns (`*`) for the host's name.", value=())
    environ: Mapping[str, str] = key(values.PATTERNS, "Variables and patterns (`*`) for their values.", value={})


@dataclass(frozen=True)
class Cluster:
    name: str
    title: str | None = key(values.TEXT, "A description in one line.")
    docs: str | None = key(values.TEXT, "Address of its documentation, printed in errors about limits and accounts.")
    contact: str | None = key(values.TEXT, "Address for questions, printed in the same errors.")
    login: str | None = key(values.TEXT, "Login host.")
    notes: tuple[str, ...] = key(values.TEXTS, "Further facts for users.", value=())
    scheduler: str = key(
        Kind(_NAMED, values.choice(*schedulers.NAMES)),
        "The scheduler.",
        default=f"`{schedulers.DEFAULT}`",
        value=schedulers.DEFAULT,
    )
    root: str = key(
        values.TEXT,
        "Folder of run directories. May contain variables.",
        default="`$SCRATCH/serried`, `$PSCRATCH/serried`, `/scratch/$USER/serried` or `$HOME/serried`; "
        "`$XDG_DATA_HOME/serried` on `local`",
        value="",
    )
    python: str | None = key(values.TEXT, "Python 3.9 or later for the agent.", default="one on the node")
    gpu_option: str = key(
        Kind("`gres` or `gpus-per-node`", values.choice("gres", "gpus-per-node")),
        "Slurm's option to request GPUs.",
        default="`gres`",
        value="gres",
    )
    modules: tuple[str, ...] = key(
        values.TEXTS, "Modules that users load; for information. `environment.modules` loads modules in jobs.", value=()
    )
    gpu_resource: str = key(
        values.TEXT,
        "The site's PBS resource for the type of a GPU, used for `gpu_type`.",
        default="`gpu_type`",
        value="gpu_type",
    )
    needs_account: bool | None = key(values.BOOLEAN, "A job must name an account.", default="false")
    accounts: tuple[str, ...] = key(values.TEXTS, "Patterns of account names: `def-*`.", value=())
    ignores: tuple[str, ...] = key(
        Kind("list of keys of `resources`", resource_keys, many=True, show=values.TEXTS.show),
        "Resources that this cluster does not support. They are left out of requests, with a note.",
        value=(),
    )
    continues: tuple[str, ...] = key(
        Kind("list of `requeue`, `successor` and `prequeued`", continuing, many=True, show=values.TEXTS.show),
        "Allowed values of `limit.continue`. The first is the default.",
        default="all three",
        value=(),
    )
    kill_wait: int = key(values.DURATION, "Time between the scheduler's TERM and KILL.", default="30s", value=30)
    hides_gpus: bool | None = key(
        values.BOOLEAN,
        "PBS hides the GPUs of other jobs, by its cgroup hook. Otherwise jobs with GPUs take whole nodes.",
        default="false",
    )
    node_option: str = key(
        Kind("`select` or `nodes`", values.choice("select", "nodes")),
        "PBS's form to request nodes: `select=2:ncpus=8:…`, or the old `nodes=2:ppn=8`, which cannot request GPUs.",
        default="`select`",
        value="select",
    )
    launcher: str = key(
        values.TEXT,
        "Starts the agents of a PBS job: `pbsdsh`, `pbs_tmrsh` or a line of bash. See [PBS](pbs.md#how-agents-start).",
        default="`pbsdsh` on `pbs`; `pbs_tmrsh` with `nodes`",
        value="",
    )
    private: str = key(
        values.TEXT,
        "Folder for a file with the job's environment that only you can read (PBS). Compute nodes must see it.",
        default="`private/` in the run directory",
        value="",
    )
    build: str = key(
        Kind("`here`, `job` or `gpu-job`", values.choice("here", "job", "gpu-job")),
        "Place to build environments: on this machine, or in a job with its compilers or `nvcc`.",
        default="`here`",
        value="here",
    )
    local_disk: str | None = key(values.TEXT, "Scratch folder on each node. May contain the node's variables.")
    local_disk_stays: bool | None = key(
        values.BOOLEAN, "Files that a job leaves there stay until they are deleted.", default="false"
    )
    local_disk_size: int | None = key(data.SIZE, "Most data of a job there.", default="not checked")
    local_disk_files: int | None = key(values.COUNT, "Most files of a job there.", default="not checked")
    scratch: str = key(
        values.TEXT,
        "Folder for users' data that compute nodes see. May contain variables.",
        default="`$SCRATCH`, `$PSCRATCH` or `/scratch/$USER`",
        value="",
    )
    data_cache: int = key(
        data.SIZE_OR_NONE,
        "Most staged data that stays on a node's disk for later jobs.",
        default="none",
        value=0,
    )
    data_transfer: str = key(
        data.TRANSFER,
        "Way of staged data to several nodes: read once and passed on, or read by each node.",
        default="`chain`",
        value="chain",
    )
    gpus_per_node: int | None = key(values.COUNT_OR_NONE, "Most GPUs on one node.", default="queried from the cluster")
    cpus_per_node: int | None = key(values.COUNT, "Most CPUs on one node.", default="not checked")
    gpu_types: tuple[str, ...] = key(values.TEXTS, "Types of GPUs.", default="not checked", value=())
    default_partition: str | None = key(
        values.TEXT, "Partition of jobs that name none.", default="queried from the cluster"
    )
    max_time: int | None = key(values.DURATION, "Longest time limit of all partitions.", default="not checked")
    match: Match = field(default_factory=Match)
    """How Serried recognises the cluster."""
    partitions: Mapping[str, Partition] = field(default_factory=dict)
    knows_partitions: bool = True
    """The list is complete: a shipped profile describes some partitions, the scheduler all."""
    gpus: Mapping[str, Gpu] = field(default_factory=dict)
    """By type."""
    sources: Mapping[str, str] = key(
        Kind("table of texts", values.text, names=True, nested=True),
        "Sources of the profile's values, by key: `resources.cpus`. The source of a table covers all its keys.",
        value={},
    )

    def source(self, key: str) -> str | None:
        """The source of the value at `key` (`resources.cpus`) or of a table around it, or None."""
        while key and key not in self.sources:
            key = key.rpartition(".")[0]
        return self.sources.get(key)
