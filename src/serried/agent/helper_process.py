"""Long work in a process beside a node's agent: a role of agent.pyz, with JSON lines in both directions.

The process ignores the scheduler's signals to all processes, ends with its agent, and can be niced.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from typing import Any, Callable, Iterator, List, Optional, Sequence

from serried.agent import system
from serried.agent.loop import Loop
from serried.base.channel import CHUNK, Channel, Message, encode

IGNORED_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT)
NICENESS = 15
"""Gets a thirtieth of a core beside ranks that keep all cores busy; 19 gets a seventieth, too slow for a copy."""


class HelperProcess:
    """The agent's end. `on_message` gets each message; None when the process has ended."""

    def __init__(
        self,
        loop: Loop,
        role: str,
        arguments: Sequence[str],
        on_message: Callable[[Optional[Message]], None],
        *,
        python: str = "",
        niceness: int = 0,
    ) -> None:
        """`python`: another Python, with its packages. `niceness` keeps it from slowing the ranks, even
        by its imports.
        """
        self._loop = loop
        self._on_message = on_message
        self._socket, theirs = socket.socketpair()
        null = os.open(os.devnull, os.O_RDONLY)
        command = system.agent_command(role, *arguments)
        self._child = system.spawn(
            [python, *command[3:]] if python else command,
            system.environment(),
            (theirs.fileno(), null, 2),
            directory="/",
            parent_death=signal.SIGKILL,
            niceness=niceness,
        )
        self.pid = self._child.pid
        system.HELPER_PIDS.add(self.pid)
        os.close(null)
        theirs.close()
        self._socket.setblocking(False)
        self._channel = Channel(self._socket)
        loop.watch(self._socket, self._receive)

    def send(self, message: Message) -> None:
        """Send `message` now or when the socket accepts it. `on_message` reports a closed connection."""
        self._channel.send(message)
        self._watch()

    def wait_for_exit(self, seconds: float) -> None:
        """Wait up to `seconds` for its exit, at the agent's own end. Drops its messages."""
        until = time.monotonic() + seconds
        with contextlib.suppress(OSError):
            while time.monotonic() < until:
                self._socket.settimeout(max(0.01, until - time.monotonic()))
                if not self._socket.recv(CHUNK):
                    return

    def kill(self) -> None:
        if self.pid in system.HELPER_PIDS:  # once it is reaped, its pid may be that of another process
            system.send_signal(self.pid, signal.SIGKILL)

    def _watch(self) -> None:
        if self._socket.fileno() >= 0:
            self._loop.watch(self._socket, self._receive, writable=bool(self._channel.backlog))

    def _receive(self) -> None:
        messages = self._channel.receive()
        if messages is None:
            self.kill()  # unless it has ended, it has sent a line that is no message
            self._loop.forget(self._socket)
            self._channel.close()
            self._child.problem()  # closes the pipe
            self._on_message(None)
            return
        self._watch()
        for message in messages:
            self._on_message(message)


class AgentConnection:
    """The process's end: a socket, which is its standard input."""

    def __init__(self) -> None:
        for number in IGNORED_SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        self._socket = socket.socket(fileno=os.dup(0))
        self._socket.setblocking(True)
        self._channel = Channel(self._socket)

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        """Report the end to the agent now: a thread that hangs in the kernel delays that of this process."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def send(self, **message: Any) -> None:
        """Raises OSError where the agent is gone."""
        self._socket.sendall(encode(message))

    def receive(self, seconds: Optional[float] = None) -> Optional[List[Message]]:
        """The messages that arrive first, none after `seconds`; None if the agent has ended."""
        return self._channel.receive_within(seconds)

    def messages(self) -> Iterator[Message]:
        while (received := self.receive()) is not None:
            yield from received
