"""Fill in a request, count it, and refuse what the cluster is known not to allow. Pure.

A request has N nodes, G GPUs per node, and CPUs and memory per GPU; without GPUs, per rank. One task per node owns
everything on the node, so an allocation counts CPUs and memory per node.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from serried import schedulers
from serried.base.errors import UsageError, did_you_mean
from serried.base.text import show_duration, show_walltime
from serried.config.values import show_memory
from serried.schema.plan import ALL, Allocation

if TYPE_CHECKING:
    from serried.config.definitions import Cluster, Gpu, Partition, Resources

CPUS = 2
"""Per GPU, or per rank."""
MEMORY_MB = 10 * 1024
"""Per GPU, or per rank."""
TIME_SECONDS = 3600


def allocate(request: Resources, cluster: Cluster, *, is_script: bool = False) -> Allocation:
    """Fill in what the request leaves out. Raises UsageError, with a hint, for an impossible request.

    For a job script the scheduler fills in time and memory, and the script may start any number of ranks.
    """
    partition = _partition_of(request.partition, cluster)
    nodes = request.nodes or 1
    gpus = _gpus(request, cluster, partition)
    ranks = request.ranks or gpus or 1
    units = gpus or ranks
    rule = _rule(request, cluster) if gpus else None
    cpus = _cpus(request, cluster, partition, rule, units)
    memory = _memory(request, cluster, partition, rule, units, cpus=cpus)
    allocation = Allocation(
        nodes=nodes,
        ranks=ranks,
        gpus=gpus,
        cpus=cpus,
        memory_mb=None if is_script and _says_no_memory(request) else memory,
        time_seconds=None if is_script and request.time is None else _time(request, cluster, partition),
        gpu_type=request.gpu_type if gpus else None,
        account=request.account,
        partition=request.partition,
        qos=request.qos,
        reservation=request.reservation,
        constraint=request.constraint,
        licenses=request.licenses,
        exclusive=_exclusive(request, cluster, gpus) if not is_script else bool(request.exclusive),
        comment=request.comment,
        mail_user=request.mail_user,
        mail_type=request.mail_type,
        extra=request.extra,
    )
    if not is_script:
        _check_shares(allocation)
    _check(allocation, request, cluster, partition)
    return allocation


def _exclusive(request: Resources, cluster: Cluster, gpus: int) -> bool:
    """By default nodes are whole where a job could use the GPUs of another."""
    if request.exclusive is not None:
        return request.exclusive
    return bool(gpus) and _shows_gpus_of_others(cluster)


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


def _gpus(request: Resources, cluster: Cluster, partition: Partition | None) -> int:
    """One by default on clusters with GPUs; none for a request of ranks alone, which is for CPUs."""
    if request.gpus is not None:
        return request.gpus
    available = partition.gpus if partition and partition.gpus is not None else cluster.gpus_per_node
    return 1 if (available or request.gpu_type) and request.ranks is None else 0


def _rule(request: Resources, cluster: Cluster) -> Gpu | None:
    """The defaults for the requested type of GPU, or for the only type of the profile."""
    if request.gpu_type is None and len(cluster.gpus) == 1:
        return next(iter(cluster.gpus.values()))
    return cluster.gpus.get(request.gpu_type or "")


def _cpus(request: Resources, cluster: Cluster, partition: Partition | None, rule: Gpu | None, units: int) -> int:
    """By default no more than a node has: ranks on this machine may share CPUs."""
    if request.cpus is not None:
        return request.cpus * units
    usual = rule.cpus if rule and rule.cpus is not None else CPUS
    known = (partition.cpus if partition else None) or cluster.cpus_per_node
    return min(usual * units, known) if known else usual * units


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


def _time(request: Resources, cluster: Cluster, partition: Partition | None) -> int | None:
    """By default an hour on a cluster, or the partition's limit if that is less."""
    if request.time is not None or schedulers.traits(cluster.scheduler).is_this_machine:
        return request.time
    return min([TIME_SECONDS, *_limits(cluster, partition)])


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
    """Raise UsageError with alternatives, and the site's contact, for an impossible allocation."""
    name = request.partition or cluster.default_partition
    try:
        _check_account(allocation, cluster)
        _check_nodes(allocation, cluster, partition, name)
        _check_gpus(allocation, cluster, partition, name)
        _check_rest(allocation, request, cluster, partition, name)
        # A QoS may allow more time than its partition, and only Slurm knows.
        _check_time(allocation, cluster, None if request.qos else partition, name)
    except UsageError as error:
        error.hint = "\n".join(filter(None, (error.hint, cluster.site.support)))
        raise


def _check_shares(allocation: Allocation) -> None:
    if allocation.gpus and allocation.gpus % allocation.ranks and allocation.ranks % allocation.gpus:
        hint = "give each rank the same number of GPUs, or each GPU the same number of ranks"
        raise UsageError(f"{allocation.gpus} GPUs cannot be shared evenly by {allocation.ranks} ranks", hint=hint)


def _check_account(allocation: Allocation, cluster: Cluster) -> None:
    if cluster.needs_account and not allocation.account:
        like = f", which looks like {_listed(cluster.accounts, 'or')}" if cluster.accounts else ""
        hint = f"--account NAME{like}; or `account` in `[clusters.{cluster.name}.resources]`, once for all"
        raise UsageError(f"jobs on cluster `{cluster.name}` must name an account", hint=hint)


def _check_nodes(allocation: Allocation, cluster: Cluster, partition: Partition | None, name: str | None) -> None:
    nodes = allocation.nodes
    if schedulers.traits(cluster.scheduler).is_this_machine and nodes > 1:
        hint = (
            "here: --nodes 1, or `nodes = 1` in `[experiments.NAME.on.local.resources]`; "
            "on a cluster: --cluster NAME, with `serried submit` in place of `serried run`"
        )
        raise UsageError(f"this machine is one node, and {nodes} were requested", hint=hint)
    if partition and partition.nodes is not None and nodes > partition.nodes:
        message = f"{nodes} nodes were requested, and partition `{name}` allows {partition.nodes}"
        raise UsageError(message, hint=f"request at most {partition.nodes}{_instead(allocation, cluster)}")


def _check_gpus(allocation: Allocation, cluster: Cluster, partition: Partition | None, name: str | None) -> None:
    is_local = schedulers.traits(cluster.scheduler).is_this_machine
    node = "this machine" if is_local else f"a node of cluster `{cluster.name}`"
    if cluster.gpus_per_node is not None and allocation.gpus > cluster.gpus_per_node:
        raise _too_many_gpus(allocation, cluster.gpus_per_node, node, one_node=is_local)
    if partition and partition.gpus is not None and allocation.gpus > partition.gpus:
        raise _too_many_gpus(allocation, partition.gpus, f"a node of partition `{name}`", one_node=False)
    total = allocation.nodes * allocation.gpus
    if partition and partition.total_gpus is not None and total > partition.total_gpus:
        message = f"{total} GPUs were requested in all, and partition `{name}` allows {partition.total_gpus} per job"
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


def _check_rest(
    allocation: Allocation, request: Resources, cluster: Cluster, partition: Partition | None, name: str | None
) -> None:
    """CPUs and memory. On this machine ranks share them."""
    if schedulers.traits(cluster.scheduler).is_this_machine:
        return
    per_unit = "counts per GPU, or per rank without GPUs"
    if cluster.cpus_per_node and allocation.cpus > cluster.cpus_per_node:
        message = (
            f"{allocation.cpus} CPUs per node were requested, and cluster `{cluster.name}` has {cluster.cpus_per_node}"
        )
        raise UsageError(message, hint=f"`cpus` {per_unit}")
    if partition and partition.cpus and allocation.cpus > partition.cpus:
        message = (
            f"{allocation.cpus} CPUs per node were requested, and a node of partition `{name}` has {partition.cpus}"
        )
        raise UsageError(message, hint=f"`cpus` {per_unit}{_instead(allocation, cluster)}")
    memory = allocation.memory_mb or ALL
    if partition and partition.mem and memory > partition.mem:
        has = f"a node of partition `{name}` has {show_memory(partition.mem)}"
        raise UsageError(
            f"{show_memory(memory)} of memory per node were requested, and {has}",
            hint=_memory_hint(allocation, request, partition.mem) + _instead(allocation, cluster),
        )


def _memory_hint(allocation: Allocation, request: Resources, available: int) -> str:
    """By the setting that was typed."""
    if request.mem_per_node is not None:
        return f"`mem_per_node` may be at most {show_memory(available)}"
    if request.mem_per_cpu is not None:
        return f"`mem_per_cpu` counts for each of the {allocation.cpus} CPUs of a node"
    return "`mem` counts per GPU, or per rank without GPUs"


def _check_time(allocation: Allocation, cluster: Cluster, partition: Partition | None, name: str | None) -> None:
    seconds = allocation.time_seconds
    if seconds is None:
        return
    requested = show_walltime(seconds)
    if cluster.max_time and seconds > cluster.max_time:
        message = f"{requested} were requested, and cluster `{cluster.name}` allows {show_walltime(cluster.max_time)}"
        raise UsageError(message, hint=_shorter(seconds, cluster.max_time))
    if partition and partition.time and seconds > partition.time:
        message = f"{requested} were requested, and partition `{name}` allows {show_walltime(partition.time)}"
        raise UsageError(message, hint=_shorter(seconds, partition.time, _instead(allocation, cluster)))


def _shorter(seconds: int, longest: int, instead: str = "") -> str:
    links = -(-seconds // longest)
    spelled = show_duration(longest)
    return f"--time {spelled}{instead}; or, with checkpoints, --time {spelled} --chain {links}"


def _instead(allocation: Allocation, cluster: Cluster) -> str:
    """`; --partition long allows it`: the partitions without a known limit below the request."""
    others = [name for name, known in cluster.partitions.items() if _allows(known, allocation)]
    flags = " or ".join(f"--partition {shlex.quote(name)}" for name in others)
    return f"; {flags} {'allows' if len(others) == 1 else 'allow'} it" if others else ""


def _allows(partition: Partition, allocation: Allocation) -> bool:
    amounts = (
        (partition.time, allocation.time_seconds),
        (partition.nodes, allocation.nodes),
        (partition.gpus, allocation.gpus),
        (partition.total_gpus, allocation.nodes * allocation.gpus),
        (partition.cpus, allocation.cpus),
        (partition.mem, allocation.memory_mb),
    )
    return all(limit is None or limit >= (amount or 0) for limit, amount in amounts)


def gpu_note(request: Resources, allocation: Allocation, cluster: Cluster) -> str:
    """A note on whole nodes for GPUs, and on nodes shared on request, where GPUs of other jobs are visible; else ""."""
    if not allocation.gpus or request.exclusive or not _shows_gpus_of_others(cluster):
        return ""
    where = schedulers.traits(cluster.scheduler).title
    if allocation.exclusive:
        ways = (
            f"`--no-exclusive`, or `hides_gpus = true` in `[clusters.{cluster.name}]` if the site has its cgroup hook"
        )
        return f"{where} does not assign GPUs to jobs, so this job takes whole nodes; to share them: {ways}"
    return f"{where} does not assign GPUs to jobs: another job on the same node may use the same GPUs"


def partition_note(allocation: Allocation, cluster: Cluster, tasks: int = 1, parallel: int | None = None) -> str:
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
