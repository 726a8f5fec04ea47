"""The launcher of the ranks, and combinations of launcher, command and cluster that are refused. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from serried import schedulers
from serried.base.errors import UsageError
from serried.config import shell_words
from serried.schema.launcher_env import MODULES
from serried.schema.names import PLACEHOLDERS
from serried.schema.plan import Allocation, Launch

if TYPE_CHECKING:
    from serried import config
    from serried.schema.plan import Plan

OF_A_CLUSTER = ("srun", "mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun", "aprun", "jsrun", "pbsdsh")
"""Programs that start others on all nodes of a job."""
DOUBLES = ("torchrun", "accelerate", "deepspeed", "horovodrun")
"""Programs that start ranks of their own."""
SPANNING = frozenset(("--nnodes", "--num-machines", "--hostfile"))
"""Their options for several nodes."""
ELASTIC = ("--min-np", "--max-np", "--min-num-proc", "--max-num-proc", "--host-discovery-script")
"""Options of horovodrun."""
_ITS_NUMBER = re.compile(r"\b(?:LOCAL_)?RANK\b|\bSLURM_(?:PROC|LOCAL)ID\b|\{(?:local_)?rank\}")
"""A text that contains a rank's number may start its commands in one rank only."""
RUN, OLD = "torch.distributed.run", "torch.distributed.launch"
OUR_KEYS = {
    "nproc-per-node": "`resources.ranks` is the number of ranks on each node",
    "nnodes": "`resources.nodes` is the number of nodes",
    "max-restarts": "`launch.max_restarts` is the number of restarts",
}
"""Torchrun's options that are keys of Serried, with a hint."""
MEETING = ("standalone", "node-rank", "rdzv-", "master-", "local-addr")
"""Options about the rendezvous, which Serried sets up."""
_IN_BRACES = re.compile(r"(?<!\{)\{([a-z][a-z_]+)\}(?!\})")


def words(experiment: config.Experiment, command: Sequence[str]) -> tuple[str, ...]:
    """The command of one rank: without `torchrun` in front, if torchrun is the launcher. Raises UsageError."""
    is_typed = experiment.launch.kind == "torchrun" and not (experiment.shell or experiment.script) and command
    return _without_torchrun(command) if is_typed else tuple(command)


def launch(experiment: config.Experiment, cluster: config.Cluster, allocation: Allocation) -> tuple[Launch, Allocation]:
    """The launcher, and the allocation that the launcher needs. Raises UsageError for impossible combinations."""
    if experiment.script:
        return Launch("script"), allocation
    chosen = experiment.launch._replace(kind=experiment.launch.kind or _usual(allocation))
    if chosen.kind == "single":
        allocation = _single(experiment.resources.ranks, allocation)
    _check_gpus(chosen, allocation)
    _check_options(chosen, allocation)
    _check_command(chosen, experiment, experiment.command, allocation)
    _check_scheduler(chosen, cluster)
    if chosen.kind == "horovodrun":
        _check_horovodrun(chosen, experiment)
    return chosen, allocation


def tasks(experiment: config.Experiment, plan: Plan, each: Iterable[Sequence[str]]) -> Iterator[tuple[str, ...]]:
    """The ranks' command for each task of an array. Raises UsageError as `launch` does."""
    for index, command in zip(plan.array.indices if plan.array else (), each, strict=True):
        try:
            _check_command(plan.launch, experiment, command, plan.allocation)
            yield words(experiment, command)
        except UsageError as error:
            raise UsageError(f"task {index}: {error.message}", hint=error.hint) from None


def _usual(allocation: Allocation) -> str:
    """One process on CPUs starts as by hand: many programs take RANK for a request to train over NCCL."""
    return "single" if allocation.nodes * allocation.ranks == 1 and not allocation.gpus else "agent"


def _single(ranks: int | None, allocation: Allocation) -> Allocation:
    """One process for all GPUs of a node."""
    if allocation.nodes > 1:
        raise UsageError(
            f'`launch.kind = "single"` is one process, and {allocation.nodes} nodes were requested',
            hint="pass `--nodes 1` for DataParallel, or use DistributedDataParallel with one rank per GPU",
        )
    if ranks is not None and ranks > 1:
        raise UsageError(
            f'`launch.kind = "single"` is one process, and {ranks} ranks were requested',
            hint="leave `ranks` out: the process sees all GPUs of its node",
        )
    return allocation._replace(ranks=1)


def _check_gpus(launch: Launch, allocation: Allocation) -> None:
    """A training has a GPU for each rank. MPI programs may share GPUs."""
    ranks, gpus = allocation.ranks, allocation.gpus
    if 0 < gpus < ranks and launch.kind not in ("mpirun", "srun"):
        raise UsageError(
            f"{ranks} ranks and {gpus} GPU{'s' if gpus > 1 else ''} on each node: some ranks would have no GPU",
            hint="leave `ranks` out for one rank per GPU, or set `gpus = 0` for ranks without GPUs",
        )


def _check_options(launch: Launch, allocation: Allocation) -> None:
    if launch.max_restarts and launch.kind != "torchrun":
        raise UsageError(
            "`launch.max_restarts` is an option of torchrun",
            hint='set `launch.kind = "torchrun"`, or `limit.restarts` for further attempts of the whole run',
        )
    if launch.options and launch.kind in ("agent", "single"):
        raise UsageError(f"`launch.options` are for a launcher, and `{launch.kind}` starts ranks without one")
    split = next((option for option in allocation.extra if option.partition("=")[0] == "--gpus-per-task"), None)
    if split:
        raise UsageError(
            f"`{split}` hides the GPUs of a node from its other ranks",
            hint="remove the option: ranks see all GPUs of their node and use the GPU of their LOCAL_RANK",
        )


def _check_command(
    launch: Launch, experiment: config.Experiment, command: Sequence[str], allocation: Allocation
) -> None:
    is_typed = words(experiment, command) != tuple(command)
    for started in _started(command, is_shell=experiment.shell):
        _check_program(launch, started, allocation, is_typed=is_typed)


def _check_program(launch: Launch, started: Sequence[str], allocation: Allocation, *, is_typed: bool) -> None:
    program = _program_of(started)
    ranks = allocation.nodes * allocation.ranks
    if program in OF_A_CLUSTER and ranks > 1:
        instead = f": --launch {program}" if program in ("srun", "mpirun") else ""
        raise UsageError(
            f"the command starts `{program}`, and each of {ranks} ranks would start `{program}` again",
            hint=f"pass only the rank's command; `launch.kind` selects the launcher{instead}",
        )
    if program == launch.kind and not is_typed:
        raise UsageError(
            f"`{program}` is both launcher and command: each rank would start `{program}` again",
            hint="pass only the rank's command, such as `python train.py`; put launcher options in `launch.options`",
        )
    if program in DOUBLES and launch.kind not in ("single", program) and ranks > 1 and not _spans(started, allocation):
        once = f"`--launch single` to start `{program}` once with its own options"
        otherwise = once if allocation.nodes == 1 else f"submit a job script that calls `{program}`"
        raise UsageError(
            f"`{program}` starts ranks of its own, and {ranks} ranks would each start `{program}`",
            hint=f"{_without_launcher(program, started)}, or {otherwise}",
        )


def _without_launcher(program: str, started: Sequence[str]) -> str:
    """Programs for accelerate and deepspeed find the ranks that agents start, by torchrun's variables."""
    if program == "torchrun":
        return "`--launch torchrun`"
    script = next((word for word in started if word.endswith(".py")), "train.py")
    launcher = "--launch horovodrun " if program == "horovodrun" else ""
    return f"leave `{program}` and its options out: `{launcher}-- python {script} …`"


def _spans(started: Sequence[str], allocation: Allocation) -> bool:
    """The command is meant to start once on each node: its options name several nodes."""
    options = {word.partition("=")[0].replace("_", "-") for word in started}
    return allocation.ranks == 1 and bool(options & SPANNING)


def _check_scheduler(launch: Launch, cluster: config.Cluster) -> None:
    owner, its = schedulers.owner(launch.kind), schedulers.traits(cluster.scheduler)
    if owner and owner != its:
        where = its.title if its.is_this_machine else f"cluster `{cluster.name}` ({cluster.scheduler})"
        raise UsageError(
            f'`launch.kind = "{launch.kind}"` needs {owner.title}, and {where} does not have {owner.title}',
            hint="`agent`, the default, starts the same ranks everywhere",
        )


def _check_horovodrun(launch: Launch, experiment: config.Experiment) -> None:
    if experiment.container.image:
        raise UsageError(
            "`horovodrun` in a container cannot start ranks outside the container",
            hint="`--launch mpirun`, if Horovod is built with MPI; on one node, `--launch single -- horovodrun -np …`",
        )
    elastic = next((option for option in launch.options if option.partition("=")[0] in ELASTIC), None)
    if elastic:
        raise UsageError(
            f"`{elastic}` lets Horovod change the number of ranks, which the plan fixes",
            hint="`limit.restarts` starts another attempt after a failure",
        )


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


def _program_of(command: Sequence[str]) -> str:
    """The program's name, which for `python -m torch.distributed.run` is `torchrun`."""
    name = PurePosixPath(command[0]).name
    if name.startswith("python") and len(command) > 2 and command[1] == "-m":
        return MODULES.get(command[2], name)
    return name


def _in(text: str) -> Iterator[tuple[str, ...]]:
    from serried.config.shell_script import certain  # few commands need the reader of scripts

    if _ITS_NUMBER.search(text):
        return
    for command in certain(text):
        yield from _started(command)


def _without_torchrun(command: Sequence[str]) -> tuple[str, ...]:
    """`python train.py` of `torchrun train.py`. Raises UsageError for options of torchrun that Serried sets."""
    python, words = _split(command)
    if python is None:
        return tuple(command)
    is_module, is_program, uses_variables = False, False, OLD not in command[:3]
    while words and words[0].startswith("-"):
        option = words[0].lstrip("-").replace("_", "-")
        if option in ("m", "module"):
            is_module = True
        elif option == "no-python":
            is_program = True
        elif option == "use-env":
            uses_variables = True
        else:
            raise _refusal(words[0], option)
        words = words[1:]
    if not words:
        raise UsageError(f"`{' '.join(command)}` names no script", hint="for example `torchrun train.py`")
    rank = words if is_program else [python, *(["-m"] if is_module else []), *words]
    if not uses_variables:
        at = len(rank) - len(words) + 1
        rank = [*rank[:at], "--local-rank={local_rank}", *rank[at:]]
    return tuple(rank)


def warnings(command: Sequence[str]) -> Iterator[str]:
    """Warn of a deprecated launcher and of mistyped placeholders: `{resutls}` would reach the program unchanged."""
    if tuple(command[1:3]) == ("-m", OLD):
        yield (
            f"PyTorch deprecates `{OLD}`: Serried runs torchrun, and the script still gets `--local-rank`; "
            "read LOCAL_RANK in the script, and write `torchrun`"
        )
    for name in dict.fromkeys(name for word in command for name in _IN_BRACES.findall(word)):
        import difflib

        near = difflib.get_close_matches(name, PLACEHOLDERS, n=1, cutoff=0.75)
        if near and name not in PLACEHOLDERS:
            yield f"`{{{name}}}` in the command is not a placeholder: did you mean `{{{near[0]}}}`?"


def _split(command: Sequence[str]) -> tuple[str | None, list[str]]:
    """The Python that torchrun would run, and torchrun's arguments; None for another program."""
    program = PurePosixPath(command[0])
    if program.name == "torchrun":
        return (str(program.parent / "python") if "/" in command[0] else "python"), list(command[1:])
    if program.name.startswith("python") and len(command) > 2 and command[1] == "-m" and command[2] in (RUN, OLD):
        return command[0], list(command[3:])
    return None, []


def _refusal(word: str, option: str) -> UsageError:
    name = option.partition("=")[0]
    hint = OUR_KEYS.get(name)
    if hint is None and name.startswith(MEETING):
        hint = "remove the option: Serried knows the nodes and reserves a port"
    if hint is None:
        hint = "`launch.options` takes further options of torchrun"
    return UsageError(f"`{word}` in the command is an option of torchrun, which Serried starts", hint=hint)
