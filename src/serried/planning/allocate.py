"""A request, filled in and counted.

N nodes, G GPUs per node, c CPUs per GPU and m memory per GPU; without GPUs, per rank. One task per node
owns everything there, so CPUs and memory are rendered per node.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from serried import schedulers
from serried.plan.model import ALL, Allocation
from serried.planning import limits

if TYPE_CHECKING:  # who only reads plans must not pay for the definitions
    from serried.config.definitions import Cluster, Gpu, Partition, Resources

CPUS = 2
"""Per GPU, or per rank."""
MEMORY_MB = 10 * 1024
"""Per GPU, or per rank."""
TIME_SECONDS = 3600


def allocate(request: Resources, cluster: Cluster) -> Allocation:
    """Fill in what was left out, and refuse what the cluster is known not to have.

    Raises UsageError with a hint for what cannot be.
    """
    partition = limits.partition_of(request.partition, cluster)
    nodes = request.nodes or 1
    gpus = _gpus(request, cluster, partition)
    ranks = request.ranks or gpus or 1
    units = gpus or ranks
    rule = _rule(request, cluster) if gpus else None
    cpus = _cpus(request, cluster, partition, rule, units)
    allocation = Allocation(
        nodes=nodes,
        ranks=ranks,
        gpus=gpus,
        cpus=cpus,
        memory_mb=_memory(request, cluster, partition, rule, units, cpus=cpus),
        time_seconds=_time(request, cluster, partition),
        gpu_type=request.gpu_type if gpus else None,
        account=request.account,
        partition=request.partition,
        qos=request.qos,
        reservation=request.reservation,
        constraint=request.constraint,
        licenses=request.licenses,
        exclusive=bool(request.exclusive),
        comment=request.comment,
        mail_user=request.mail_user,
        mail_type=request.mail_type,
        extra=request.extra,
    )
    limits.check(allocation, request, cluster, partition)
    return allocation


def left_out(request: Resources) -> tuple[str, ...]:
    """Keys of the request that `allocate` fills in with a default."""
    memory = (request.mem, request.mem_per_node, request.mem_per_cpu)
    said = {
        "nodes": request.nodes is not None,
        "gpus": request.gpus is not None,
        "ranks": request.ranks is not None,
        "cpus": request.cpus is not None,
        "mem": any(amount is not None for amount in memory),
        "time": request.time is not None,
    }
    return tuple(f"resources.{key}" for key, is_said in said.items() if not is_said)


def _gpus(request: Resources, cluster: Cluster, partition: Partition | None) -> int:
    """One by default where there are GPUs; none for who asked for ranks alone, and so for CPUs."""
    if request.gpus is not None:
        return request.gpus
    there = partition.gpus if partition and partition.gpus is not None else cluster.gpus_per_node
    return 1 if (there or request.gpu_type) and request.ranks is None else 0


def _rule(request: Resources, cluster: Cluster) -> Gpu | None:
    """What goes with a GPU of the type that is asked for, or of the only one that is described."""
    if request.gpu_type is None and len(cluster.gpus) == 1:
        return next(iter(cluster.gpus.values()))
    return cluster.gpus.get(request.gpu_type or "")


def _cpus(request: Resources, cluster: Cluster, partition: Partition | None, rule: Gpu | None, units: int) -> int:
    """Where nobody said how many each has, no more than a node has: ranks at home may share them."""
    if request.cpus is not None:
        return request.cpus * units
    usual = rule.cpus if rule and rule.cpus is not None else CPUS
    known = (partition.cpus if partition else None) or cluster.cpus_per_node
    return min(usual * units, known) if known else usual * units


def _memory(
    request: Resources, cluster: Cluster, partition: Partition | None, rule: Gpu | None, units: int, *, cpus: int
) -> int | None:
    """MiB per node; 0 is all. A whole node comes with its memory."""
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
    """An hour by default on a cluster, or what the partition allows where that is less."""
    if request.time is not None or schedulers.traits(cluster.scheduler).is_this_machine:
        return request.time
    return min([TIME_SECONDS, *_limits(cluster, partition)])


def longest(request: Resources, cluster: Cluster) -> int | None:
    """The longest time that a job may have where it is to queue; None where that is not known."""
    return min(_limits(cluster, limits.partition_of(request.partition, cluster)), default=None)


def _limits(cluster: Cluster, partition: Partition | None) -> list[int]:
    return [limit for limit in (cluster.max_time, partition.time if partition else None) if limit]
