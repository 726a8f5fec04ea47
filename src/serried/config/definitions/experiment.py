"""What an experiment and its project may say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from serried.config import values
from serried.config.definitions.container import Container
from serried.config.definitions.data import Checkpoint, Data
from serried.config.definitions.environment import Environment
from serried.config.definitions.key import key
from serried.config.values import Kind
from serried.config.values import notify as notices


@dataclass(frozen=True)
class Resources:
    nodes: int | None = key(values.COUNT, "How many nodes.", default="1")
    gpus: int | None = key(
        values.COUNT_OR_NONE, "GPUs on each node.", default="1 where there are GPUs; 0 when only `ranks` is given"
    )
    gpu_type: str | None = key(values.TEXT, "Which GPUs, as the cluster calls them.", default="any")
    ranks: int | None = key(values.COUNT, "Ranks (processes) on each node.", default="one per GPU, else 1")
    cpus: int | None = key(values.COUNT, "CPUs per GPU; per rank without GPUs.", default="2")
    mem: int | None = key(values.MEMORY, "Memory per GPU (per rank without GPUs), or `all`.", default="10G")
    mem_per_node: int | None = key(values.MEMORY, "Memory on each node, instead of `mem`.")
    mem_per_cpu: int | None = key(values.MEMORY_PART, "Memory per CPU, instead of `mem`.")
    time: int | None = key(values.DURATION, "Time limit.", default="1h; none on `local`")
    account: str | None = key(values.TEXT, "Account that pays.", default="`SBATCH_ACCOUNT`, else the cluster's choice")
    partition: str | None = key(
        values.TEXT,
        "Partition. `queue` says the same.",
        default="`SBATCH_PARTITION`, else the cluster's choice",
        alias="queue",
    )
    qos: str | None = key(values.TEXT, "Quality of service.", default="`SBATCH_QOS`, else the cluster's choice")
    reservation: str | None = key(values.TEXT, "Reservation.", default="`SBATCH_RESERVATION`, else none")
    constraint: tuple[str, ...] = key(values.TEXTS, "Features that nodes must have, all of them.", value=())
    exclusive: bool | None = key(values.BOOLEAN, "Share the nodes with nobody; all memory then.", default="false")
    licenses: tuple[str, ...] = key(values.COMMA_TEXTS, "Licences, `name:count`.", value=())
    comment: str | None = key(values.TEXT, "A comment that the scheduler keeps.")
    mail_user: str | None = key(values.TEXT, "Where the scheduler sends mail.")
    mail_type: tuple[str, ...] = key(values.COMMA_TEXTS, "When it sends mail: `END`, `FAIL`, `ALL` …", value=())
    extra: tuple[str, ...] = key(values.TEXTS, "Further options for the scheduler, as they are.", value=())


@dataclass(frozen=True)
class Limit:
    lead: int = key(
        values.DURATION,
        "How long before the time limit ranks are told; at most a quarter of it.",
        default="60s",
        value=60,
    )
    grace: int = key(values.DURATION, "From TERM to KILL.", default="30s", value=30)
    silence: int | None = key(values.DURATION_OR_OFF, "Fail when no rank prints for so long.", default="off")
    restarts: int = key(values.COUNT_OR_NONE, "How many further attempts there may be.", default="0", value=0)
    total_time: int | None = key(
        values.DURATION_OR_OFF,
        "How much time it needs in all: as many attempts as that takes, and `restarts` more. See [chains](chains.md).",
        default="off",
    )
    continue_: str = key(
        Kind("`requeue`, `successor` or `prequeued`", values.choice("requeue", "successor", "prequeued")),
        "How the next attempt comes about: see [continuing](continuing.md).",
        default="the cluster's, else `requeue`",
        value="requeue",
    )
    notify: str | None = key(
        values.SIGNAL, "A signal that tells ranks to save and leave: `USR1`, `TERM` …", default="off"
    )


LAUNCHERS = (
    "agent", "single", "torchrun", "srun", "mpirun", "horovod", "horovodrun", "accelerate", "deepspeed",
)  # fmt: skip


@dataclass(frozen=True)
class Launch:
    kind: str | None = key(
        Kind("the name of a launcher", values.choice(*LAUNCHERS)),
        "What starts the ranks: see [launchers](launchers.md).",
        default="`agent`; `single` for one rank without a GPU",
    )
    max_restarts: int = key(
        values.COUNT_OR_NONE,
        "How often torchrun starts failed ranks again within one attempt.",
        default="0",
        value=0,
    )
    options: tuple[str, ...] = key(
        values.TEXTS,
        "Further options of the launcher; `{nodes}`, `{ranks}`, `{gpus}` and `{world_size}` are filled in.",
        value=(),
    )
    tf_config: bool = key(
        values.BOOLEAN,
        "Tell each rank by `TF_CONFIG` where all are, as TensorFlow wants it.",
        default="false",
        value=False,
    )


@dataclass(frozen=True)
class Notify:
    command: tuple[str, ...] = key(
        values.COMMAND, "What to run, without a shell: a list of words, or text split as one would.", value=()
    )
    webhook: str | None = key(notices.VARIABLE, "The variable that holds the address to post to: a secret.")
    on: tuple[str, ...] = key(
        notices.EVENTS,
        "When: `start`, `finish`, `fail`, `stall`.",
        default="`finish` and `fail`",
        value=("finish", "fail"),
    )


@dataclass(frozen=True)
class Experiment:
    name: str
    command: tuple[str, ...] = key(
        values.COMMAND, "What each rank runs: a list of words, or text split as a shell would.", value=()
    )
    shell: bool = key(values.BOOLEAN, "Let bash read `command`.", default="false", value=False)
    seed: int = key(
        values.COUNT_OR_NONE,
        "Fills in `{seed}`; an array's elements add their index, or the number of their repeat.",
        default="0",
        value=0,
    )
    debug: bool = key(
        values.BOOLEAN, "Ranks say more: NCCL and torch.distributed log what they do.", default="false", value=False
    )
    workdir: str = key(
        values.TEXT, "Where ranks start, from the project's folder.", default="the project's folder", value="."
    )
    ranks_meet: bool = key(
        values.BOOLEAN,
        "Warn when several ranks run and none connects to another; false for independent ranks.",
        default="true",
        value=True,
    )
    after: tuple[str, ...] = key(
        values.TEXTS,
        "Experiments whose runs it comes after: `prepare`, or `prepare:any`. See [chains](chains.md#after-other-runs).",
        value=(),
    )
    cluster: str | None = key(values.TEXT, "Where `serried submit` sends it.", default="the cluster recognised")
    config: Mapping[str, Any] = key(
        values.SETTINGS,
        "What the training is told: `lr = 0.1`, `model.width = 64`. Merged name by name.",
        value={},
    )
    """By dotted name."""
    resources: Resources = Resources()
    environment: Environment = field(default_factory=Environment)
    limit: Limit = Limit()
    notify: Notify = Notify()
    launch: Launch = Launch()
    container: Container = field(default_factory=Container)
    data: Data = field(default_factory=Data)
    checkpoint: Checkpoint = field(default_factory=Checkpoint)


@dataclass(frozen=True)
class Project:
    directory: str
    """Absolute."""
    file: str | None
    """The file that describes it; None where there is none."""
    name: str = key(values.NAME, "What the project is called.", default="its folder's name", value="")
    link: tuple[str, ...] = key(
        values.TEXTS,
        "Entries to link into the snapshot rather than copy (`data`), or not to link (`!outputs`).",
        default="top-level entries that git ignores",
        value=(),
    )
    snapshot: bool = key(
        values.BOOLEAN, "Run a copy of the code made at submit; false runs in place.", default="true", value=True
    )
    share: str = key(
        Kind("`user` or `group`", values.choice("user", "group")),
        "Who may read what a run writes.",
        default="`user`",
        value="user",
    )
