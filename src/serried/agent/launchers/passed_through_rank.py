"""A rank of a launch in a job script: runs the user's program, copies its output to a log, and passes it on.

The agent of the node provides log and variables. Without an agent the program runs as if it had been started alone.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence

from serried.agent import system
from serried.agent.launchers import local_socket, programs
from serried.base import linux
from serried.base.json_lines import Message
from serried.schema import launcher_env, names
from serried.schema.events import FromLaunched, ToLaunched

ANSWER_SECONDS = 60.0
"""An agent that does not answer in this time is stuck; the program starts without it."""
CHUNK = 1 << 18
DRAINED_CHUNKS = 16
LOCAL_RANK = ("--local-rank=", "--local_rank=")
GROUP_SIGNALLED = ("OMPI_", "PMIX_", "PMI_", "PALS_", "MV2_", "HYDRA_", "MPI_")
"""Prefixes of variables of launchers that signal the process group of a rank, not the process alone."""
STDOUT, STDERR = 1, 2
CANNOT_RUN = {"command": "cannot run", "directory": "cannot enter the directory of", "start": "cannot start"}


def main(arguments: List[str]) -> int:
    """`rank-through ADDRESS [--local-rank=N] LAUNCH[@MARK] PROGRAM…`.

    MARK is `detached` for processes that the scheduler starts outside of the script. For torch.distributed.launch and
    deepspeed, which add the local rank as the first argument of what they start, it is the index where that belongs.
    """
    address, *words = arguments
    added = [words.pop(0)] if words[0].startswith(LOCAL_RANK) else []
    launch, _, mark = words.pop(0).partition("@")
    program = [*words[: int(mark)], *added, *words[int(mark) :]] if added else words
    try:
        connection = local_socket.connect(address)
    except OSError:
        return _become(program)
    connection.send(
        {
            "event": FromLaunched.PROGRAM_WAITS,
            "launch": launch,
            "argv": program,
            "directory": str(Path.cwd()),
            "is_detached": mark == names.DETACHED,
            "environ": identity_variables(os.environ),
        }
    )
    answer = _answer(connection)
    if answer is None:
        connection.connection.close()
        return _become(program)
    if answer["do"] == ToLaunched.REFUSE:
        print(f"serried: {answer['because']}", file=sys.stderr)
        return programs.REFUSED
    return PassedThroughRank(connection, launch, program, answer).run()


def identity_variables(environ: Mapping[str, str]) -> Dict[str, str]:
    """The variables from which the agent learns rank, world size and the launch around this one."""
    sources = (value for source in launcher_env.SOURCES for value in source if isinstance(value, tuple))
    known = {name for variables in sources for name in variables}
    known.update(("MASTER_ADDR", "MASTER_PORT", "GROUP_WORLD_SIZE", names.LAUNCH, names.LAUNCH_RANK))
    known.update(("TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS", "CUDA_VISIBLE_DEVICES"))
    return {name: environ[name] for name in sorted(known) if name in environ}


def folder_of(environ: Mapping[str, str]) -> str:
    """The folder on the node's disk, with the node's data and results; empty if unknown.

    Each node has another. The script's shell has put that of the first node into words such as `$SERRIED_DATA_DIR`.
    The name is random, so nothing else contains it.
    """
    return os.path.dirname(environ.get(names.STOP_FILE, ""))  # noqa: PTH120 - a text


def _answer(connection: local_socket.LocalSocket) -> Optional[Message]:
    """RUN or REFUSE; None if the agent ends or does not answer."""
    connection.connection.settimeout(ANSWER_SECONDS)
    messages = connection.receive()
    while messages == []:
        messages = connection.receive()
    connection.connection.settimeout(None)
    return messages[0] if messages else None


def _become(program: List[str]) -> int:
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(program[0], program)  # noqa: S606 - no shell is the point
    except OSError as error:
        return _report("command", error.errno or 0, program[0])


def _report(stage: str, number: int, name: str) -> int:
    """The status with which slurmstepd and shells end where a program cannot be started."""
    print(f"serried: {socket.gethostname()}: {CANNOT_RUN[stage]} `{name}`: {os.strerror(number)}", file=sys.stderr)
    return 127 if number == 2 else 126


def _folders(environment: Dict[str, str], name: str) -> List[str]:
    return [folder for folder in environment.get(name, "").split(os.pathsep) if folder]


class PassedThroughRank:
    def __init__(self, connection: local_socket.LocalSocket, launch: str, program: List[str], answer: Message) -> None:
        self._socket = connection
        inherited, own = system.environment(), answer["environment"]
        set_here = {names.LAUNCH: launch, **{name: value for name, value in own.items() if value is not None}}
        kept = {name: value for name, value in inherited.items() if name not in own}
        before, here = folder_of(inherited), folder_of(set_here)
        if before and here:
            program = [word.replace(before, here) for word in program]
            kept = {name: value.replace(before, here) for name, value in kept.items()}
        self._program = program
        self._environment = {**kept, **set_here}
        if answer.get("detached"):
            self._attach(**answer["detached"])
        elif names.SHIMS in inherited:  # before a virtual environment that the script has activated
            shims = os.path.join(inherited[names.SHIMS], "bin")  # noqa: PTH118 - a text
            path = self._environment.get("PATH", os.defpath).split(os.pathsep)
            self._environment["PATH"] = os.pathsep.join([shims, *(folder for folder in path if folder != shims)])
        self._log: Optional[int] = None
        with contextlib.suppress(OSError):
            self._log = os.open(answer["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, answer["mode"])
        self._targets: Dict[int, int] = {}
        """The program's pipes, and where their bytes go."""
        self._child: Optional[system.Child] = None
        self._status: Optional[int] = None
        self._last_signal = 0
        self._oom = linux.OutOfMemory()
        self._signals_group = any(name.startswith(GROUP_SIGNALLED) for name in self._environment)
        self._has_terminal = os.isatty(0)
        """Then the program stays in this process group, or it could not read from the terminal."""

    def _attach(self, environment: Dict[str, str], bin: str, output: str) -> None:  # noqa: A002
        """Let a rank that the scheduler started be as if the script had started it: variables, shims and output."""
        folders = [*_folders(environment, "PYTHONPATH"), *_folders(self._environment, "PYTHONPATH")]
        self._environment = {**environment, **self._environment}
        if folders:
            self._environment["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(folders))
        path = os.pathsep.join([bin, self._environment.get("PATH", os.defpath)])
        self._environment = names.put(self._environment, {"PATH": path})
        with contextlib.suppress(OSError):
            log = os.open(output, os.O_WRONLY | os.O_APPEND)
            os.dup2(log, STDOUT)
            os.dup2(log, STDERR)
            os.close(log)

    def run(self) -> int:
        """Run the program to its end; end as it did."""
        woken, waker = os.pipe()
        os.set_blocking(woken, False)
        os.set_blocking(waker, False)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        ignored = []
        for number in programs.FORWARDED:
            if signal.getsignal(number) == signal.SIG_IGN:
                ignored.append(number)
            else:
                signal.signal(number, self._forward)
        child = self._start(ignored)
        poll = select.poll()
        for source in (woken, self._socket.connection.fileno(), *self._targets):
            poll.register(source, select.POLLIN)
        while self._status is None:
            for source, _ in poll.poll():
                if source == woken:
                    os.read(woken, 4096)
                    self._reap()
                elif source in self._targets:
                    if not self._copy(source):
                        poll.unregister(source)
                elif self._socket.receive() is None:  # the program continues without log
                    poll.unregister(source)
                    self._close_log()
        return self._finish(child, self._status)

    def _start(self, ignored: Sequence[int]) -> system.Child:
        writers = []
        for target in (STDOUT, STDERR):
            reader, writer = os.pipe()
            self._targets[reader] = target
            writers.append(writer)
        self._socket.send({"event": FromLaunched.RANK_STARTING})
        self._child = system.spawn(
            self._program,
            self._environment,
            (0, *writers),
            directory=".",
            parent_death=signal.SIGKILL,
            own_group=not self._has_terminal,
            ignored=ignored,
        )
        for writer in writers:
            os.close(writer)
        self._socket.send({"event": FromLaunched.RANK_STARTED, "pid": self._child.pid})
        return self._child

    def _forward(self, number: int, _: Any) -> None:
        """In the signal's handler, because this process may be waiting for a reader of its output."""
        self._last_signal = number
        if self._has_terminal and number in (signal.SIGINT, signal.SIGQUIT):
            return  # the terminal has sent it to both
        if self._child is not None and self._status is None:
            with contextlib.suppress(OSError):
                send = os.killpg if self._signals_group and not self._has_terminal else os.kill
                send(self._child.pid, number)

    def _copy(self, source: int) -> bool:
        """Pass on what has arrived. False at its end, and when its reader has gone: the program gets SIGPIPE."""
        target = self._targets[source]
        data = os.read(source, CHUNK)
        if data and self._log is not None:
            try:
                _write(self._log, data)
            except OSError:  # a full disk
                self._close_log()
        try:
            if data:
                _write(target, data)
                return True
        except OSError:
            pass
        os.close(source)
        del self._targets[source]
        return False

    def _close_log(self) -> None:
        if self._log is not None:
            os.close(self._log)
            self._log = None

    def _reap(self) -> None:
        for pid, status in system.reap():
            if self._child and pid == self._child.pid:
                self._status = status

    def _finish(self, child: system.Child, status: int) -> int:
        self._drain()
        problem = child.problem()
        facts = {"problem": problem, "signal": self._last_signal, "oom": self._oom.has_occurred()}
        self._socket.send({"event": FromLaunched.RANK_ENDED, "status": status, **facts})
        if self._targets and os.fork() == 0:
            self._copy_the_rest()
        if problem:
            return _report(problem[0], problem[1], self._program[0])
        return programs.end_as(status)

    def _drain(self) -> None:
        """Pass on what the program left in its pipes."""
        for source in list(self._targets):
            for _ in range(DRAINED_CHUNKS):  # not all that a background process still writes
                if source in self._targets and select.select([source], [], [], 0)[0]:
                    self._copy(source)

    def _copy_the_rest(self) -> None:
        """In a process of its own: another process of the program holds its output. No launcher waits for that one."""
        try:
            for number in programs.FORWARDED:
                signal.signal(number, signal.SIG_DFL)
            self._socket.connection.close()
            os.close(0)
            while self._targets:
                for source in select.select(list(self._targets), [], [])[0]:
                    self._copy(source)
        finally:
            os._exit(0)


def _write(target: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(target, view) :]
        except BlockingIOError:  # another program of the script, such as ssh, has made the shared output non-blocking
            select.select([], [target], [])
