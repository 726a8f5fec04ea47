"""An experiment on a cluster as a plan: `make_plan` decides every value. Pure; the only place that counts resources.

A request has N nodes, G GPUs per node, and CPUs and memory per GPU; without GPUs, per rank. One task per node owns
everything on the node, so an allocation counts CPUs and memory per node. `allocate` fills in what the request leaves
out and refuses what the cluster is known not to allow. `choose_launch` does the same for the launcher of the ranks.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from serried import schedulers
from serried.base import NamedTuple
from serried.base.errors import Risk, UsageError, did_you_mean
from serried.base.text import counted, show_duration, show_walltime
from serried.config import shell_words
from serried.config.values import show_memory
from serried.schema.layout import sent_tree
from serried.schema.names import PLACEHOLDERS
from serried.schema.plan import ALL, Allocation, Array, Launch, Plan, Source, UserScript
from serried.schema.reasons import Reason

if TYPE_CHECKING:
    from serried import config
    from serried.config.definitions import Cluster, Gpu, Partition, Resources
    from serried.config.job_script import JobScript

MOST_CONFIG = 100_000
"""Bytes of JSON. Linux refuses a variable of 128 KiB, and a sweep adds to it."""

MOST_LOGS = 4096
"""With more ranks, those of a node share a log: file systems limit the number of files."""


def make_plan(
    resolved: config.Resolved, *, run_id: str, created: str, array: Array | None = None, name: str | None = None
) -> Plan:
    """Decide every open value. Pure: the snapshot completes `source` afterwards.

    Raises UsageError if the cluster cannot meet the request.
    """
    project, experiment, cluster = resolved.project, resolved.experiment, resolved.cluster
    data, track, script = experiment.data.planned, experiment.track, resolved.script
    request, limit = experiment.resources, experiment.limit
    if limit.total_time_seconds is not None:
        link_seconds = _link_seconds(limit.total_time_seconds, request, cluster)
        links = -(-limit.total_time_seconds // link_seconds)
        request = request._replace(time=link_seconds)
        limit = limit._replace(restarts=limit.restarts + links - 1)
    launch, allocation = choose_launch(experiment, cluster, allocate(request, cluster, is_script=bool(script)))
    if allocation.time_seconds is not None:
        # The stop notice comes at most a quarter of the time limit before the end, unless a job script says otherwise.
        has_own_signal = script is not None and script.directives.signal is not None
        most = allocation.time_seconds if has_own_signal else allocation.time_seconds // 4
        limit = limit._replace(warn_before_seconds=min(limit.warn_before_seconds, most))
    size = len(json.dumps(experiment.config))
    if size > MOST_CONFIG:
        hint = "move long values to a file of the project, and set its path"
        raise UsageError(f"`config` is {size:,} bytes of JSON, and at most {MOST_CONFIG:,} fit a variable", hint=hint)
    environment, webhook = experiment.environment.planned, experiment.notify.webhook
    if webhook is not None and webhook not in (*environment.secrets, *environment.env_file):
        # The address of a webhook is a secret: anybody with the address can write to it.
        environment = environment._replace(secrets=(*environment.secrets, webhook))
    from_profile = [
        key for key, origin in resolved.origins.items() if origin.is_default and key.startswith("resources.")
    ]
    return environment_of(resolved)._replace(
        run=run_id,
        name=name or (script.directives.name if script else None) or experiment.name,
        created=created,
        command=rank_command(experiment, experiment.command),
        seed=experiment.seed,
        debug=experiment.debug,
        ranks_meet=experiment.ranks_meet,
        preflight=experiment.preflight,
        # The launches of a job script keep a log for each rank: how many ranks they have is not known.
        shares_logs=not script and allocation.ranks > 1 and allocation.nodes * allocation.ranks > MOST_LOGS,
        config=dict(experiment.config),
        allocation=allocation,
        source=_source_of_script(script, resolved)
        if script
        else Source(project.directory, experiment.workdir, project.snapshot),
        environment=environment,
        data=data if data.stage or data.require or data.results else None,
        checkpoint=experiment.checkpoint if experiment.checkpoint.watch else None,
        limit=limit,
        launch=launch,
        script=_script(script, resolved, name) if script else None,
        notify=experiment.notify if experiment.notify.command or webhook else None,
        track=track._replace(project=track.project or project.name) if track.sinks else None,
        metric=experiment.metric if experiment.metric.source else None,
        sampling=experiment.sampling,
        report=experiment.report,
        beside=experiment.beside,
        array=array,
        defaults=tuple(dict.fromkeys([*left_out(experiment.resources), *from_profile])),
    )


def _source_of_script(script: JobScript, resolved: config.Resolved) -> Source:
    """A job script runs where it was submitted, as the scheduler would run it, unless a setting demands a snapshot.

    If another machine has sent the project, it runs in a snapshot: the tree of the project is soon deleted.
    """
    origin = resolved.origins.get("project.snapshot")
    folder = os.path.expanduser(script.folder)  # noqa: PTH111 - it stays relative
    workdir = os.path.normpath(os.path.join(resolved.experiment.workdir, folder))  # noqa: PTH118
    is_own = (origin is not None and not origin.is_default) or sent_tree(resolved.project.directory) is not None
    has_snapshot = resolved.project.snapshot and is_own
    return Source(resolved.project.directory, workdir, has_snapshot)


def _script(script: JobScript, resolved: config.Resolved, name: str | None) -> UserScript:
    """The options of the directives, except those about resources that a stronger source has set otherwise.

    Directives of another scheduler are no options here: then the plan's resources are the request.
    """
    directives = script.directives
    return UserScript(
        path=str(script.path),
        interpreter=script.interpreter,
        options=script.options(resolved.replaced),
        replaced=script.replaced(resolved.replaced),
        keys=tuple(sorted(resolved.replaced)),
        title=name or directives.name or "",
        log=directives.output or "",
        errors=directives.error or "",
        input=directives.input or "",
        dependency=(directives.dependency or "") if script.is_native else "",
        notice_to="" if directives.signal is None else "script" if directives.signal.to_script else "ranks",
        has_login=directives.export.has_login,
        appends=bool(directives.appends),
        dialect=script.dialect,
        umask=script.umask,
        folder=os.path.normpath(os.path.join(resolved.project.directory, resolved.experiment.workdir)),  # noqa: PTH118
    )


class Settled(NamedTuple):
    """A plan after one more decision, and what its user should read."""

    plan: Plan
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def _link_seconds(total_seconds: int, request: Resources, cluster: Cluster) -> int:
    """The time limit of each job in a run that takes `limit.total_time`. Raises UsageError if it is unknown."""
    most = request.time or longest(request, cluster)
    if most is None and not schedulers.traits(cluster.scheduler).is_this_machine:
        message = f"`limit.total_time` needs the longest time limit on `{cluster.name}`, which is not known"
        raise UsageError(message, hint="pass `--time 6h`, or set `time` of the partition in the cluster's profile")
    return min(total_seconds, most or total_seconds)


def environment_of(resolved: config.Resolved) -> Plan:
    """A plan with the ranks' environment and image alone, and without an id.

    It counts nothing and checks no launcher, so an experiment that cannot run has such a plan too.
    """
    project, experiment, cluster = resolved.project, resolved.experiment, resolved.cluster
    queueing = {
        name: getattr(experiment.resources, name)
        for name in ("gpu_type", "account", "partition", "qos", "reservation", "constraint", "extra")
    }
    return Plan(
        run="",
        name=experiment.name,
        project=project.name,
        experiment=experiment.name,
        created="",
        command=experiment.command,
        shell=experiment.shell,
        site=cluster.site,
        allocation=Allocation(nodes=1, ranks=1, gpus=0, cpus=1, memory_mb=None, time_seconds=None, **queueing),
        source=Source(project.directory, experiment.workdir, project.snapshot),
        environment=experiment.environment.planned,
        container=experiment.container if experiment.container.image else None,
        share=project.share,
    )


CPUS, MEMORY_MB = 2, 10 * 1024
"""Defaults per GPU, or per rank."""
TIME_SECONDS = 3600


def allocate(request: Resources, cluster: Cluster, *, is_script: bool = False) -> Allocation:
    """Fill in what the request leaves out. Raises UsageError, with a hint, for an impossible request.

    For a job script the scheduler fills in time and memory, and the script may start any number of ranks.
    """
    partition = _partition_of(request.partition, cluster)
    gpus = request.gpus
    if gpus is None:  # one on clusters with GPUs; none for a request of ranks alone, which is for CPUs
        available = partition.gpus if partition and partition.gpus is not None else cluster.gpus_per_node
        gpus = 1 if (available or request.gpu_type) and request.ranks is None else 0
    ranks = request.ranks or gpus or 1
    units = gpus or ranks
    # The defaults for the requested type of GPU, or for the only type of the profile.
    gpu_type = request.gpu_type or (next(iter(cluster.gpus)) if len(cluster.gpus) == 1 else "")
    rule = cluster.gpus.get(gpu_type) if gpus else None
    if request.cpus is not None:
        cpus = request.cpus * units
    else:  # no more than a node has: ranks on this machine may share CPUs
        usual = (rule.cpus if rule and rule.cpus is not None else CPUS) * units
        cpus = min(usual, (partition.cpus if partition else None) or cluster.cpus_per_node or usual)
    exclusive = bool(request.exclusive)
    if request.exclusive is None and not is_script:  # whole nodes where a job could use the GPUs of another
        exclusive = bool(gpus) and _shows_gpus_of_others(cluster)
    time_seconds = request.time
    if time_seconds is None and not (is_script or schedulers.traits(cluster.scheduler).is_this_machine):
        time_seconds = min([TIME_SECONDS, *_limits(cluster, partition)])
    allocation = Allocation(
        nodes=request.nodes or 1,
        spare_nodes=request.spare_nodes or 0,
        ranks=ranks,
        gpus=gpus,
        cpus=cpus,
        memory_mb=None
        if is_script and _says_no_memory(request)
        else _memory(request, cluster, partition, rule, units, cpus=cpus),
        time_seconds=time_seconds,
        gpu_type=request.gpu_type if gpus else None,
        exclusive=exclusive,
        **{name: getattr(request, name) for name in _PASSED_ON},
    )
    if not is_script and gpus and gpus % ranks and ranks % gpus:
        hint = "give each rank the same number of GPUs, or each GPU the same number of ranks"
        raise UsageError(f"{gpus} GPUs cannot be shared evenly by {ranks} ranks", hint=hint)
    try:
        _check(allocation, request, cluster, partition)
    except UsageError as error:
        error.hint = "\n".join(filter(None, (error.hint, cluster.site.support)))
        raise
    return allocation


_PASSED_ON = (
    *("account", "partition", "qos", "reservation", "constraint"),
    *("licenses", "comment", "mail_user", "mail_type", "extra"),
)


def _shows_gpus_of_others(cluster: Cluster) -> bool:
    return not (schedulers.traits(cluster.scheduler).assigns_gpus or cluster.site.hides_gpus)


def _says_no_memory(request: Resources) -> bool:
    return all(amount is None for amount in (request.mem, request.mem_per_node, request.mem_per_cpu))


def left_out(request: Resources) -> tuple[str, ...]:
    """Keys of the request that `allocate` fills in with a default."""
    is_set = {
        "nodes": request.nodes is not None,
        "gpus": request.gpus is not None,
        "ranks": request.ranks is not None,
        "cpus": request.cpus is not None,
        "mem": not _says_no_memory(request),
        "time": request.time is not None,
    }
    return tuple(f"resources.{key}" for key, was_set in is_set.items() if not was_set)


def _memory(
    request: Resources, cluster: Cluster, partition: Partition | None, rule: Gpu | None, units: int, *, cpus: int
) -> int | None:
    """MiB per node; 0 is all, as for a whole node."""
    if request.mem is not None:
        return request.mem * units
    if request.mem_per_node is not None:
        return request.mem_per_node
    if request.mem_per_cpu is not None:
        return request.mem_per_cpu * cpus
    if schedulers.traits(cluster.scheduler).is_this_machine:
        return None
    if request.exclusive:
        return ALL
    usual = (rule.mem if rule and rule.mem is not None else MEMORY_MB) * units
    return min(usual, partition.mem) if partition and partition.mem else usual


def longest(request: Resources, cluster: Cluster) -> int | None:
    """The longest time limit of a job in its partition, or None if unknown."""
    return min(_limits(cluster, _partition_of(request.partition, cluster)), default=None)


def _limits(cluster: Cluster, partition: Partition | None) -> list[int]:
    return [limit for limit in (cluster.max_time, partition.time if partition else None) if limit]


def _partition_of(name: str | None, cluster: Cluster) -> Partition | None:
    """The described partition. Slurm accepts several, `a,b`, and then decides by itself."""
    if name is None:
        return cluster.partitions.get(cluster.default_partition or "")
    if "," in name or not cluster.partitions:
        return None
    if name not in cluster.partitions and not cluster.knows_partitions:
        return None
    if name not in cluster.partitions:
        hint = did_you_mean(name, cluster.partitions) or _there_are(cluster.partitions)
        raise UsageError(f"partition `{name}` does not exist on cluster `{cluster.name}`", hint=hint)
    return cluster.partitions[name]


def _check(allocation: Allocation, request: Resources, cluster: Cluster, partition: Partition | None) -> None:
    """Raise UsageError with alternatives for an impossible allocation."""
    if cluster.needs_account and not allocation.account:
        like = f", which looks like {_listed(cluster.accounts, 'or')}" if cluster.accounts else ""
        hint = f"--account NAME{like}; or `account` in `[clusters.{cluster.name}.resources]`, once for all"
        raise UsageError(f"jobs on cluster `{cluster.name}` must name an account", hint=hint)
    is_local = schedulers.traits(cluster.scheduler).is_this_machine
    where = f"partition `{request.partition or cluster.default_partition}`"
    if is_local and allocation.nodes > 1:
        hint = (
            "here: --nodes 1, or `nodes = 1` in `[experiments.NAME.on.local.resources]`; "
            "on a cluster: serried submit --cluster NAME"
        )
        raise UsageError(f"this machine is one node, and {allocation.nodes} were requested", hint=hint)
    if partition and partition.nodes is not None and allocation.job_nodes > partition.nodes:
        spare = f" and {counted(allocation.spare_nodes, 'spare')}" if allocation.spare_nodes else ""
        message = f"{allocation.nodes} nodes{spare} were requested, and {where} allows {partition.nodes}"
        raise UsageError(message, hint=f"request at most {partition.nodes}{_instead(allocation, cluster)}")
    _check_gpus(allocation, cluster, partition, where)
    if not is_local:  # ranks on this machine share CPUs and memory
        _check_cpus_and_memory(allocation, request, cluster, partition, where)
    # A QoS may allow more time than its partition, and only Slurm knows.
    partition_time = partition.time if partition and not request.qos else None
    seconds, instead = allocation.time_seconds or 0, _instead(allocation, cluster)
    for limit, place, others in ((cluster.max_time, f"cluster `{cluster.name}`", ""), (partition_time, where, instead)):
        if limit and seconds > limit:
            spelled = show_duration(limit)
            message = f"{show_walltime(seconds)} were requested, and {place} allows {show_walltime(limit)}"
            hint = f"--time {spelled}{others}; or, with checkpoints, --time {spelled} --chain {-(-seconds // limit)}"
            raise UsageError(message, hint=hint)


def _check_gpus(allocation: Allocation, cluster: Cluster, partition: Partition | None, where: str) -> None:
    is_local = schedulers.traits(cluster.scheduler).is_this_machine
    node = "this machine" if is_local else f"a node of cluster `{cluster.name}`"
    if cluster.gpus_per_node is not None and allocation.gpus > cluster.gpus_per_node:
        raise _too_many_gpus(allocation, cluster.gpus_per_node, node, one_node=is_local)
    if partition and partition.gpus is not None and allocation.gpus > partition.gpus:
        raise _too_many_gpus(allocation, partition.gpus, f"a node of {where}", one_node=False)
    total = allocation.job_nodes * allocation.gpus
    if partition and partition.total_gpus is not None and total > partition.total_gpus:
        message = f"{total} GPUs were requested in all, and {where} allows {partition.total_gpus} per job"
        raise UsageError(message, hint=f"request at most {partition.total_gpus}{_instead(allocation, cluster)}")
    if allocation.gpu_type and cluster.gpu_types and allocation.gpu_type not in cluster.gpu_types:
        hint = did_you_mean(allocation.gpu_type, cluster.gpu_types) or _there_are(cluster.gpu_types)
        raise UsageError(f"cluster `{cluster.name}` does not have GPUs of type `{allocation.gpu_type}`", hint=hint)


def _too_many_gpus(allocation: Allocation, available: int, node: str, *, one_node: bool) -> UsageError:
    if not available:
        return UsageError(f"GPUs were requested, and {node} has none", hint="for CPUs alone: --gpus 0 --ranks 4")
    nodes = -(-allocation.nodes * allocation.gpus // available)
    hint = f"--gpus {available}" if one_node else f"--nodes {nodes} --gpus {available}"
    return UsageError(f"{allocation.gpus} GPUs per node were requested, and {node} has {available}", hint=hint)


def _check_cpus_and_memory(
    allocation: Allocation, request: Resources, cluster: Cluster, partition: Partition | None, where: str
) -> None:
    instead = _instead(allocation, cluster)
    for limit, place, others in (
        (cluster.cpus_per_node, f"cluster `{cluster.name}`", ""),
        (partition.cpus if partition else None, f"a node of {where}", instead),
    ):
        if limit and allocation.cpus > limit:
            message = f"{allocation.cpus} CPUs per node were requested, and {place} has {limit}"
            raise UsageError(message, hint=f"`cpus` counts per GPU, or per rank without GPUs{others}")
    memory = allocation.memory_mb or ALL
    if partition and partition.mem and memory > partition.mem:
        available = show_memory(partition.mem)
        hint = "`mem` counts per GPU, or per rank without GPUs"
        if request.mem_per_node is not None:
            hint = f"`mem_per_node` may be at most {available}"
        elif request.mem_per_cpu is not None:
            hint = f"`mem_per_cpu` counts for each of the {allocation.cpus} CPUs of a node"
        message = f"{show_memory(memory)} of memory per node were requested, and a node of {where} has {available}"
        raise UsageError(message, hint=hint + instead)


def _instead(allocation: Allocation, cluster: Cluster) -> str:
    """`; --partition long allows it`: the partitions without a known limit below the request."""
    others = []
    for name, known in cluster.partitions.items():
        amounts = (
            (known.time, allocation.time_seconds),
            (known.nodes, allocation.job_nodes),
            (known.gpus, allocation.gpus),
            (known.total_gpus, allocation.job_nodes * allocation.gpus),
            (known.cpus, allocation.cpus),
            (known.mem, allocation.memory_mb),
        )
        if all(limit is None or limit >= (amount or 0) for limit, amount in amounts):
            others.append(f"--partition {shlex.quote(name)}")
    return f"; {' or '.join(others)} {'allows' if len(others) == 1 else 'allow'} it" if others else ""


def gpu_note(request: Resources, allocation: Allocation, cluster: Cluster) -> str:
    """A note on whole nodes for GPUs, and on nodes shared on request, where GPUs of other jobs are visible; else ""."""
    if not allocation.gpus or request.exclusive or not _shows_gpus_of_others(cluster):
        return ""
    where = schedulers.traits(cluster.scheduler).title
    if not allocation.exclusive:
        return f"{where} does not assign GPUs to jobs: another job on the same node may use the same GPUs"
    ways = f"`--no-exclusive`, or `hides_gpus = true` in `[clusters.{cluster.name}]` if the site has its cgroup hook"
    return f"{where} does not assign GPUs to jobs, so this job takes whole nodes; to share them: {ways}"


def partition_note(allocation: Allocation, cluster: Cluster, tasks: int, parallel: int | None) -> str:
    """A note if the partition runs fewer tasks at a time than requested; else ""."""
    name = allocation.partition or cluster.default_partition or ""
    known = cluster.partitions.get(name)
    at_once = min(tasks, parallel or tasks)
    if known is None or known.jobs is None or at_once <= known.jobs:
        return ""
    return f"partition `{name}` runs {known.jobs} of your jobs at a time: the {tasks} tasks take turns"


def divide_indices(indices: Sequence[int], size: int | None, *, in_ranges: bool = False) -> tuple[int, ...]:
    """The offsets of the jobs that hold `indices`, sorted, when those of one job stay below `size`.

    With `in_ranges`, the indices of each job are a range with a step.
    """
    offsets: list[int] = []
    step: int | None = None
    before = 0
    for index in indices:
        is_apart = in_ranges and step is not None and index - before != step
        if not offsets or is_apart or (size is not None and index >= offsets[-1] + size):
            offsets.append(index)
            step = None
        else:
            step = index - before
        before = index
    return tuple(offsets)


def _there_are(names: Collection[str]) -> str:
    return f"there {'are' if len(names) > 1 else 'is'} {_listed(names)}"


def _listed(names: Collection[str], word: str = "") -> str:
    """`` `a`, `b` ``, or `` `a` or `b` ``."""
    *most, last = (f"`{name}`" for name in names)
    return ", ".join([*most, last]) if not word or not most else f"{', '.join(most)} {word} {last}"


OF_A_CLUSTER = ("srun", "mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun", "aprun", "jsrun", "pbsdsh")
"""Programs that start others on all nodes of a job."""
SUBMITTERS = ("sbatch", "qsub")
DOUBLES = ("torchrun", "accelerate", "deepspeed", "horovodrun")
"""Programs that start ranks of their own."""
SPANNING = frozenset(("--nnodes", "--num-machines", "--hostfile"))
"""Their options for several nodes."""
ELASTIC = ("--min-np", "--max-np", "--min-num-proc", "--max-num-proc", "--host-discovery-script")
"""Options of horovodrun."""
_ITS_NUMBER = r"\b(?:LOCAL_)?RANK\b|\bSLURM_(?:PROC|LOCAL)ID\b|\{(?:local_)?rank\}"
"""A text that contains a rank's number may start its commands in one rank only."""
OLD = "torch.distributed.launch"
OUR_KEYS = {
    "nproc-per-node": "`resources.ranks` is the number of ranks on each node",
    "nnodes": "`resources.nodes` is the number of nodes",
    "max-restarts": "`launch.max_restarts` is the number of restarts",
}
"""Torchrun's options that are keys of Serried, with a hint."""
MEETING = ("standalone", "node-rank", "rdzv-", "master-", "local-addr")
"""Options about the rendezvous, which Serried sets up."""
_OF_COMMAND = ("--module", "--no-python", "--use-env")
"""Options of torchrun that say how a rank's command is started."""
_IN_BRACES = r"(?<!\{)\{([a-z][a-z_]+)\}(?!\})"


def rank_command(experiment: config.Experiment, command: Sequence[str]) -> tuple[str, ...]:
    """The command of one rank: without `torchrun` in front, if torchrun is the launcher. Raises UsageError."""
    is_typed = experiment.launch.kind == "torchrun" and not (experiment.shell or experiment.script) and command
    return _without_torchrun(command) if is_typed else tuple(command)


def choose_launch(
    experiment: config.Experiment, cluster: config.Cluster, allocation: Allocation
) -> tuple[Launch, Allocation]:
    """The launcher, and the allocation that the launcher needs. Raises UsageError for impossible combinations."""
    if allocation.spare_nodes:
        _check_spares(experiment, allocation)
    if experiment.script:
        return Launch("script"), allocation
    # One process on CPUs starts as by hand: many programs take RANK for a request to train over NCCL.
    is_alone = allocation.nodes * allocation.ranks == 1 and not allocation.gpus
    launch = experiment.launch._replace(kind=experiment.launch.kind or ("single" if is_alone else "agent"))
    kind = launch.kind
    if kind == "single":  # one process for all GPUs of a node
        ranks = experiment.resources.ranks or 1
        message = '`launch.kind = "single"` is one process, and {} were requested'
        if allocation.nodes > 1:
            hint = "pass `--nodes 1` for DataParallel, or use DistributedDataParallel with one rank per GPU"
            raise UsageError(message.format(f"{allocation.nodes} nodes"), hint=hint)
        if ranks > 1:
            hint = "leave `ranks` out: the process sees all GPUs of its node"
            raise UsageError(message.format(f"{ranks} ranks"), hint=hint)
        allocation = allocation._replace(ranks=1)
    if 0 < allocation.gpus < allocation.ranks and kind not in ("mpirun", "srun"):  # MPI programs may share GPUs
        gpus = f"{allocation.gpus} GPU{'s' if allocation.gpus > 1 else ''}"
        hint = "leave `ranks` out for one rank per GPU, or set `gpus = 0` for ranks without GPUs"
        raise UsageError(f"{allocation.ranks} ranks and {gpus} on each node: some ranks would have no GPU", hint=hint)
    _check_options(launch, allocation, experiment)
    _check_command(launch, experiment, experiment.command, allocation)
    owner, its = schedulers.owner(kind), schedulers.traits(cluster.scheduler)
    if owner and owner != its:
        where = its.title if its.is_this_machine else f"cluster `{cluster.name}` ({cluster.scheduler})"
        message = f'`launch.kind = "{kind}"` needs {owner.title}, and {where} does not have {owner.title}'
        raise UsageError(message, hint="`agent`, the default, starts the same ranks everywhere")
    return launch, allocation


def _check_spares(experiment: config.Experiment, allocation: Allocation) -> None:
    """Raise UsageError with a way out if no spare node could take the place of a lost one."""
    kind, no_spares = experiment.launch.kind or "agent", "`--spare-nodes 0` requests none"
    if experiment.script or kind != "agent":
        what, hint = ("a job script", no_spares) if experiment.script else (f"`{kind}`", f"omit `launch`; {no_spares}")
        raise UsageError(f"spare nodes need ranks that Serried starts, not {what}", hint=hint)
    if allocation.nodes == 1:
        message = "one node needs no spare node: the loss of the first node ends the job"
        raise UsageError(message, hint=f"--nodes 2, or more; {no_spares}")
    if not experiment.limit.rounds:
        hint = f"--set limit.rounds=3, or `rounds = 3` in `[experiments.{experiment.name}.limit]`"
        raise UsageError("spare nodes need rounds: ranks start again within the attempt", hint=hint)


def task_commands(
    experiment: config.Experiment, plan: Plan, each: Iterable[Sequence[str]]
) -> Iterator[tuple[str, ...]]:
    """The ranks' command for each task of an array. Raises UsageError as `choose_launch` does."""
    for index, command in zip(plan.array.indices if plan.array else (), each):
        try:
            _check_command(plan.launch, experiment, command, plan.allocation)
            yield rank_command(experiment, command)
        except UsageError as error:
            raise UsageError(f"task {index}: {error.message}", hint=error.hint) from None


def _check_options(launch: Launch, allocation: Allocation, experiment: config.Experiment) -> None:
    if launch.max_restarts and launch.kind != "torchrun":
        hint = 'set `launch.kind = "torchrun"`, or `limit.restarts` for further attempts of the whole run'
        raise UsageError("`launch.max_restarts` is an option of torchrun", hint=hint)
    if experiment.limit.rounds and launch.kind not in ("agent", "single"):
        hint = f"omit `launch`, or use the restarts of `{launch.kind}` and `limit.restarts`"
        raise UsageError(f"`limit.rounds` needs ranks that Serried starts, not `{launch.kind}`", hint=hint)
    if launch.options and launch.kind in ("agent", "single"):
        raise UsageError(f"`launch.options` are for a launcher, and `{launch.kind}` starts ranks without one")
    split = next((option for option in allocation.extra if option.partition("=")[0] == "--gpus-per-task"), None)
    if split:
        hint = "remove the option: ranks see all GPUs of their node and use the GPU of their LOCAL_RANK"
        raise UsageError(f"`{split}` hides the GPUs of a node from its other ranks", hint=hint)
    if launch.kind != "horovodrun":
        return
    if experiment.container.image:
        hint = "`--launch mpirun`, if Horovod is built with MPI; on one node, `--launch single -- horovodrun -np …`"
        raise UsageError("`horovodrun` in a container cannot start ranks outside the container", hint=hint)
    elastic = next((option for option in launch.options if option.partition("=")[0] in ELASTIC), None)
    if elastic:
        hint = "`limit.restarts` starts another attempt after a failure"
        raise UsageError(f"`{elastic}` lets Horovod change the number of ranks, which the plan fixes", hint=hint)


def _check_command(
    launch: Launch, experiment: config.Experiment, command: Sequence[str], allocation: Allocation
) -> None:
    is_typed = rank_command(experiment, command) != tuple(command)
    for started in _started(command, is_shell=experiment.shell):
        _check_program(launch, started, allocation, is_typed=is_typed)


def _check_program(launch: Launch, started: Sequence[str], allocation: Allocation, *, is_typed: bool) -> None:
    program = PurePosixPath(started[0]).name
    if program.startswith("python") and len(started) > 2 and started[1] == "-m":
        from serried.schema.launchers import MODULES  # few commands need it

        program = MODULES.get(started[2], program)  # `torchrun` of `python -m torch.distributed.run`
    ranks = allocation.nodes * allocation.ranks
    if program in OF_A_CLUSTER and ranks > 1:
        instead = f": --launch {program}" if program in ("srun", "mpirun") else ""
        message = f"the command starts `{program}`, and each of {ranks} ranks would start `{program}` again"
        raise UsageError(message, hint=f"pass only the rank's command; `launch.kind` selects the launcher{instead}")
    if program == launch.kind and not is_typed:
        message = f"`{program}` is both launcher and command: each rank would start `{program}` again"
        hint = "pass only the rank's command, such as `python train.py`; put launcher options in `launch.options`"
        raise UsageError(message, hint=hint)
    # Options that name several nodes are meant for one start on each node.
    options = {word.partition("=")[0].replace("_", "-") for word in started}
    is_once_per_node = allocation.ranks == 1 and bool(options & SPANNING)
    if program in DOUBLES and launch.kind not in ("single", program) and ranks > 1 and not is_once_per_node:
        once = f"`--launch single` to start `{program}` once with its own options"
        otherwise = once if allocation.nodes == 1 else f"submit a job script that calls `{program}`"
        message = f"`{program}` starts ranks of its own, and {ranks} ranks would each start `{program}`"
        raise UsageError(message, hint=f"{_without_launcher(program, started)}, or {otherwise}")


def _without_launcher(program: str, started: Sequence[str]) -> str:
    """Programs for accelerate and deepspeed find the ranks that agents start, by torchrun's variables."""
    if program == "torchrun":
        return "`--launch torchrun`"
    script = next((word for word in started if word.endswith(".py")), "train.py")
    launcher = "--launch horovodrun " if program == "horovodrun" else ""
    return f"leave `{program}` and its options out: `{launcher}-- python {script} …`"


def _started(command: Sequence[str], *, is_shell: bool = False) -> Iterator[tuple[str, ...]]:
    """Commands that each rank certainly starts: the command itself, or the unconditional ones of a shell's text.

    Each begins with its program: assignments, `env A=1`, `exec` and so on are removed.
    """
    if is_shell:
        yield from _in(" ".join(command))
        return
    words = shell_words.without_prefix(command)
    if (text := shell_words.shell_text(words)) is not None:
        yield from _in(text)
    elif words:
        yield words


def _in(text: str) -> Iterator[tuple[str, ...]]:
    from serried.config.shell_words import certain  # few commands need the reader of scripts

    if re.search(_ITS_NUMBER, text):
        return
    for command in certain(text):
        yield from _started(command)


def _without_torchrun(command: Sequence[str]) -> tuple[str, ...]:
    """`python train.py` of `torchrun train.py`. Raises UsageError for options of torchrun that Serried sets."""
    from serried.schema.launchers import MODULES, TORCHRUN_OPTIONS, NoLaunchError, NotUnderstoodError, parse_options

    program, module = PurePosixPath(command[0]), command[2] if len(command) > 2 and command[1] == "-m" else ""
    if program.name == "torchrun":
        python, words = str(program.parent / "python") if "/" in command[0] else "python", command[1:]
    elif program.name.startswith("python") and MODULES.get(module) == "torchrun":
        python, words = command[0], command[3:]
    else:
        return tuple(command)
    try:
        options = parse_options(TORCHRUN_OPTIONS, words)
    except (NotUnderstoodError, NoLaunchError):
        refused = next(word for word in words if word[0] == "-" and word.replace("_", "-") not in ("-m", *_OF_COMMAND))
        raise _refusal(refused, refused.replace("_", "-")) from None
    for word, name in options.words:
        if name and name not in _OF_COMMAND:
            raise _refusal(word, name)
    script = words[len(options.words) :]
    if not script:
        raise UsageError(f"`{' '.join(command)}` names no script", hint="for example `torchrun train.py`")
    start = [] if "--no-python" in options.values else [python, *(["-m"] if "--module" in options.values else [])]
    if OLD in command[:3] and "--use-env" not in options.values:
        script = [script[0], "--local-rank={local_rank}", *script[1:]]
    return (*start, *script)


def command_warnings(command: Sequence[str]) -> Iterator[str]:
    """Warn of a deprecated launcher and of mistyped placeholders: `{resutls}` would reach the program unchanged."""
    if tuple(command[1:3]) == ("-m", OLD):
        yield (
            f"PyTorch deprecates `{OLD}`: Serried runs torchrun, and the script still gets `--local-rank`; "
            "read LOCAL_RANK in the script, and write `torchrun`"
        )
    for name in dict.fromkeys(name for word in command for name in re.findall(_IN_BRACES, word)):
        import difflib

        near = difflib.get_close_matches(name, PLACEHOLDERS, n=1, cutoff=0.75)
        if near and name not in PLACEHOLDERS:
            text = f"`{{{name}}}` in the command is not a placeholder: did you mean `{{{near[0]}}}`?"
            yield Risk(Reason.UNKNOWN_PLACEHOLDER, text)
    program = PurePosixPath(command[0]).name if command else ""
    if program in SUBMITTERS:
        script = next((f" {shlex.quote(word)}" for word in command[1:] if not word.startswith("-")), "")
        text = f"`{program}` in the command submits another job from each rank: `serried submit{script}` submits one"
        yield Risk(Reason.SUBMITS_JOBS, text)


def _refusal(word: str, option: str) -> UsageError:
    name = option.partition("=")[0].lstrip("-")
    hint = OUR_KEYS.get(name)
    if hint is None and name.startswith(MEETING):
        hint = "remove the option: Serried knows the nodes and reserves a port"
    if hint is None:
        hint = "`launch.options` takes further options of torchrun"
    return UsageError(f"`{word}` in the command is an option of torchrun, which Serried starts", hint=hint)
