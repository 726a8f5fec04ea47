"""A launcher that was typed as the command: `torchrun train.py` is `python train.py`, started by torchrun. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath

from serried.errors import UsageError

RUN, OLD = "torch.distributed.run", "torch.distributed.launch"
SAID_BY_US = {
    "nproc-per-node": "`resources.ranks` says how many ranks there are on each node",
    "nnodes": "`resources.nodes` says how many nodes there are",
    "max-restarts": "`launch.max_restarts` says how often it may",
}
"""Options whose hint names a key of ours."""
MEETING = ("standalone", "node-rank", "rdzv-", "master-", "local-addr")
"""Options that say where ranks meet: Serried does."""
LOCAL_RANK = "--local-rank={local_rank}"


def torchrun(command: Sequence[str]) -> tuple[str, ...]:
    """The command of one rank. Raises UsageError where torchrun's own options say what Serried does."""
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
        rank = [*rank[:at], LOCAL_RANK, *rank[at:]]
    return tuple(rank)


def warnings(command: Sequence[str]) -> Iterator[str]:
    """What whoever typed it should know."""
    if len(command) > 2 and command[1:3] == ("-m", OLD):
        yield (
            f"`{OLD}` is deprecated by PyTorch: it is taken for torchrun, and the script still gets `--local-rank`; "
            "read LOCAL_RANK there, and write `torchrun`"
        )


def _split(command: Sequence[str]) -> tuple[str | None, list[str]]:
    """The Python that a typed torchrun would run, and torchrun's arguments; None where it is none."""
    program = PurePosixPath(command[0])
    if program.name == "torchrun":
        return (str(program.parent / "python") if "/" in command[0] else "python"), list(command[1:])
    if program.name.startswith("python") and len(command) > 2 and command[1] == "-m" and command[2] in (RUN, OLD):
        return command[0], list(command[3:])
    return None, []


def _refusal(word: str, option: str) -> UsageError:
    name = option.partition("=")[0]
    hint = SAID_BY_US.get(name)
    if hint is None and name.startswith(MEETING):
        hint = "leave it out: Serried knows the nodes and keeps a port for them"
    if hint is None:
        hint = "further options of torchrun's go into `launch.options`"
    return UsageError(f"`{word}` in the command is an option of torchrun's, which Serried starts", hint=hint)
