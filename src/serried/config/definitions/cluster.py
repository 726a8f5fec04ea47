"""What a cluster's profile may say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from serried.config import values
from serried.config.definitions.key import key
from serried.config.values import Kind


@dataclass(frozen=True)
class Partition:
    time: int | None = key(values.DURATION, "Longest time limit.")
    nodes: int | None = key(values.COUNT, "Most nodes.")
    gpus: int | None = key(values.COUNT_OR_NONE, "GPUs on each node.")


@dataclass(frozen=True)
class Match:
    hostname: tuple[str, ...] = key(values.TEXTS, "Patterns (`*`) for the host's name.", value=())
    environ: Mapping[str, str] = key(values.PATTERNS, "Variables and patterns (`*`) for their values.", value={})


@dataclass(frozen=True)
class Cluster:
    name: str
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
    kill_wait: int = key(values.DURATION, "From the scheduler's TERM to its KILL.", default="30s", value=30)
    hides_gpus: bool | None = key(
        values.BOOLEAN,
        "Whether PBS hides the GPUs of other jobs, as its cgroup hook does. Else jobs with GPUs take whole nodes.",
        default="false",
    )
    private: str = key(
        values.TEXT,
        "Where the environment of a job goes, in a file that only you can read, on a scheduler that shows "
        "variables to everybody (PBS). Compute nodes must see it. May name variables.",
        default="`~/.local/state/serried/private` on `pbs`",
        value="",
    )
    local_disk: str | None = key(values.TEXT, "Scratch on each node. May name the node's variables.")
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
