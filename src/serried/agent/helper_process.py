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
from serried.base import json_lines
from serried.base.json_lines import Message

IGNORED_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT)
NICENESS = 15
"""Gets a thirtieth of a core beside ranks that keep all cores busy; 19 gets a seventieth, too slow for a copy."""
CHUNK = 1 << 16


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
        niced: bool = False,
    ) -> None:
        """`python`: another Python, with its packages. `niced`: it does not slow the ranks, not even by its imports."""
        self._loop = loop
        self._on_message = on_message
        self._socket, theirs = socket.socketpair()
        self._buffer = json_lines.LineBuffer()
        self._backlog = b""
        null = os.open(os.devnull, os.O_RDONLY)
        command = system.agent_command(role, *arguments)
        self._child = system.spawn(
            [python, *command[3:]] if python else command,
            system.environment(),
            (theirs.fileno(), null, 2),
            directory="/",
            parent_death=signal.SIGKILL,
            niceness=NICENESS if niced else 0,
        )
        system.HELPER_PIDS.add(self._child.pid)
        os.close(null)
        theirs.close()
        self._socket.setblocking(False)
        loop.watch(self._socket, self._receive)

    @property
    def pid(self) -> int:
        return self._child.pid

    def send(self, message: Message) -> None:
        """Send `message` now or when the socket accepts it. `on_message` reports a closed connection."""
        self._backlog += json_lines.encode(message)
        self._flush()

    def wait_for_exit(self, seconds: float) -> None:
        """Wait up to `seconds` for its exit, at the agent's own end. Drops its messages."""
        until = time.monotonic() + seconds
        with contextlib.suppress(OSError):
            while time.monotonic() < until:
                self._socket.settimeout(max(0.01, until - time.monotonic()))
                if not self._socket.recv(CHUNK):
                    return

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._child.pid, signal.SIGKILL)

    def _flush(self) -> None:
        with contextlib.suppress(BlockingIOError, OSError):
            while self._backlog:
                self._backlog = self._backlog[self._socket.send(self._backlog) :]
        if self._socket.fileno() >= 0:
            self._loop.watch(self._socket, self._receive, writable=bool(self._backlog))

    def _receive(self) -> None:
        if self._backlog:
            self._flush()
        try:
            data = self._socket.recv(CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        for message in self._buffer.messages(data):
            self._on_message(message)
        if not data:
            self._loop.forget(self._socket)
            self._socket.close()
            self._backlog = b""
            self._child.problem()  # closes the pipe
            self._on_message(None)


class AgentConnection:
    """The process's end: a socket, which is its standard input."""

    def __init__(self) -> None:
        for number in IGNORED_SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        self._socket = socket.socket(fileno=os.dup(0))
        self._socket.setblocking(True)
        self._buffer = json_lines.LineBuffer()

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        """Report the end to the agent now: a thread that hangs in the kernel delays that of this process."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def send(self, **message: Any) -> None:
        """Raises OSError where the agent is gone."""
        self._socket.sendall(json_lines.encode(message))

    def receive(self, seconds: Optional[float] = None) -> Optional[List[Message]]:
        """The messages that arrive first, none after `seconds`; None if the agent has ended."""
        self._socket.settimeout(seconds)
        try:
            data = self._socket.recv(CHUNK)
        except (socket.timeout, BlockingIOError):
            return []
        except OSError:
            return None
        finally:
            self._socket.settimeout(None)
        if not data:
            return None
        return self._buffer.messages(data)

    def messages(self) -> Iterator[Message]:
        """All messages until the agent ends."""
        while True:
            received = self.receive()
            if received is None:
                return
            yield from received
