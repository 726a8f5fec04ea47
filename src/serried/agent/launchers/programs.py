"""The programs that a launcher starts on a node, each connected to the agent of its node.

rank           a rank under a `launch.kind`: the agent sends the program, and releases the rank once all have ended
rank-through   a rank in a job script: the user's program, with its output copied to a log and passed on
remote         an `ssh` for launchers, which goes through the agents
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
import time
from functools import partial
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from serried.agent import system
from serried.agent.launchers import local_socket
from serried.agent.loop import Loop
from serried.base import linux
from serried.base.channel import Message
from serried.schema import launchers, names
from serried.schema.events import FromLaunched, ToLaunched

FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
OF_TERMINAL = (signal.SIGINT, signal.SIGQUIT)
"""A terminal sends them to all processes of the group."""
CONNECT_SECONDS = 30.0
"""A launcher's process on another node may start before that node's agent listens."""
REFUSED = 70


def end_as(status: int) -> int:
    """The exit status of a process with this wait status. If a signal ended it, end this one so, without a core."""
    if not os.WIFSIGNALED(status):
        return os.WEXITSTATUS(status)
    number = os.WTERMSIG(status)
    system.forbid_core(os.getpid())
    with contextlib.suppress(OSError, ValueError):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os.kill(os.getpid(), number)
    return 128 + number


def rank(arguments: List[str]) -> int:
    """`rank ADDRESS`: run the program of one rank, as the agent requests."""
    end = time.monotonic() + CONNECT_SECONDS
    while True:
        try:
            connection = local_socket.connect(arguments[0])
            break
        except OSError as error:
            if time.monotonic() > end:
                print(f"serried: cannot connect to the agent of {socket.gethostname()}: {error}", file=sys.stderr)
                return REFUSED
            time.sleep(0.1)
    return end_as(LaunchedRank(connection).run())


class LaunchedRank:
    """Ends as its program did, but only once the agent allows it.

    A launcher that sees the end of a rank ends the others in its own way, and these may still be saving.
    """

    def __init__(self, connection: local_socket.LocalSocket) -> None:
        self._socket = connection
        self._loop = Loop()
        self._child: Optional[system.Child] = None
        self._status: Optional[int] = None
        """The program's wait status."""
        self._last_signal = 0
        self._oom = linux.OutOfMemory()

    def run(self) -> int:
        """The program's wait status, or that of a refusal."""
        for number in FORWARDED:
            self._loop.on_signal(number, partial(self._forward, number))
        self._loop.on_signal(signal.SIGCHLD, self._reap)
        self._loop.watch(self._socket.connection, self._receive)
        self._socket.send({"event": FromLaunched.RANK_WAITS, "environ": system.environment()})
        self._loop.run()
        return REFUSED << 8 if self._status is None else self._status

    def _receive(self) -> None:
        messages = self._socket.receive()
        if messages is None:  # the agent has ended, so no other process would end the program
            if self._child and self._status is None:
                system.send_signal(self._child.pid, signal.SIGKILL, to_group=True)
            self._loop.stop()
        for message in messages or ():
            if message["do"] == ToLaunched.RUN:
                self._socket.send({"event": FromLaunched.RANK_STARTING})
                cpus = set(message["cpus"])  # an empty list binds to none
                self._child = system.spawn_with_log(
                    message["argv"],
                    message["environment"],
                    message["log"],
                    message["mode"],
                    directory=message["directory"],
                    cpus=sorted(cpus & os.sched_getaffinity(0)) if cpus else [],
                )
                self._socket.send({"event": FromLaunched.RANK_STARTED, "pid": self._child.pid})
            else:
                if message["do"] == ToLaunched.REFUSE:
                    print(f"serried: {message['because']}", file=sys.stderr)
                self._loop.stop()

    def _forward(self, number: int) -> None:
        self._last_signal = number
        if self._child and self._status is None:
            system.send_signal(self._child.pid, number, to_group=True)
        else:
            self._loop.stop()

    def _reap(self) -> None:
        for pid, status in system.reap():
            if self._child and pid == self._child.pid:
                self._status = status
                facts = {"problem": self._child.problem(), "signal": self._last_signal, "oom": self._oom.has_occurred()}
                self._socket.send({"event": FromLaunched.RANK_ENDED, "status": status, **facts})


ANSWER_SECONDS = 60.0
"""An agent that does not answer in this time is stuck; the program starts without it."""
CHUNK = 1 << 18
DRAINED_CHUNKS = 16
GROUP_SIGNALLED = ("OMPI_", "PMIX_", "PMI_", "PALS_", "MV2_", "HYDRA_", "MPI_")
"""Prefixes of variables of launchers that signal the process group of a rank, not the process alone."""
STDOUT, STDERR = 1, 2
CANNOT_RUN = {"command": "cannot run", "directory": "cannot enter the directory of", "start": "cannot start"}


def rank_through(arguments: List[str]) -> int:
    """`rank-through ADDRESS [--local-rank=N] LAUNCH[@MARK] PROGRAM…`.

    MARK is `detached` for processes that the scheduler starts outside of the script. For torch.distributed.launch and
    deepspeed, which add the local rank as the first argument of what they start, it is the index where that belongs.

    Without an agent, the program runs as if it had been started alone.
    """
    address, *words = arguments
    added = [words.pop(0)] if words[0].startswith(("--local-rank=", "--local_rank=")) else []
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
            "is_detached": mark == names.DETACHED,
            "environ": identity_variables(os.environ),
        }
    )
    until = time.monotonic() + ANSWER_SECONDS
    messages: Optional[List[Message]] = []
    while messages == [] and time.monotonic() < until:
        messages = connection.receive_within(until - time.monotonic())
    if not messages:
        connection.connection.close()
        return _become(program)
    if messages[0]["do"] == ToLaunched.REFUSE:
        print(f"serried: {messages[0]['because']}", file=sys.stderr)
        return REFUSED
    return PassedThroughRank(connection, launch, program, messages[0]).run()


def identity_variables(environ: Mapping[str, str]) -> Dict[str, str]:
    """The variables from which the agent learns rank, world size and the launch around this one."""
    sources = (value for source in launchers.SOURCES for value in source if isinstance(value, tuple))
    known = {name for variables in sources for name in variables}
    known.update(("MASTER_ADDR", "MASTER_PORT", "GROUP_WORLD_SIZE", names.LAUNCH, names.LAUNCH_RANK))
    known.update(("TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS", "CUDA_VISIBLE_DEVICES"))
    return {name: environ[name] for name in sorted(known) if name in environ}


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


def node_folder(environ: Mapping[str, str]) -> str:
    """The folder on the node's disk, with the node's data and results; empty if unknown.

    Each node has another. The script's shell has put that of the first node into words such as `$SERRIED_DATA_DIR`.
    The name is random, so nothing else contains it.
    """
    return os.path.dirname(environ.get(names.STOP_FILE, ""))  # noqa: PTH120 - a text


class PassedThroughRank:
    def __init__(self, connection: local_socket.LocalSocket, launch: str, program: List[str], answer: Message) -> None:
        self._socket = connection
        inherited, own = system.environment(), answer["environment"]
        set_here = {names.LAUNCH: launch, **own}
        kept = {name: value for name, value in inherited.items() if name not in own}
        before, here = node_folder(inherited), node_folder(set_here)
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
        paths = [variables.get("PYTHONPATH", "") for variables in (environment, self._environment)]
        self._environment = {**environment, **self._environment}
        folders = list(filter(None, os.pathsep.join(paths).split(os.pathsep)))
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
        ignored = [number for number in FORWARDED if signal.getsignal(number) == signal.SIG_IGN]
        for number in FORWARDED:
            if number not in ignored:
                signal.signal(number, self._forward)
        child = self._start(ignored)
        poll = select.poll()
        for source in (woken, self._socket.connection.fileno(), *self._targets):
            poll.register(source, select.POLLIN)
        while self._status is None:
            for source, _ in poll.poll():
                if source == woken:
                    os.read(woken, 4096)
                    self._status = dict(system.reap()).get(child.pid, self._status)
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
        if self._has_terminal and number in OF_TERMINAL:
            return  # the terminal has sent it to both
        if self._child is not None and self._status is None:
            to_group = self._signals_group and not self._has_terminal
            system.send_signal(self._child.pid, number, to_group=to_group)

    def _copy(self, source: int) -> bool:
        """Pass on what has arrived. False at its end, and when its reader has gone: the program gets SIGPIPE."""
        target = self._targets[source]
        data = os.read(source, CHUNK)
        if data and self._log is not None:
            try:
                _write(self._log, data)
            except OSError:  # a full disk
                self._close_log()
        with contextlib.suppress(OSError):
            if data:
                _write(target, data)
                return True
        os.close(source)
        del self._targets[source]
        return False

    def _close_log(self) -> None:
        if self._log is not None:
            os.close(self._log)
            self._log = None

    def _finish(self, child: system.Child, status: int) -> int:
        """Pass on what the program left in its pipes, report its end, and end as it did."""
        for source in list(self._targets):
            for _ in range(DRAINED_CHUNKS):  # not all that a background process still writes
                if source in self._targets and select.select([source], [], [], 0)[0]:
                    self._copy(source)
        problem = child.problem()
        facts = {"problem": problem, "signal": self._last_signal, "oom": self._oom.has_occurred()}
        self._socket.send({"event": FromLaunched.RANK_ENDED, "status": status, **facts})
        # Another process of the program may hold its output. No launcher waits for that one.
        if self._targets and os.fork() == 0:
            try:
                for number in FORWARDED:
                    signal.signal(number, signal.SIG_DFL)
                self._socket.connection.close()
                os.close(0)
                while self._targets:
                    for source in select.select(list(self._targets), [], [])[0]:
                        self._copy(source)
            finally:
                os._exit(0)
        return _report(problem[0], problem[1], self._program[0]) if problem else end_as(status)


def _write(target: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(target, view) :]
        except BlockingIOError:  # another program of the script, such as ssh, has made the shared output non-blocking
            select.select([], [target], [])


SSH_FAILED = 255
"""The status of ssh where ssh itself has failed, and not the command."""
SSH_OPTIONS_WITH_VALUE = frozenset("-" + letter for letter in "BbcDEeFIiJLlmOopQRSWw")


def ssh(arguments: List[str]) -> int:
    """`remote ADDRESS [-options] HOST COMMAND…`: run a command on another node, for launchers that call ssh.

    This node's agent sends the command by way of the head to HOST's agent, which runs it as its child, with the
    environment of its node. So the command needs no keys, ports or job step, and ends with the attempt. It has no
    input. Its output goes into `launcher.log` of its node, and its exit status comes back. A signal that ends this
    process also ends the command.
    """
    host, command = parse_ssh(arguments[1:])
    try:
        connection = local_socket.connect(arguments[0])
    except OSError as error:
        print(f"serried: cannot connect to the agent of this node: {error}", file=sys.stderr)
        return SSH_FAILED
    connection.send({"event": FromLaunched.RUN_REMOTE, "host": host, "command": command})
    while (messages := connection.receive()) is not None:
        for message in messages:
            if message["do"] == ToLaunched.REFUSE:
                print(f"serried: {message['because']}", file=sys.stderr)
                return SSH_FAILED
            if message["do"] == ToLaunched.REMOTE_EXITED:
                return int(message["status"])
    return SSH_FAILED


def parse_ssh(arguments: Sequence[str]) -> Tuple[str, str]:
    """Host and command. ssh takes options after the host too, and joins the words of the command by spaces."""
    host, rest = "", list(arguments)
    while rest and (rest[0].startswith("-") or not host):
        argument = rest.pop(0)
        if argument in SSH_OPTIONS_WITH_VALUE:
            del rest[:1]
        elif not argument.startswith("-"):
            host = argument.rpartition("@")[2]
    return host, " ".join(rest)
