"""Run a shell or one command in a rank's environment: on the first node of its own job, or beside a run's ranks."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import time
from pathlib import Path
from typing import Dict, List, Optional, Tuple

from serried.agent import containers, system
from serried.agent.attempt import Attempt, run_directory, set_umask
from serried.agent.comms import job_environment, rendezvous
from serried.agent.launchers.shell_functions import write_submitters
from serried.agent.node_disk.folder import Folder
from serried.agent.ranks import binding, command
from serried.agent.stage_in.node_side import StandaloneStageIn, check_required_paths, running_attempt_variables
from serried.base import files
from serried.base.hosts import LOOPBACK, own_addresses
from serried.schema import names

KEPT = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV")
"""Variables of the run's environment that `~/.bashrc` may change, and that are restored after it."""
NOT_HERE = (names.MARK, names.NODE, names.STOP_FILE, names.FAILURE_REPORT, names.ATTEMPT)
"""Variables of an attempt; a shell has no attempt."""
PASSED_ON = (signal.SIGTERM, signal.SIGHUP)
ANY_SHELL = ["/bin/sh", "-c", "command -v bash >/dev/null && exec bash -i; exec sh -i"]
"""Starts bash in an image that has bash, else sh."""
REMOVE_SECONDS = 10.0
ENDED = 143
"""The exit status when the job ends before the shell."""


def variables(attempt: Attempt, *, joins: bool) -> Dict[str, str]:
    """The variables of an only rank. A shell that joins a run gets no rank of that run."""
    nodes = attempt.nodes
    shell = attempt.resized(nodes=1, ranks=1)
    limit = attempt.plan.allocation.time_seconds
    with rendezvous.hold_port() as port:
        place = command.RankPlace(
            node=0,
            rank=0,
            local_rank=0,
            master=next(iter(own_addresses(())), LOOPBACK) if nodes > 1 else LOOPBACK,
            port=port.getsockname()[1],
            threads=binding.threads(shell),
            deadline=time.time() + limit if limit and not joins else 0,
            stop_file="",
        )
    values = command.environment(shell, place, os.environ)
    values["SERRIED_CLUSTER"] = attempt.plan.site.name
    left_out = (*NOT_HERE, *command.of_a_task(shell, place), *(command.PLACE_IN_WORLD if joins else ()))
    return {name: value for name, value in values.items() if name not in left_out}


def run(attempt: Attempt, words: List[str], given: Dict[str, str], *, joins: bool) -> Optional[int]:
    """Run `words`, or bash if `words` is empty, in the run's working directory with the variables `given`.

    Stages the data first, unless it joins a run, which has its data already. Returns the exit status, or None if the
    job ended first.
    """
    child: Optional[system.Child] = None
    ended: List[int] = []

    def pass_on(number: int, _: object) -> None:
        ended.append(number)
        if child is not None:  # a shell at its prompt ignores TERM
            system.send_signal(child.pid, number if words else signal.SIGHUP)

    own = Folder(attempt, "shell")
    data = StandaloneStageIn(attempt, own)
    try:
        where = running_attempt_variables(attempt) if joins else data.stage()
        if data.problem:
            print(f"serried: {os.uname().nodename}: {data.problem}", file=sys.stderr)
            return names.EXIT_CODES[names.LAUNCH_FAILED]
        if data.signal:
            return 130 if data.signal == signal.SIGINT else None
        for number in (signal.SIGINT, signal.SIGQUIT):  # from the terminal, for the child
            signal.signal(number, lambda *_: None)
        for number in PASSED_ON:
            signal.signal(number, pass_on)
        given = {"SLURM_TMPDIR": os.environ.get("SLURM_TMPDIR") or str(own.scratch), **given, **where}
        submitters = write_submitters(own.path / "outside", system.agent_command("")[:-1])
        if submitters and not attempt.plan.container:
            given["PATH"] = os.pathsep.join([submitters, given.get("PATH") or os.environ.get("PATH", os.defpath)])
        argv, environment = _program(attempt, words, given, own.path)
        child = system.spawn(argv, environment, (0, 1, 2), directory=str(attempt.workdir))
        _, status = os.waitpid(child.pid, 0)
    finally:
        data.release()
        own.remove(REMOVE_SECONDS)
    problem = child.problem()
    if problem:
        print(f"serried: cannot run `{argv[0]}` in {attempt.workdir}: {os.strerror(problem[1])}", file=sys.stderr)
    return None if ended else system.shell_status(status)


def _program(attempt: Attempt, words: List[str], given: Dict[str, str], own: Path) -> Tuple[List[str], Dict[str, str]]:
    """The command and environment, inside the container if the plan has one; `own` is its folder on this node."""
    inside = containers.of(attempt, own)
    if inside is None:
        if not words:
            rc = own / "bashrc"
            lines = startup_lines(attempt.plan.experiment, {**system.environment(), **given})
            rc.write_bytes(system.encode(lines))
            words = ["/bin/bash", "--rcfile", str(rc), "-i"]
        return words, command.with_record(attempt, command.visible(attempt, system.environment()), given)
    every = names.put(inside.inherited(system.environment()), given)
    return inside.enter(words or ANY_SHELL, command.visible(attempt, every))


def startup_lines(prompt: str, environment: Dict[str, str]) -> str:
    """The startup file: the user's own, then the variables that it must not change, and a prompt."""
    lines = ["[[ -r ~/.bashrc ]] && . ~/.bashrc"]
    lines += [f"export {name}={shlex.quote(environment[name])}" for name in KEPT if name in environment]
    lines.append(f"PS1={shlex.quote(f'({prompt}) ')}$PS1")
    return "\n".join(lines) + "\n"


def main(arguments: List[str]) -> int:
    """`shell` in its own job, `shell --join ATTEMPT [--task I] -- WORDS…` beside a run's ranks.

    With `--problem WHY` it only reports that its environment could not be prepared.
    """
    cut = arguments.index("--") if "--" in arguments else len(arguments)
    options = dict(zip(arguments[:cut:2], arguments[1:cut:2]))
    words = arguments[cut + 1 :]
    joins = "--join" in options
    task = options.get("--task")
    attempt = Attempt.load(run_directory(), int(task) if task else None, int(options.get("--join", 1)))
    set_umask(attempt)
    problem = options.get("--problem") or job_environment.enter_setup(attempt, arguments, "shell")
    problem = problem or check_required_paths(attempt.plan)
    host = {"host": os.uname().nodename}
    if not joins:
        files.write_json(attempt.run.shell, host, attempt.file_mode)
    if problem:
        print(f"serried: {host['host']}: {problem}", file=sys.stderr)
        status: Optional[int] = names.EXIT_CODES[names.LAUNCH_FAILED]
    else:
        words = words or ([] if joins else list(attempt.plan.command))
        status = run(attempt, words, variables(attempt, joins=joins), joins=joins)
    if status is not None and not joins:
        files.write_json(attempt.run.shell, {**host, "exit_code": status}, attempt.file_mode)
    return ENDED if status is None else status
