"""Become a shell, or a command, with the environment of a rank that runs on this node: `serried shell --rank`.

The environment is read in /proc and goes to the new program alone. It is in no file and in no argv.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import Dict, List, Optional, Tuple

from serried.agent import containers, shell, system
from serried.agent.attempt import Attempt, run_directory, set_umask
from serried.agent.ranks import command
from serried.base import linux
from serried.schema import names

NOT_FOUND, NOT_EXECUTABLE, ENDED = 127, 126, 1
NOT_PASSED_ON = (
    names.MARK,
    names.NODE,
    names.STOP_FILE,
    names.FAILURE_REPORT,
    names.ATTEMPT,
    "MASTER_ADDR",
    "MASTER_PORT",
    "HOROVOD_GLOO_RENDEZVOUS_PORT",
)
"""Without them the attempt does not wait for this shell, and a program here cannot join the run's ranks."""
OF_THE_TERMINAL = ("TERM", "COLORTERM")


def main(arguments: List[str]) -> int:
    """`attach ATTEMPT RANK PID [--task I] -- WORDS…`: PID is the process of the rank, by the journal of its node."""
    cut = arguments.index("--")
    (number, rank, pid), words = arguments[:3], arguments[cut + 1 :]
    task = arguments[4] if arguments[3:cut] else None
    attempt = Attempt.load(run_directory(), int(task) if task else None, int(number))
    set_umask(attempt)
    found = rank_environment(attempt, int(pid))
    if found is None:
        print(f"serried: {names.rank_name(int(rank))} does not run on {os.uname().nodename} any more", file=sys.stderr)
        return ENDED
    variables, directory = found
    argv, variables = _program(attempt, words, variables, int(rank))
    try:
        os.chdir(directory)
        os.execvpe(argv[0], argv, variables)  # noqa: S606 - no shell is the point
    except OSError as error:
        print(f"serried: cannot run `{argv[0]}` in {directory}: {error.strerror}", file=sys.stderr)
        return NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE


def rank_environment(attempt: Attempt, pid: int) -> Optional[Tuple[Dict[str, str], str]]:
    """The variables and the working directory of the rank; None if `pid` is not a process of the attempt."""
    candidates = [pid, *linux.descendants(pid)]
    if attempt.plan.container:  # the runtime around the program may hide its environment, or have another
        candidates.reverse()
    for candidate in candidates:
        pairs = (entry.partition(b"=") for entry in linux.environ(candidate).split(b"\0") if entry)
        variables = {system.decode(name): system.decode(value) for name, _, value in pairs}
        if variables.get(names.MARK) == attempt.process_tag:
            directory = ""
            with contextlib.suppress(OSError):
                directory = os.readlink(f"{linux.PROC}/{candidate}/cwd")  # noqa: PTH115
            # It may have been deleted, or exist in the rank's container only.
            return variables, directory if os.path.isdir(directory) else str(attempt.workdir)  # noqa: PTH112
    return None


def _program(attempt: Attempt, words: List[str], rank: Dict[str, str], number: int) -> Tuple[List[str], Dict[str, str]]:
    """The argv and the environment, inside a container of the same image if the rank is in one."""
    variables = {name: value for name, value in rank.items() if name not in NOT_PASSED_ON}
    variables.update((name, os.environ[name]) for name in OF_THE_TERMINAL if name in os.environ)
    if variables.get("PYTHONBREAKPOINT") == command.BREAKPOINT_HOOK:  # this terminal has a debugger of its own
        del variables["PYTHONBREAKPOINT"]
    inside = containers.of(attempt, Path(rank[names.STOP_FILE]).parent) if names.STOP_FILE in rank else None
    if inside is not None:
        return inside.enter(words or shell.ANY_SHELL, variables)
    return words or _shell(variables, number), variables


def _shell(variables: Dict[str, str], number: int) -> List[str]:
    """Bash. Its startup file is in a pipe. Without a terminal it reads its commands, and prints no prompt."""
    if not os.isatty(0):
        return ["/bin/bash"]
    reader, writer = os.pipe()
    os.write(writer, system.encode(shell.startup_lines(names.rank_name(number), variables)))
    os.close(writer)
    os.set_inheritable(reader, True)
    return ["/bin/bash", "--rcfile", f"/dev/fd/{reader}", "-i"]
