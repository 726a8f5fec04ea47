"""What an experiment asks for, on a cluster -> what the scheduler is asked for. Pure, and the only place that counts.

N nodes, G GPUs per node, c CPUs per GPU and m memory per GPU; without GPUs, per rank. One task per node
owns everything there, so CPUs and memory are rendered per node.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from serried.errors import UsageError, did_you_mean

if TYPE_CHECKING:  # who only reads plans must not pay for the definitions
    from serried.config.definitions import Cluster, Partition, Resources

CPUS = 2
"""Per GPU, or per rank."""
MEMORY_MB = 10 * 1024
"""Per GPU, or per rank."""
TIME_SECONDS = 3600
ALL = 0
"""Memory: all that a node has."""


@dataclass(frozen=True)
class Allocation:
    """What the scheduler is asked for. One Slurm task per node owns everything on that node."""

    nodes: int
    ranks: int
    """Ranks per node."""
    gpus: int
    """GPUs per node; 0 on CPU clusters."""
    cpus: int
    """CPUs per node."""
    memory_mb: int | None
    """Memory per node in MiB; 0 is all of it; None leaves it to the cluster."""
    time_seconds: int | None
    """Walltime limit; None is no limit of ours."""
    gpu_type: str | None = None
    account: str | None = None
    partition: str | None = None
    qos: str | None = None
    reservation: str | None = None
    constraint: tuple[str, ...] = ()
    """Every one must hold: joined by `&`."""
    licenses: tuple[str, ...] = ()
    exclusive: bool = False
    comment: str | None = None
    mail_user: str | None = None
    mail_type: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()
    """Options for the scheduler's submit command, as they are."""


def allocate(request: Resources, cluster: Cluster) -> Allocation:
    """Fill in what was left out, and refuse what the cluster is known not to have.

    Raises UsageError with a hint for what cannot be.
    """
    name = request.partition or cluster.default_partition
    partition = _partition(request.partition, cluster)
    nodes = request.nodes or 1
    gpus = _gpus(request, cluster, partition)
    ranks = request.ranks or gpus or 1
    units = gpus or ranks
    cpus = _cpus(request, cluster, units)
    allocation = Allocation(
        nodes=nodes,
        ranks=ranks,
        gpus=gpus,
        cpus=cpus,
        memory_mb=_memory(request, cluster, units, cpus),
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
    _check_nodes(nodes, cluster, partition, name)
    _check_gpus(allocation, cluster, partition, name)
    _check_cpus(cpus, cluster)
    # A QoS may allow more than its partition does, and only Slurm knows.
    _check_time(allocation.time_seconds, cluster, None if request.qos else partition, name)
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


def _partition(name: str | None, cluster: Cluster) -> Partition | None:
    """What is known of the partition. Slurm takes several, `a,b`: then nothing is, and Slurm judges."""
    if name is None:
        return cluster.partitions.get(cluster.default_partition or "")
    if "," in name or not cluster.partitions:
        return None
    if name not in cluster.partitions:
        hint = did_you_mean(name, cluster.partitions) or f"there are {_listed(cluster.partitions)}"
        raise UsageError(f"partition `{name}` does not exist on cluster `{cluster.name}`", hint=hint)
    return cluster.partitions[name]


def _gpus(request: Resources, cluster: Cluster, partition: Partition | None) -> int:
    """One by default where there are GPUs; none for who asked for ranks alone, and so for CPUs."""
    if request.gpus is not None:
        return request.gpus
    there = partition.gpus if partition and partition.gpus is not None else cluster.gpus_per_node
    return 1 if (there or request.gpu_type) and request.ranks is None else 0


def _cpus(request: Resources, cluster: Cluster, units: int) -> int:
    """Ranks at home may share CPUs when nobody said how many each has."""
    if request.cpus is not None:
        return request.cpus * units
    if cluster.scheduler == "local" and cluster.cpus_per_node:
        return min(CPUS * units, cluster.cpus_per_node)
    return CPUS * units


def _memory(request: Resources, cluster: Cluster, units: int, cpus: int) -> int | None:
    """MiB per node; 0 is all. A whole node comes with its memory."""
    if request.mem is not None:
        return request.mem * units
    if request.mem_per_node is not None:
        return request.mem_per_node
    if request.mem_per_cpu is not None:
        return request.mem_per_cpu * cpus
    if cluster.scheduler == "local":
        return None
    return ALL if request.exclusive else MEMORY_MB * units


def _time(request: Resources, cluster: Cluster, partition: Partition | None) -> int | None:
    """An hour by default on a cluster, or what the partition allows where that is less."""
    if request.time is not None or cluster.scheduler == "local":
        return request.time
    longest = [limit for limit in (cluster.max_time, partition.time if partition else None) if limit]
    return min([TIME_SECONDS, *longest])


def _check_nodes(nodes: int, cluster: Cluster, partition: Partition | None, name: str | None) -> None:
    if cluster.scheduler == "local" and nodes > 1:
        hint = "ask for more ranks or GPUs on it, or name a cluster with --cluster"
        raise UsageError(f"this machine is one node, and {nodes} were asked for", hint=hint)
    if partition and partition.nodes is not None and nodes > partition.nodes:
        message = f"{nodes} nodes were asked for and partition `{name}` gives {partition.nodes}"
        raise UsageError(message, hint=f"ask for at most {partition.nodes}")


def _check_gpus(asked: Allocation, cluster: Cluster, partition: Partition | None, name: str | None) -> None:
    if asked.gpus and asked.gpus % asked.ranks and asked.ranks % asked.gpus:
        hint = "give each rank the same number of GPUs, or each GPU the same number of ranks"
        raise UsageError(f"{asked.gpus} GPUs cannot be shared evenly by {asked.ranks} ranks", hint=hint)
    is_local = cluster.scheduler == "local"
    node = "this machine" if is_local else f"a node of cluster `{cluster.name}`"
    if cluster.gpus_per_node is not None and asked.gpus > cluster.gpus_per_node:
        raise _too_many_gpus(asked, cluster.gpus_per_node, node, one_node=is_local)
    if partition and partition.gpus is not None and asked.gpus > partition.gpus:
        raise _too_many_gpus(asked, partition.gpus, f"a node of partition `{name}`", one_node=False)
    if asked.gpu_type and cluster.gpu_types and asked.gpu_type not in cluster.gpu_types:
        hint = did_you_mean(asked.gpu_type, cluster.gpu_types) or f"there are {_listed(cluster.gpu_types)}"
        raise UsageError(f"there is no GPU of type `{asked.gpu_type}` on cluster `{cluster.name}`", hint=hint)


def _check_cpus(cpus: int, cluster: Cluster) -> None:
    if cluster.scheduler != "local" and cluster.cpus_per_node and cpus > cluster.cpus_per_node:
        message = f"{cpus} CPUs per node were asked for and cluster `{cluster.name}` has {cluster.cpus_per_node}"
        raise UsageError(message, hint="`cpus` counts per GPU, or per rank without GPUs")


def _too_many_gpus(asked: Allocation, there: int, node: str, *, one_node: bool) -> UsageError:
    if not there:
        return UsageError(f"GPUs were asked for and {node} has none", hint="for CPUs alone: --gpus 0 --ranks 4")
    nodes = -(-asked.nodes * asked.gpus // there)
    hint = f"--gpus {there}" if one_node else f"--nodes {nodes} --gpus {there}"
    return UsageError(f"{asked.gpus} GPUs per node were asked for and {node} has {there}", hint=hint)


def _check_time(seconds: int | None, cluster: Cluster, partition: Partition | None, name: str | None) -> None:
    if seconds is None:
        return
    if cluster.max_time and seconds > cluster.max_time:
        message = f"a time limit of {clock(seconds)} is over what cluster `{cluster.name}` allows"
        raise UsageError(message, hint=f"at most {clock(cluster.max_time)}")
    if partition and partition.time and seconds > partition.time:
        longer = [other for other, known in cluster.partitions.items() if known.time is None or known.time >= seconds]
        instead = f"; {_listed(longer)} would allow it" if longer else ""
        message = f"a time limit of {clock(seconds)} is over what partition `{name}` allows"
        raise UsageError(message, hint=f"at most {clock(partition.time)}{instead}")


def clock(seconds: int) -> str:
    """Seconds as Slurm writes them: `2-00:00:00`, `1:30:00`."""
    days, rest = divmod(seconds, 86400)
    hours, rest = divmod(rest, 3600)
    tail = f"{rest // 60:02}:{rest % 60:02}"
    return f"{days}-{hours:02}:{tail}" if days else f"{hours}:{tail}"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
