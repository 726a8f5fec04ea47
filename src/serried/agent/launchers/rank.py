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
PATIENCE_SECONDS = 30.0
"""A launcher's process on another node may be faster than that node's agent."""
REFUSED = 70


class Rank:
    def __init__(self, connection: local_socket.Line) -> None:
        self._line = connection
        self._loop = Loop()
        self._child: Optional[system.Child] = None
        self._status: Optional[int] = None
        """How the program ended, as `waitpid` says it."""
        self._told = 0
        """The last signal that the launcher, or whoever, has sent."""
        self._memory = OutOfMemory()

    def run(self) -> int:
        """The program's wait status; the agent's answer where there was none to run."""
        for number in FORWARDED:
            self._loop.on_signal(number, self._forward(number))
        self._loop.on_signal(signal.SIGCHLD, self._reap)
        self._loop.watch(self._line.connection, self._receive)
        self._line.send({"environ": system.environment()})
        self._loop.run()
        return REFUSED << 8 if self._status is None else self._status

    def _receive(self) -> None:
        messages = self._line.receive()
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

    def _start(self, told: Dict[str, Any]) -> None:
        log = os.open(told["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, told["mode"])
        null = os.open(os.devnull, os.O_RDONLY)
        self._line.send({"starting": True})  # the program may kill us before we can report its pid
        self._child = system.spawn(
            told["argv"],
            told["environment"],
            (null, log, log),
            directory=told["directory"],
            cpus=_allowed(told["cpus"]),
            parent_death=signal.SIGKILL,
            own_group=True,
        )
        os.close(null)
        os.close(log)
        self._line.send({"began": self._child.pid})

    def _forward(self, number: int) -> Any:
        def forward() -> None:
            self._told = number
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
                is_oom = self._memory.has_struck()
                self._line.send({"ended": status, "problem": problem, "told": self._told, "oom": is_oom})


def _allowed(cpus: List[int]) -> List[int]:
    """As far as the launcher has left them to us; empty is all."""
    return sorted(set(cpus) & os.sched_getaffinity(0)) if cpus else []


def main(arguments: List[str]) -> int:
    """`rank WHERE`, as the agent has told the launcher."""
    end = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            line = local_socket.join(arguments[0])
            break
        except OSError as error:
            if time.monotonic() > end:
                host = socket.gethostname()
                print(f"serried: no agent of this attempt answers on {host}: {error}", file=sys.stderr)
                return REFUSED
            time.sleep(0.1)
    status = Rank(line).run()
    if os.WIFSIGNALED(status):
        return _die_of(os.WTERMSIG(status))
    return os.WEXITSTATUS(status)


def _die_of(number: int) -> int:
    """End as the program did, without a core of our own."""
    system.forbid_core(os.getpid())
    with contextlib.suppress(OSError, ValueError):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os.kill(os.getpid(), number)
    return 128 + number
