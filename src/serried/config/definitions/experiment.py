"""The settings of an experiment and its project."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from serried.config import values
from serried.config.definitions.data import Data
from serried.config.definitions.environment import Environment
from serried.config.definitions.key import key
from serried.config.values import Kind
from serried.plan import Container, Launch, Limit, Notify, Sync


@dataclass(frozen=True)
class Resources:
    nodes: int | None = key(values.COUNT, "Number of nodes.", default="1")
    gpus: int | None = key(
        values.COUNT_OR_NONE, "GPUs per node.", default="1 on clusters with GPUs; 0 with `ranks` alone"
    )
    gpu_type: str | None = key(values.TEXT, "Type of GPU, in the cluster's words.", default="any")
    ranks: int | None = key(values.COUNT, "Ranks (processes) per node.", default="one per GPU, else 1")
    cpus: int | None = key(values.COUNT, "CPUs per GPU; per rank without GPUs.", default="2")
    mem: int | None = key(values.MEMORY, "Memory per GPU (per rank without GPUs), or `all`.", default="10G")
    mem_per_node: int | None = key(values.MEMORY, "Memory per node, instead of `mem`.")
    mem_per_cpu: int | None = key(values.MEMORY_PART, "Memory per CPU, instead of `mem`.")
    time: int | None = key(values.DURATION, "Time limit.", default="1h; none on `local`")
    account: str | None = key(values.TEXT, "Account to charge.", default="`SBATCH_ACCOUNT`, else the cluster's choice")
    partition: str | None = key(
        values.TEXT,
        "Partition. `queue` is another name.",
        default="`SBATCH_PARTITION`, else the cluster's choice",
        alias="queue",
    )
    qos: str | None = key(values.TEXT, "Quality of service.", default="`SBATCH_QOS`, else the cluster's choice")
    reservation: str | None = key(values.TEXT, "Reservation.", default="`SBATCH_RESERVATION`, else none")
    constraint: tuple[str, ...] = key(values.TEXTS, "Features that every node must have.", value=())
    exclusive: bool | None = key(values.BOOLEAN, "Reserve whole nodes, with all their memory.", default="false")
    licenses: tuple[str, ...] = key(values.COMMA_TEXTS, "Licences, `name:count`.", value=())
    comment: str | None = key(values.TEXT, "Comment for the scheduler's records.")
    mail_user: str | None = key(values.TEXT, "Address for the scheduler's mail.")
    mail_type: tuple[str, ...] = key(
        values.COMMA_TEXTS, "Events of the scheduler's mail: `END`, `FAIL`, `ALL` …", value=()
    )
    extra: tuple[str, ...] = key(values.TEXTS, "Further options of the scheduler.", value=())


@dataclass(frozen=True)
class Experiment:
    name: str
    command: tuple[str, ...] = key(
        values.COMMAND, "Command of each rank: a list of words, or text that is split like a shell command.", value=()
    )
    shell: bool = key(values.BOOLEAN, "Run `command` in bash.", default="false", value=False)
    seed: int = key(
        values.COUNT_OR_NONE,
        "Value of `{seed}`. A task of an array adds its index, or the number of its repeat.",
        default="0",
        value=0,
    )
    debug: bool = key(values.BOOLEAN, "Let NCCL and torch.distributed log more.", default="false", value=False)
    workdir: str = key(
        values.TEXT, "Folder where ranks start, relative to the project.", default="the project's folder", value="."
    )
    ranks_meet: bool = key(
        values.BOOLEAN,
        "Warn if several ranks never connect to one another; set to false for independent ranks.",
        default="true",
        value=True,
    )
    after: tuple[str, ...] = key(
        values.TEXTS,
        "Experiments that this one depends on: `prepare`, or `prepare:any`. See [chains](chains.md#after-other-runs).",
        value=(),
    )
    cluster: str | None = key(values.TEXT, "Cluster for `serried submit`.", default="the cluster recognised")
    config: Mapping[str, Any] = key(
        values.SETTINGS,
        "Settings of the training: `lr = 0.1`, `model.width = 64`. Merged by name.",
        value={},
    )
    """By dotted name."""
    resources: Resources = Resources()
    environment: Environment = field(default_factory=Environment)
    limit: Limit = field(default_factory=Limit)
    notify: Notify = field(default_factory=Notify)
    launch: Launch = field(default_factory=Launch)
    container: Container = field(default_factory=Container)
    data: Data = field(default_factory=Data)
    checkpoint: Sync = field(default_factory=Sync)


@dataclass(frozen=True)
class Project:
    directory: str
    """Absolute."""
    file: str | None
    """The file that describes the project, or None."""
    name: str = key(values.NAME, "Name of the project.", default="its folder's name", value="")
    link: tuple[str, ...] = key(
        values.TEXTS,
        "Entries that the snapshot links instead of copying (`data`), or does not link (`!outputs`).",
        default="top-level entries that git ignores",
        value=(),
    )
    snapshot: bool = key(
        values.BOOLEAN,
        "Run a copy of the code as of submit; false runs the project itself.",
        default="true",
        value=True,
    )
    share: str = key(
        Kind("`user` or `group`", values.choice("user", "group")),
        "Readers of a run's files.",
        default="`user`",
        value="user",
    )
