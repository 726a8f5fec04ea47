"""One rank, where a launcher starts it: asks the agent of its node what to run, runs that, says how it ended.

The launcher sees this process alone. It ends as its program did, once the agent lets it: a launcher that saw a rank end
would end the others in its own way, and those may still be saving.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import time
from typing import Any, Dict, List, Optional

from serried.agent import system
from serried.agent.launchers import local_socket
from serried.agent.loop import Loop
from serried.agent.ranks.oom import OutOfMemory

FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
CONNECT_SECONDS = 30.0
"""A launcher's process on another node may be faster than that node's agent."""
REFUSED = 70


class LaunchedRank:
    def __init__(self, connection: local_socket.LocalSocket) -> None:
        self._socket = connection
        self._loop = Loop()
        self._child: Optional[system.Child] = None
        self._status: Optional[int] = None
        """How the program ended, as `waitpid` says it."""
        self._last_signal = 0
        """The last signal that the launcher, or whoever, has sent."""
        self._oom = OutOfMemory()

    def run(self) -> int:
        """The program's wait status; the agent's answer where there was none to run."""
        for number in FORWARDED:
            self._loop.on_signal(number, self._forward(number))
        self._loop.on_signal(signal.SIGCHLD, self._reap)
        self._loop.watch(self._socket.connection, self._receive)
        self._socket.send({"environ": system.environment()})
        self._loop.run()
        return REFUSED << 8 if self._status is None else self._status

    def _receive(self) -> None:
        messages = self._socket.receive()
        if messages is None:  # the agent is gone: nobody would end what we have started
            self._end(signal.SIGKILL)
            self._loop.stop()
            return
        for message in messages:
            if "run" in message:
                self._start(message["run"])
            elif "refused" in message:
                print(f"serried: {message['refused']}", file=sys.stderr)
                self._loop.stop()
            elif "leave" in message:
                self._loop.stop()

    def _start(self, request: Dict[str, Any]) -> None:
        log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, request["mode"])
        null = os.open(os.devnull, os.O_RDONLY)
        self._socket.send({"starting": True})  # the program may kill us before we can report its pid
        self._child = system.spawn(
            request["argv"],
            request["environment"],
            (null, log, log),
            directory=request["directory"],
            cpus=_allowed(request["cpus"]),
            parent_death=signal.SIGKILL,
            own_group=True,
        )
        os.close(null)
        os.close(log)
        self._socket.send({"began": self._child.pid})

    def _forward(self, number: int) -> Any:
        def forward() -> None:
            self._last_signal = number
            if self._child is None or self._status is not None:
                self._loop.stop()
            else:
                self._end(number)

        return forward

    def _end(self, number: int) -> None:
        if self._child and self._status is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._child.pid, number)

    def _reap(self) -> None:
        for pid, status in system.reap():
            if self._child and pid == self._child.pid:
                self._status = status
                problem = self._child.problem()
                is_oom = self._oom.has_occurred()
                self._socket.send({"ended": status, "problem": problem, "told": self._last_signal, "oom": is_oom})


def _allowed(cpus: List[int]) -> List[int]:
    """As far as the launcher has left them to us; empty is all."""
    return sorted(set(cpus) & os.sched_getaffinity(0)) if cpus else []


def main(arguments: List[str]) -> int:
    """`rank WHERE`, as the agent has told the launcher."""
    end = time.monotonic() + CONNECT_SECONDS
    while True:
        try:
            connection = local_socket.connect(arguments[0])
            break
        except OSError as error:
            if time.monotonic() > end:
                host = socket.gethostname()
                print(f"serried: no agent of this attempt answers on {host}: {error}", file=sys.stderr)
                return REFUSED
            time.sleep(0.1)
    status = LaunchedRank(connection).run()
    if os.WIFSIGNALED(status):
        return _die_by_signal(os.WTERMSIG(status))
    return os.WEXITSTATUS(status)


def _die_by_signal(number: int) -> int:
    """End as the program did, without a core of our own."""
    system.forbid_core(os.getpid())
    with contextlib.suppress(OSError, ValueError):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os.kill(os.getpid(), number)
    return 128 + number
