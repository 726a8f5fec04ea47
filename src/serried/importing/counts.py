"""What a script asks for and how many ranks it starts -> Serried's `resources`. Pure, like `serried.planning`."""

from __future__ import annotations

from dataclasses import dataclass

from serried.importing.report import Asked


@dataclass(frozen=True)
class Started:
    """How many processes a launcher starts. What is None it takes from the job."""

    ranks: int | None = None
    """On each node."""
    total: int | None = None
    nodes: int | None = None
    per_gpu: bool = False
    """One for each GPU."""
    one: bool = False
    """A program started by nothing: one process, on the first node."""
    gpus: int | None = None
    """As many as the program was let see, of those that the job has on a node."""


@dataclass(frozen=True)
class Counted:
    nodes: int
    gpus: int
    """On each node."""
    ranks: int
    """On each node."""
    cpus: int | None
    """Per GPU, or per rank without GPUs; None where the script does not ask for any."""
    notes: tuple[str, ...]


def nodes_of(asked: Asked) -> int:
    if asked.nodes:
        return asked.nodes
    if asked.tasks and asked.tasks_per_node:
        return -(-asked.tasks // asked.tasks_per_node)
    if asked.gpus and asked.gpus_per_node:
        return -(-asked.gpus // asked.gpus_per_node)
    return 1


def gpus_of(asked: Asked) -> int:
    """On each node."""
    if asked.gpus_per_node:
        return asked.gpus_per_node
    if asked.gpus:
        return -(-asked.gpus // nodes_of(asked))
    if asked.gpus_per_task:
        return asked.gpus_per_task * _plain_tasks(asked)
    return 0


def tasks_of(asked: Asked) -> int:
    """On each node, as the scheduler counts them."""
    if asked.tasks_per_gpu and not (asked.tasks or asked.tasks_per_node):
        return asked.tasks_per_gpu * max(1, gpus_of(asked))
    return _plain_tasks(asked)


def _plain_tasks(asked: Asked) -> int:
    if asked.tasks_per_node:
        return asked.tasks_per_node
    return -(-asked.tasks // nodes_of(asked)) if asked.tasks else 1


def cpus_of(asked: Asked) -> int:
    """On each node."""
    if asked.cpus_per_node:
        return asked.cpus_per_node
    if asked.cpus_per_gpu and gpus_of(asked):
        return asked.cpus_per_gpu * gpus_of(asked)
    return (asked.cpus_per_task or 1) * tasks_of(asked)


def count(asked: Asked, started: Started) -> Counted:
    notes = []
    nodes, gpus = started.nodes or nodes_of(asked), gpus_of(asked)
    if started.one and nodes > 1:
        notes.append(f"it asked for {nodes} nodes, and its program ran on the first alone: one is asked for")
        nodes = 1
    if not started.one and nodes < nodes_of(asked):
        notes.append(f"it asked for {nodes_of(asked)} nodes, and its launcher was told {nodes}: so many are asked for")
    ranks = _ranks(asked, started, nodes)
    if ranks > 1 and asked.nodes is None and (asked.tasks or 1) > 1 and nodes == 1 and not asked.tasks_per_node:
        notes.append(f"Slurm could spread its {asked.tasks} tasks over several nodes: here they share one")
    cpus_there = cpus_of(asked)
    if started.total and not gpus and ranks < tasks_of(asked):  # one of several steps: its tasks have their share
        cpus_there = (asked.cpus_per_task or 1) * ranks
    units = gpus or ranks
    cpus = -(-cpus_there // units)
    if cpus_there % units and cpus_there > tasks_of(asked):
        each = "GPU" if gpus else "rank"
        notes.append(f"{cpus_there} CPUs on a node do not share out evenly: {cpus} for each {each}")
    if started.gpus and started.gpus < gpus:
        notes.append(f"its program was let see {started.gpus} of {gpus} GPUs: so many are asked for")
        gpus = started.gpus
    if gpus and gpus % ranks and ranks % gpus:
        notes.append(f"{gpus} GPUs cannot be shared evenly by {ranks} ranks, and `serried submit` will refuse that")
    is_said = asked.cpus_per_node or asked.cpus_per_task or asked.cpus_per_gpu or tasks_of(asked) > ranks
    return Counted(nodes, gpus, ranks, cpus if is_said else None, tuple(notes))


def _ranks(asked: Asked, started: Started, nodes: int) -> int:
    if started.one:
        return 1
    if started.ranks:
        return started.ranks
    if started.total:
        return -(-started.total // nodes)
    return gpus_of(asked) or 1 if started.per_gpu else tasks_of(asked)
