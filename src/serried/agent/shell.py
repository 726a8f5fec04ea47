"""A shell, or one command, with what a rank finds: on the first node of its own job, or beside a run's ranks."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import sys
import time
from pathlib import Path
from typing import Dict, List, Optional, Tuple

from serried.agent import system
from serried.agent.attempt import Attempt, run_directory, set_umask
from serried.agent.comms import rendezvous
from serried.agent.containers import container
from serried.agent.node import setup
from serried.agent.node_disk.folder import Folder
from serried.agent.ranks import binding, command
from serried.agent.stage_in.node_side import StandaloneStageIn, check_required_paths, running_attempt_variables
from serried.fs import files
from serried.protocol import addresses, names

KEPT = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV")
"""What `~/.bashrc` may say something else of than the run's environment does."""
ALONE = (
    "RANK",
    "LOCAL_RANK",
    "GROUP_RANK",
    "NODE_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
)
NOT_HERE = (names.MARK, names.NODE, names.STOP_FILE, names.ATTEMPT)
"""Of an attempt, which a shell is not."""
PASSED_ON = (signal.SIGTERM, signal.SIGHUP)
ANY_SHELL = ["/bin/sh", "-c", "command -v bash >/dev/null && exec bash -i; exec sh -i"]
"""What an image has of them."""
REMOVE_SECONDS = 10.0
ENDED = 143
"""What we exit with when the job ends around us."""


def variables(work: Attempt, *, joins: bool) -> Dict[str, str]:
    """What a rank would find, were it the only one; who joins a run is none of its ranks."""
    nodes = work.nodes
    shell = work.resized(nodes=1, ranks=1)
    limit = work.plan["allocation"]["time_seconds"]
    with rendezvous.hold_port() as port:
        place = command.RankPlace(
            node=0,
            rank=0,
            local_rank=0,
            master=_address() if nodes > 1 else addresses.LOOPBACK,
            port=port.getsockname()[1],
            threads=binding.threads(shell),
            deadline=time.time() + limit if limit and not joins else 0,
            stop_file="",
        )
    told = command.environment(shell, place, os.environ)
    told["SERRIED_CLUSTER"] = work.plan["site"]["name"]
    left_out = (*NOT_HERE, *(ALONE if joins else ()))
    return {name: value for name, value in told.items() if name not in left_out}


def _address() -> str:
    found = addresses.own(())
    return found[0] if found else addresses.LOOPBACK


def run(work: Attempt, words: List[str], told: Dict[str, str], *, joins: bool) -> Optional[int]:
    """Run `words`, or bash where there are none, in the run's working directory; return the exit status.

    Its data is staged first, unless it joins a run, which has that. None where the job was ended around it.
    """
    child: Optional[system.Child] = None
    ended: List[int] = []

    def pass_on(number: int, _: object) -> None:
        ended.append(number)
        if child is not None:
            with contextlib.suppress(ProcessLookupError):  # it was told by the scheduler too
                # A shell at its prompt does not mind TERM.
                os.kill(child.pid, number if words else signal.SIGHUP)

    own = Folder(work, "shell")
    data = StandaloneStageIn(work, own)
    try:
        where = running_attempt_variables(work) if joins else data.stage()
        if data.signal or data.problem:
            return _without_data(data)
        for number in (signal.SIGINT, signal.SIGQUIT):  # the terminal's, for whoever we run
            signal.signal(number, lambda *_: None)
        for number in PASSED_ON:
            signal.signal(number, pass_on)
        told = {"SLURM_TMPDIR": os.environ.get("SLURM_TMPDIR") or str(own.scratch), **told, **where}
        argv, environment = _program(work, words, told, own.path)
        child = system.spawn(argv, environment, (0, 1, 2), directory=str(work.workdir))
        _, status = os.waitpid(child.pid, 0)
    finally:
        data.release()
        own.remove(REMOVE_SECONDS)
    problem = child.problem()
    if problem:
        name = argv[0]
        print(f"serried: cannot run `{name}` in {work.workdir}: {os.strerror(problem[1])}", file=sys.stderr)
    if ended:
        return None
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def _without_data(data: StandaloneStageIn) -> Optional[int]:
    """The exit status of a shell that has not come about."""
    if data.problem:
        print(f"serried: {os.uname().nodename}: {data.problem}", file=sys.stderr)
        return names.EXIT_CODES[names.LAUNCH_FAILED]
    return 130 if data.signal == signal.SIGINT else None


def _program(work: Attempt, words: List[str], told: Dict[str, str], own: Path) -> Tuple[List[str], Dict[str, str]]:
    """What is executed, in the container where there is one; `own` is a folder for it on this node."""
    inside = container.of(work, own)
    if inside is None:
        if not words:
            rc = own / "bashrc"
            rc.write_bytes(system.encode(_rc(work, {**system.environment(), **told})))
            words = ["/bin/bash", "--rcfile", str(rc), "-i"]
        return words, {**command.visible(work, system.environment()), **told}
    inherited = inside.inherited(system.environment())
    given = {name: value for name, value in {**inherited, **told}.items() if name not in command.hidden(work)}
    return inside.enter(words or ANY_SHELL, given)


def _rc(work: Attempt, told: Dict[str, str]) -> str:
    """What bash reads first: the user's own, then what that must not change, and a prompt that says where one is."""
    lines = ["[[ -r ~/.bashrc ]] && . ~/.bashrc"]
    lines += [f"export {name}={shlex.quote(told[name])}" for name in KEPT if name in told]
    lines.append(f"PS1={shlex.quote('(' + work.plan['experiment'] + ') ')}$PS1")
    return "\n".join(lines) + "\n"


def main(arguments: List[str]) -> int:
    """`shell` of its own job, `shell --join ATTEMPT [--element I] -- WORDS…` beside a run's ranks.

    With `--problem WHY` there is none, because its environment cannot be had.
    """
    cut = arguments.index("--") if "--" in arguments else len(arguments)
    options = dict(zip(arguments[:cut:2], arguments[1:cut:2]))  # noqa: B905 - `strict` is 3.10's
    words = arguments[cut + 1 :]
    joins = "--join" in options
    element = options.get("--element")
    work = Attempt.load(run_directory(), int(element) if element else None, int(options.get("--join", 1)))
    set_umask(work)
    problem = options.get("--problem") or setup.enter(work, arguments, "shell") or check_required_paths(work.plan)
    host = {"host": os.uname().nodename}
    if not joins:
        files.write_json(work.run.shell, host, work.file_mode)
    if problem:
        print(f"serried: {host['host']}: {problem}", file=sys.stderr)
        status: Optional[int] = names.EXIT_CODES[names.LAUNCH_FAILED]
    else:
        status = run(
            work, words or ([] if joins else list(work.plan["command"])), variables(work, joins=joins), joins=joins
        )
    if status is not None and not joins:
        files.write_json(work.run.shell, {**host, "exit_code": status}, work.file_mode)
    return ENDED if status is None else status
