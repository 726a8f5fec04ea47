"""A process beside the agent of a node, for what takes long: a role of our own, and JSON lines both ways.

It is deaf to what the scheduler sends to all processes at once, ends with its agent, and can be niced.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import time
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence

from serried.agent import system
from serried.agent.loop import Loop

Message = Dict[str, Any]

DEAF_TO = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT)
NICENESS = 15
"""Beside ranks that keep all cores busy that is a thirtieth of one; 19 is a seventieth, and a copy takes minutes."""
CHUNK = 1 << 16


class Beside:
    """The agent's end. `heed` gets what the process says; None when it has ended, well or not."""

    def __init__(self, loop: Loop, role: str, words: Sequence[str], heed: Callable[[Optional[Message]], None]) -> None:
        self._loop = loop
        self._heed = heed
        self._end, theirs = socket.socketpair()
        self._partial = b""
        self._backlog = b""
        null = os.open(os.devnull, os.O_RDONLY)
        self._child = system.spawn(
            system.agent_command(role, *words),
            system.environment(),
            (theirs.fileno(), null, 2),
            directory="/",
            parent_death=signal.SIGKILL,
        )
        system.OWN.add(self._child.pid)
        os.close(null)
        theirs.close()
        self._end.setblocking(False)
        loop.watch(self._end, self._receive)

    @property
    def pid(self) -> int:
        return self._child.pid

    def tell(self, message: Message) -> None:
        """What cannot be sent now is sent when it can; an end that is gone shows in `heed`."""
        self._backlog += json.dumps(message).encode() + b"\n"
        self._flush()

    def wait(self, seconds: float) -> None:
        """Until it has ended, `seconds` at most: for the agent's own end. What it says is not heeded any more."""
        until = time.monotonic() + seconds
        with contextlib.suppress(OSError):
            while time.monotonic() < until:
                self._end.settimeout(max(0.01, until - time.monotonic()))
                if not self._end.recv(CHUNK):
                    return

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._child.pid, signal.SIGKILL)

    def _flush(self) -> None:
        with contextlib.suppress(BlockingIOError, OSError):
            while self._backlog:
                self._backlog = self._backlog[self._end.send(self._backlog) :]
        if self._end.fileno() >= 0:
            self._loop.watch(self._end, self._receive, writable=bool(self._backlog))

    def _receive(self) -> None:
        if self._backlog:
            self._flush()
        try:
            data = self._end.recv(CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        *lines, self._partial = (self._partial + data).split(b"\n")
        for line in lines:
            self._heed(json.loads(line))
        if not data:
            self._loop.forget(self._end)
            self._end.close()
            self._backlog = b""
            self._heed(None)


class Agent:
    """The process's end: what it is told, and what it tells. Its standard input is the way."""

    def __init__(self, *, niced: bool = False) -> None:
        for number in DEAF_TO:
            signal.signal(number, signal.SIG_IGN)
        if niced:
            with contextlib.suppress(OSError):
                os.nice(NICENESS)
        self._end = socket.socket(fileno=os.dup(0))
        self._end.setblocking(True)
        self._partial = b""

    def fileno(self) -> int:
        return self._end.fileno()

    def tell(self, **message: Any) -> None:
        """Raises OSError where the agent is gone."""
        self._end.sendall(json.dumps(message).encode() + b"\n")

    def heard(self, seconds: Optional[float] = None) -> Optional[List[Message]]:
        """What has come, after `seconds` at most, or as soon as something comes; None where the agent is gone."""
        self._end.settimeout(seconds)
        try:
            data = self._end.recv(CHUNK)
        except (socket.timeout, BlockingIOError):
            return []
        except OSError:
            return None
        finally:
            self._end.settimeout(None)
        if not data:
            return None
        *lines, self._partial = (self._partial + data).split(b"\n")
        return [json.loads(line) for line in lines]

    def messages(self) -> Iterator[Message]:
        """What comes, until the agent is gone."""
        while True:
            heard = self.heard()
            if heard is None:
                return
            yield from heard
