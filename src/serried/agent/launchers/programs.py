"""Programs that a launcher starts: a rank, and an `ssh` that goes through the agents.

Both connect to the agent of their own node.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import time
from functools import partial
from typing import List, Optional, Sequence, Tuple

from serried.agent import system
from serried.agent.launchers import local_socket
from serried.agent.loop import Loop
from serried.base import linux
from serried.base.json_lines import Message
from serried.schema.events import FromLaunched, ToLaunched

FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
CONNECT_SECONDS = 30.0
"""A launcher's process on another node may start before that node's agent listens."""
REFUSED = 70
SSH_FAILED = 255
"""The status of ssh where ssh itself has failed, and not the command."""
SSH_OPTIONS_WITH_VALUE = frozenset("-" + letter for letter in "BbcDEeFIiJLlmOopQRSWw")


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


def end_as(status: int) -> int:
    """End this process as another with wait status `status` did: by its signal, without another core file.

    Returns an exit status for all others.
    """
    if not os.WIFSIGNALED(status):
        return os.WEXITSTATUS(status)
    number = os.WTERMSIG(status)
    system.forbid_core(os.getpid())
    with contextlib.suppress(OSError, ValueError):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os.kill(os.getpid(), number)
    return 128 + number


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
            self._signal(signal.SIGKILL)
            self._loop.stop()
            return
        for message in messages:
            if message["do"] == ToLaunched.RUN:
                self._start(message)
            elif message["do"] == ToLaunched.REFUSE:
                print(f"serried: {message['because']}", file=sys.stderr)
                self._loop.stop()
            elif message["do"] == ToLaunched.LEAVE:
                self._loop.stop()

    def _start(self, request: Message) -> None:
        self._socket.send({"event": FromLaunched.RANK_STARTING})
        self._child = system.spawn_with_log(
            request["argv"],
            request["environment"],
            request["log"],
            request["mode"],
            directory=request["directory"],
            cpus=_allowed(request["cpus"]),
        )
        self._socket.send({"event": FromLaunched.RANK_STARTED, "pid": self._child.pid})

    def _forward(self, number: int) -> None:
        self._last_signal = number
        if self._child is None or self._status is not None:
            self._loop.stop()
        else:
            self._signal(number)

    def _signal(self, number: int) -> None:
        if self._child and self._status is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._child.pid, number)

    def _reap(self) -> None:
        for pid, status in system.reap():
            if self._child and pid == self._child.pid:
                self._status = status
                facts = {"problem": self._child.problem(), "signal": self._last_signal, "oom": self._oom.has_occurred()}
                self._socket.send({"event": FromLaunched.RANK_ENDED, "status": status, **facts})


def _allowed(cpus: List[int]) -> List[int]:
    """Those of `cpus` that the launcher allows; an empty list binds to none."""
    return sorted(set(cpus) & os.sched_getaffinity(0)) if cpus else []


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
    while True:
        messages = connection.receive()
        if messages is None:
            return SSH_FAILED
        for message in messages:
            if message["do"] == ToLaunched.REFUSE:
                print(f"serried: {message['because']}", file=sys.stderr)
                return SSH_FAILED
            if message["do"] == ToLaunched.REMOTE_EXITED:
                return int(message["status"])


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
