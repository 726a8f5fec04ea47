"""What a cluster's profile may say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from serried.config import values
from serried.config.definitions.experiment import Limit, Resources
from serried.config.definitions.key import key, keys
from serried.config.values import BadValue, Kind, data
from serried.errors import did_you_mean


def resource_keys(value: Any) -> tuple[str, ...]:
    """Keys of the table `resources`."""
    names = values.texts(value)
    for name in names:
        if name not in keys(Resources):
            raise BadValue(f"must be keys of `resources`, not `{name}`", did_you_mean(name, keys(Resources)))
    return names


def continuing(value: Any) -> tuple[str, ...]:
    """Values of `limit.continue`."""
    return tuple(keys(Limit)["continue"].kind.parse(word) for word in values.texts(value))


@dataclass(frozen=True)
class Partition:
    time: int | None = key(values.DURATION, "Longest time limit.")
    nodes: int | None = key(values.COUNT, "Most nodes of a job.")
    gpus: int | None = key(values.COUNT_OR_NONE, "GPUs on each node.")
    total_gpus: int | None = key(values.COUNT_OR_NONE, "Most GPUs of a job, over all its nodes.")
    cpus: int | None = key(values.COUNT, "CPUs on each node.")
    mem: int | None = key(values.MEMORY_PART, "Memory on each node.")
    jobs: int | None = key(values.COUNT, "How many jobs of one user run at a time.")


@dataclass(frozen=True)
class Gpu:
    """A rule of thumb."""

    cpus: int | None = key(values.COUNT, "CPUs that go with one, where a job does not say.")
    mem: int | None = key(values.MEMORY_PART, "Memory that goes with one, where a job does not say.")


@dataclass(frozen=True)
class Match:
    hostname: tuple[str, ...] = key(values.TEXTS, "Patterns (`*`) for the host's name.", value=())
    environ: Mapping[str, str] = key(values.PATTERNS, "Variables and patterns (`*`) for their values.", value={})


@dataclass(frozen=True)
class Cluster:
    name: str
    title: str | None = key(values.TEXT, "What it is, in a line.")
    docs: str | None = key(values.TEXT, "Where its documentation is; errors about limits and accounts quote it.")
    contact: str | None = key(values.TEXT, "Whom to ask; the same errors quote it.")
    login: str | None = key(values.TEXT, "The host to log in to.")
    notes: tuple[str, ...] = key(values.TEXTS, "What else one should know there.", value=())
    scheduler: str = key(
        Kind("`slurm`, `pbs` or `local`", values.choice("slurm", "pbs", "local")),
        "Who runs the jobs.",
        default="`slurm`",
        value="slurm",
    )
    root: str = key(
        values.TEXT,
        "Where run directories go. May name variables.",
        default="`$SCRATCH/serried`, `$PSCRATCH/serried`, `/scratch/$USER/serried` or `$HOME/serried`; "
        "`$XDG_DATA_HOME/serried` on `local`",
        value="",
    )
    python: str | None = key(values.TEXT, "Python 3.9 or later that runs the agent.", default="found on the node")
    gpu_option: str = key(
        Kind("`gres` or `gpus-per-node`", values.choice("gres", "gpus-per-node")),
        "How GPUs are asked of Slurm.",
        default="`gres`",
        value="gres",
    )
    modules: tuple[str, ...] = key(
        values.TEXTS, "What people load there. It is for people: `environment.modules` is what a job loads.", value=()
    )
    gpu_resource: str = key(
        values.TEXT,
        "What PBS calls the type of a GPU there: `gpu_type` of a job becomes this in its chunks.",
        default="`gpu_type`",
        value="gpu_type",
    )
    needs_account: bool | None = key(values.BOOLEAN, "Whether a job must name the account that pays.", default="false")
    accounts: tuple[str, ...] = key(values.TEXTS, "What accounts look like there: `def-*`.", value=())
    ignores: tuple[str, ...] = key(
        Kind("list of keys of `resources`", resource_keys, many=True, show=values.TEXTS.show),
        "What the cluster has no notion of. It is left out of what is asked there, with a note.",
        value=(),
    )
    continues: tuple[str, ...] = key(
        Kind("list of `requeue`, `successor` and `prequeued`", continuing, many=True, show=values.TEXTS.show),
        "How runs may go on there: what `limit.continue` may be. The first is the default.",
        default="all three",
        value=(),
    )
    kill_wait: int = key(values.DURATION, "From the scheduler's TERM to its KILL.", default="30s", value=30)
    hides_gpus: bool | None = key(
        values.BOOLEAN,
        "Whether PBS hides the GPUs of other jobs, as its cgroup hook does. Else jobs with GPUs take whole nodes.",
        default="false",
    )
    node_option: str = key(
        Kind("`select` or `nodes`", values.choice("select", "nodes")),
        "How nodes are asked of PBS: `select=2:ncpus=8:…`, or, where a site's rules know that alone, the old "
        "`nodes=2:ppn=8`, which has no word for GPUs.",
        default="`select`",
        value="select",
    )
    launcher: str = key(
        values.TEXT,
        "What starts an agent on each node of a PBS job: `pbsdsh`, `pbs_tmrsh`, or the site's MPI as a line of bash, "
        "`mpiexec -n {nodes} -ppn 1`. `{nodes}`, `{ranks}` and `{gpus}` are filled in.",
        default="`pbsdsh` on `pbs`; `pbs_tmrsh` with `nodes`",
        value="",
    )
    private: str = key(
        values.TEXT,
        "Where the environment of a job goes, in a file that only you can read, on a scheduler that shows "
        "variables to everybody (PBS). Compute nodes must see it. May name variables.",
        default="`private/` in the run directory",
        value="",
    )
    build: str = key(
        Kind("`here`, `job` or `gpu-job`", values.choice("here", "job", "gpu-job")),
        "Where environments are built: on this machine, or in a job, where compilers or `nvcc` may be.",
        default="`here`",
        value="here",
    )
    local_disk: str | None = key(values.TEXT, "Scratch on each node. May name the node's variables.")
    local_disk_stays: bool | None = key(
        values.BOOLEAN, "Whether what a job leaves there stays until somebody removes it.", default="false"
    )
    local_disk_size: int | None = key(data.SIZE, "How much a job may put there.", default="not checked")
    local_disk_files: int | None = key(values.COUNT, "How many files a job may put there.", default="not checked")
    scratch: str = key(
        values.TEXT,
        "Where users keep data that compute nodes see. May name variables.",
        default="`$SCRATCH`, `$PSCRATCH` or `/scratch/$USER`",
        value="",
    )
    data_cache: int = key(
        data.SIZE_OR_NONE,
        "How much staged data may stay on a node's disk when no job uses it; what was unused longest goes first.",
        default="none",
        value=0,
    )
    data_transfer: str = key(
        data.TRANSFER,
        "How staged data comes to several nodes: read once and passed on from node to node, or read by each.",
        default="`chain`",
        value="chain",
    )
    gpus_per_node: int | None = key(values.COUNT_OR_NONE, "Most GPUs on one node.", default="asked of the cluster")
    cpus_per_node: int | None = key(values.COUNT, "Most CPUs on one node.", default="not checked")
    gpu_types: tuple[str, ...] = key(values.TEXTS, "Types of GPUs there are.", default="not checked", value=())
    default_partition: str | None = key(
        values.TEXT, "Where jobs go that name no partition.", default="asked of the cluster"
    )
    max_time: int | None = key(values.DURATION, "Longest time limit anywhere.", default="not checked")
    match: Match = field(default_factory=Match)
    """How it is recognised."""
    partitions: Mapping[str, Partition] = field(default_factory=dict)
    knows_partitions: bool = True
    """Whether there are no others: a profile that Serried ships describes some, the scheduler all."""
    gpus: Mapping[str, Gpu] = field(default_factory=dict)
    """By type."""
    sources: Mapping[str, str] = key(
        Kind("table of texts", values.text, names=True, nested=True),
        "Where a value of the profile comes from, by its key: `resources.cpus`; a table's stands for all in it.",
        value={},
    )

    def source(self, key: str) -> str | None:
        """Where the value at `key` (`resources.cpus`), or a table around it, comes from, if the profile says so."""
        while key and key not in self.sources:
            key = key.rpartition(".")[0]
        return self.sources.get(key)
