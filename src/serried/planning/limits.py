"""What a cluster is known not to allow, said before anything is submitted, with the ways out. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from serried import schedulers
from serried.config.values import show_memory
from serried.errors import UsageError, did_you_mean
from serried.plan.model import ALL, Allocation, whom_to_ask
from serried.protocol.times import show_duration, show_walltime

if TYPE_CHECKING:  # who only reads plans must not pay for the definitions
    from serried.config.definitions import Cluster, Partition, Resources


def partition_of(name: str | None, cluster: Cluster) -> Partition | None:
    """What is known of the partition. Slurm takes several, `a,b`: then nothing is, and Slurm judges."""
    if name is None:
        return cluster.partitions.get(cluster.default_partition or "")
    if "," in name or not cluster.partitions:
        return None
    if name not in cluster.partitions and not cluster.knows_partitions:
        return None
    if name not in cluster.partitions:
        hint = did_you_mean(name, cluster.partitions) or there_are(cluster.partitions)
        raise UsageError(f"partition `{name}` does not exist on cluster `{cluster.name}`", hint=hint)
    return cluster.partitions[name]


def check(asked: Allocation, request: Resources, cluster: Cluster, partition: Partition | None) -> None:
    """Refuse what cannot be. Raises UsageError with the ways out, and whom to ask."""
    name = request.partition or cluster.default_partition
    _check_shares(asked)
    try:
        _check_account(asked, cluster)
        _check_nodes(asked, cluster, partition, name)
        _check_gpus(asked, cluster, partition, name)
        _check_rest(asked, cluster, partition, name)
        # A QoS may allow more than its partition does, and only Slurm knows.
        _check_time(asked, cluster, None if request.qos else partition, name)
    except UsageError as error:
        error.hint = "\n".join(filter(None, (error.hint, whom_to_ask(cluster.contact, cluster.docs))))
        raise


def _check_shares(asked: Allocation) -> None:
    if asked.gpus and asked.gpus % asked.ranks and asked.ranks % asked.gpus:
        hint = "give each rank the same number of GPUs, or each GPU the same number of ranks"
        raise UsageError(f"{asked.gpus} GPUs cannot be shared evenly by {asked.ranks} ranks", hint=hint)


def _check_account(asked: Allocation, cluster: Cluster) -> None:
    if cluster.needs_account and not asked.account:
        like = f", which looks like {listed(cluster.accounts, 'or')}" if cluster.accounts else ""
        hint = f"--account NAME{like}; or `account` in `[clusters.{cluster.name}.resources]`, once for all"
        raise UsageError(f"jobs on cluster `{cluster.name}` must name an account", hint=hint)


def _check_nodes(asked: Allocation, cluster: Cluster, partition: Partition | None, name: str | None) -> None:
    nodes = asked.nodes
    if schedulers.traits(cluster.scheduler).is_this_machine and nodes > 1:
        hint = (
            "here: --nodes 1, or `nodes = 1` in `[experiments.NAME.on.local.resources]`; "
            "on a cluster: serried submit --cluster NAME"
        )
        raise UsageError(f"this machine is one node, and {nodes} were asked for", hint=hint)
    if partition and partition.nodes is not None and nodes > partition.nodes:
        message = f"{nodes} nodes were asked for and partition `{name}` gives {partition.nodes}"
        raise UsageError(message, hint=f"ask for at most {partition.nodes}{_instead(asked, cluster)}")


def _check_gpus(asked: Allocation, cluster: Cluster, partition: Partition | None, name: str | None) -> None:
    is_local = schedulers.traits(cluster.scheduler).is_this_machine
    node = "this machine" if is_local else f"a node of cluster `{cluster.name}`"
    if cluster.gpus_per_node is not None and asked.gpus > cluster.gpus_per_node:
        raise _too_many_gpus(asked, cluster.gpus_per_node, node, one_node=is_local)
    if partition and partition.gpus is not None and asked.gpus > partition.gpus:
        raise _too_many_gpus(asked, partition.gpus, f"a node of partition `{name}`", one_node=False)
    total = asked.nodes * asked.gpus
    if partition and partition.total_gpus is not None and total > partition.total_gpus:
        message = f"{total} GPUs were asked for in all and partition `{name}` gives {partition.total_gpus} to a job"
        raise UsageError(message, hint=f"ask for at most {partition.total_gpus}{_instead(asked, cluster)}")
    if asked.gpu_type and cluster.gpu_types and asked.gpu_type not in cluster.gpu_types:
        hint = did_you_mean(asked.gpu_type, cluster.gpu_types) or there_are(cluster.gpu_types)
        raise UsageError(f"there is no GPU of type `{asked.gpu_type}` on cluster `{cluster.name}`", hint=hint)


def _too_many_gpus(asked: Allocation, there: int, node: str, *, one_node: bool) -> UsageError:
    if not there:
        return UsageError(f"GPUs were asked for and {node} has none", hint="for CPUs alone: --gpus 0 --ranks 4")
    nodes = -(-asked.nodes * asked.gpus // there)
    hint = f"--gpus {there}" if one_node else f"--nodes {nodes} --gpus {there}"
    return UsageError(f"{asked.gpus} GPUs per node were asked for and {node} has {there}", hint=hint)


def _check_rest(asked: Allocation, cluster: Cluster, partition: Partition | None, name: str | None) -> None:
    """CPUs and memory. Ranks at home share what there is."""
    if schedulers.traits(cluster.scheduler).is_this_machine:
        return
    per_unit = "counts per GPU, or per rank without GPUs"
    if cluster.cpus_per_node and asked.cpus > cluster.cpus_per_node:
        message = f"{asked.cpus} CPUs per node were asked for and cluster `{cluster.name}` has {cluster.cpus_per_node}"
        raise UsageError(message, hint=f"`cpus` {per_unit}")
    if partition and partition.cpus and asked.cpus > partition.cpus:
        message = f"{asked.cpus} CPUs per node were asked for and a node of partition `{name}` has {partition.cpus}"
        raise UsageError(message, hint=f"`cpus` {per_unit}{_instead(asked, cluster)}")
    memory = asked.memory_mb or ALL
    if partition and partition.mem and memory > partition.mem:
        has = f"a node of partition `{name}` has {show_memory(partition.mem)}"
        raise UsageError(
            f"{show_memory(memory)} of memory per node were asked for and {has}",
            hint=f"`mem` {per_unit}{_instead(asked, cluster)}",
        )


def _check_time(asked: Allocation, cluster: Cluster, partition: Partition | None, name: str | None) -> None:
    seconds = asked.time_seconds
    if seconds is None:
        return
    asked_for = show_walltime(seconds)
    if cluster.max_time and seconds > cluster.max_time:
        message = f"{asked_for} were asked for and cluster `{cluster.name}` allows {show_walltime(cluster.max_time)}"
        raise UsageError(message, hint=_shorter(seconds, cluster.max_time))
    if partition and partition.time and seconds > partition.time:
        message = f"{asked_for} were asked for and partition `{name}` allows {show_walltime(partition.time)}"
        raise UsageError(message, hint=_shorter(seconds, partition.time, _instead(asked, cluster)))


def _shorter(seconds: int, longest: int, instead: str = "") -> str:
    links = -(-seconds // longest)
    spelled = show_duration(longest)
    return f"--time {spelled}{instead}; or a chain, if it saves checkpoints: --time {spelled} --chain {links}"


def _instead(asked: Allocation, cluster: Cluster) -> str:
    """`; --partition long allows it`: the partitions of which nothing is known that speaks against it."""
    others = [name for name, known in cluster.partitions.items() if _allows(known, asked)]
    flags = " or ".join(f"--partition {shlex.quote(name)}" for name in others)
    return f"; {flags} {'allows' if len(others) == 1 else 'allow'} it" if others else ""


def _allows(partition: Partition, asked: Allocation) -> bool:
    amounts = (
        (partition.time, asked.time_seconds),
        (partition.nodes, asked.nodes),
        (partition.gpus, asked.gpus),
        (partition.total_gpus, asked.nodes * asked.gpus),
        (partition.cpus, asked.cpus),
        (partition.mem, asked.memory_mb),
    )
    return all(limit is None or limit >= (amount or 0) for limit, amount in amounts)


def notes(asked: Allocation, cluster: Cluster, elements: int = 1, parallel: int | None = None) -> tuple[str, ...]:
    """What is allowed, and may still not be as the user thinks."""
    name = asked.partition or cluster.default_partition or ""
    known = cluster.partitions.get(name)
    at_once = min(elements, parallel or elements)
    if known is None or known.jobs is None or at_once <= known.jobs:
        return ()
    return (f"partition `{name}` runs {known.jobs} of your jobs at a time: the {elements} tasks take turns",)


def there_are(names: Collection[str]) -> str:
    return f"there {'are' if len(names) > 1 else 'is'} {listed(names)}"


def listed(names: Iterable[str], word: str = "") -> str:
    """`` `a`, `b` ``, or `` `a` or `b` ``."""
    *most, last = (f"`{name}`" for name in names)
    return ", ".join([*most, last]) if not word or not most else f"{', '.join(most)} {word} {last}"
