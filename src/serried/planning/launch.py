"""What starts the ranks, and which pairs of launcher, command and cluster cannot be. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from serried import schedulers
from serried.errors import UsageError
from serried.plan.model import Allocation, Launch
from serried.planning import launch_programs, unwrap_torchrun

if TYPE_CHECKING:
    from serried import config
    from serried.plan.model import Plan

OF_A_CLUSTER = ("srun", "mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun", "aprun", "jsrun", "pbsdsh")
"""Programs that start others on all nodes of a job."""
DOUBLES = ("torchrun", "accelerate", "deepspeed", "horovodrun")
"""Programs that start ranks, each of them its own."""
SPANNING = frozenset(("--nnodes", "--num-machines", "--hostfile"))
"""Their options that say there are several nodes."""
ELASTIC = ("--min-np", "--max-np", "--min-num-proc", "--max-num-proc", "--host-discovery-script")
"""Options of horovodrun's."""


def words(experiment: config.Experiment, command: Sequence[str]) -> tuple[str, ...]:
    """What one rank runs: the command, without the launcher that it may have been typed with. Raises UsageError."""
    is_typed = experiment.launch.kind == "torchrun" and not experiment.shell and command
    return unwrap_torchrun.torchrun(command) if is_typed else tuple(command)


def launch(experiment: config.Experiment, cluster: config.Cluster, allocation: Allocation) -> tuple[Launch, Allocation]:
    """The launcher, and the allocation as it needs it. Raises UsageError for a pair that cannot be."""
    asked = experiment.launch
    made = asked._replace(kind=asked.kind or _usual(asked, allocation))
    if made.kind == "single":
        allocation = _single(experiment.resources.ranks, allocation)
    _check_gpus(made, allocation)
    _check_options(made, allocation)
    _check_command(made, experiment, experiment.command, allocation)
    _check_scheduler(made, cluster)
    if made.kind == "horovodrun":
        _check_horovodrun(made, experiment)
    return made, allocation


def elements(experiment: config.Experiment, plan: Plan, each: Iterable[Sequence[str]]) -> Iterator[tuple[str, ...]]:
    """What the ranks of each element of an array run, given their commands. Raises UsageError as `launch` does."""
    for index, command in zip(plan.array.indices if plan.array else (), each, strict=True):
        try:
            _check_command(plan.launch, experiment, command, plan.allocation)
            yield words(experiment, command)
        except UsageError as error:
            raise UsageError(f"task {index}: {error.message}", hint=error.hint) from None


def _usual(asked: Launch, allocation: Allocation) -> str:
    """One process on CPUs is started as by hand: programs take RANK for a request to be distributed, over NCCL say."""
    is_one = allocation.nodes * allocation.ranks == 1 and not allocation.gpus
    return "single" if is_one and not asked.tf_config else "agent"


def _single(ranks: int | None, allocation: Allocation) -> Allocation:
    """One process, for all the GPUs of a node."""
    if allocation.nodes > 1:
        raise UsageError(
            f'`launch.kind = "single"` is one process, and {allocation.nodes} nodes were asked for',
            hint="DataParallel and its like see the GPUs of one node: --nodes 1, or DistributedDataParallel and a rank "
            "for each GPU",
        )
    if ranks is not None and ranks > 1:
        raise UsageError(
            f'`launch.kind = "single"` is one process, and {ranks} ranks were asked for',
            hint="leave `ranks` out: it sees all GPUs of its node",
        )
    return allocation._replace(ranks=1)


def _check_gpus(made: Launch, allocation: Allocation) -> None:
    """A training has a GPU for each rank; what speaks MPI may share them."""
    ranks, gpus = allocation.ranks, allocation.gpus
    if 0 < gpus < ranks and made.kind not in ("mpirun", "srun"):
        raise UsageError(
            f"{ranks} ranks on each node were asked for, and {gpus} GPU{'s' if gpus > 1 else ''}: some would have none",
            hint="leave `ranks` out for one per GPU; `gpus = 0` for ranks that need none",
        )


def _check_options(made: Launch, allocation: Allocation) -> None:
    if made.max_restarts and made.kind != "torchrun":
        raise UsageError(
            "`launch.max_restarts` is torchrun's",
            hint='`launch.kind = "torchrun"`, or `limit.restarts` for further attempts of the whole run',
        )
    if made.options and made.kind in ("agent", "single", "horovod"):
        raise UsageError(f"`launch.options` are a launcher's, and with `{made.kind}` there is none")
    if made.tf_config and made.kind == "torchrun":
        raise UsageError(
            "torchrun numbers nodes as they come, and `launch.tf_config` is written before",
            hint="TensorFlow needs no torchrun: leave `launch.kind` out",
        )
    split = next((option for option in allocation.extra if option.partition("=")[0] == "--gpus-per-task"), None)
    if split:
        raise UsageError(
            f"`{split}` hides the GPUs of a node from each other's ranks",
            hint="leave it out: ranks see all GPUs of their node, and take the one of their LOCAL_RANK",
        )


def _check_command(made: Launch, experiment: config.Experiment, command: Sequence[str], allocation: Allocation) -> None:
    is_typed = words(experiment, command) != tuple(command)
    for started in launch_programs.started(command, is_shell=experiment.shell):
        _check_program(made, started, allocation, is_typed=is_typed)


def _check_program(made: Launch, started: launch_programs.Command, allocation: Allocation, *, is_typed: bool) -> None:
    program = launch_programs.name_of(started)
    ranks = allocation.nodes * allocation.ranks
    if program in OF_A_CLUSTER and ranks > 1:
        raise UsageError(
            f"the command starts `{program}`, and each of {ranks} ranks would do so anew",
            hint=f"give the command alone; `launch.kind` says what starts it{_instead(program)}",
        )
    if program == made.kind and not is_typed:
        raise UsageError(
            f"`{program}` is named twice: each rank that it starts would start it anew",
            hint="give what each rank runs alone, `python train.py`; further options go into `launch.options`",
        )
    if program in DOUBLES and made.kind not in ("single", program) and ranks > 1 and not _spans(started, allocation):
        raise UsageError(
            f"`{program}` starts ranks of its own, and {ranks} ranks would each start it",
            hint=f"`--launch {program}`, or `--launch single` to start it once with its own options",
        )


def _spans(started: launch_programs.Command, allocation: Allocation) -> bool:
    """Whether one on each node is what was meant: it is told of several."""
    told = {word.partition("=")[0].replace("_", "-") for word in started}
    return allocation.ranks == 1 and bool(told & SPANNING)


def _instead(program: str) -> str:
    return f": --launch {program}" if program in ("srun", "mpirun") else ""


def _check_scheduler(made: Launch, cluster: config.Cluster) -> None:
    owner, its = schedulers.owner(made.kind), schedulers.traits(cluster.scheduler)
    if owner and owner != its:
        where = its.title if its.is_this_machine else f"cluster `{cluster.name}` ({cluster.scheduler})"
        raise UsageError(
            f'`launch.kind = "{made.kind}"` needs {owner.title}, and {where} has none',
            hint="`agent`, the default, sets the same ranks up everywhere",
        )


def _check_horovodrun(made: Launch, experiment: config.Experiment) -> None:
    if experiment.container.image:
        raise UsageError(
            "`horovodrun` is in the container, and would have to start ranks outside of it",
            hint="`--launch horovod`: the agents start Horovod's ranks, which need nothing outside",
        )
    elastic = next((option for option in made.options if option.partition("=")[0] in ELASTIC), None)
    if elastic:
        raise UsageError(
            f"`{elastic}` lets Horovod change how many ranks there are, and the plan says it",
            hint="`limit.restarts` begins another attempt after a failure",
        )
