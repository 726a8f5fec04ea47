"""Ports on the first node, the addresses by which the other nodes may reach it, and who is let in there."""

from __future__ import annotations

import errno
import os
import socket
import time
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from serried.agent.comms.channel import ProtocolError, SignedChannel, UnprovenConnection, greet
from serried.agent.loop import Loop, Timer
from serried.base import NamedTuple
from serried.base.channel import Message
from serried.base.hosts import LOOPBACK, own_addresses

TRY_SECONDS = 3.0
PROOF_SECONDS = 60.0
"""For the head's answer to a greeting. The head gives up the attempt if a node that it accepted disconnects."""
MOST_UNPROVEN = 128
"""Connections that have not proven themselves, besides those of nodes that may all connect at once."""
ACCEPTED_AT_ONCE = 16
"""Then other sockets have their turn, however many strangers connect."""
RETRY_SECONDS = 0.1
"""Until the next attempt to accept, if this process cannot open another file."""


def hold_port() -> socket.socket:
    """A bound socket that does not listen: it reserves its port for rank 0's store.

    SO_REUSEADDR set after the bind lets torch's TCPStore, which sets it too, bind the same port while this is open;
    every other bind gets EADDRINUSE, before and after.
    """
    held = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    held.bind(("", 0))
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return held


def listen(nodes: int) -> socket.socket:
    """The socket for node agents: on every interface, or only on the loopback for one node."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.bind((LOOPBACK if nodes == 1 else "", 0))
    listener.listen(nodes + MOST_UNPROVEN)  # the kernel's own limit is 4096; nodes beyond it try again after a second
    listener.setblocking(False)
    return listener


def addresses(hosts: Sequence[str], nodes: int) -> List[str]:
    """This host's addresses, the likeliest first, the loopback last."""
    return [*(own_addresses(hosts) if nodes > 1 else ()), LOOPBACK]


class _Unproven(NamedTuple):
    greeting: UnprovenConnection
    address: str
    until: float


class Acceptor:
    """Accepts connections, and calls `on_proven(channel, greeting, address)` for those that prove to know the key.

    A stranger costs no more than his connection. Each has `seconds` and LONGEST_GREETING bytes to prove itself, and
    at most `most` are open. One more closes the oldest from the address that has most of them: nodes of other addresses
    do not notice a flood. `on_refused(address, because)` is called for those that are refused.
    """

    def __init__(
        self,
        loop: Loop,
        listener: socket.socket,
        key: bytes,
        on_proven: Callable[[SignedChannel, Message, str], None],
        *,
        most: int,
        seconds: float,
        on_refused: Callable[[str, str], None] = lambda *_: None,
    ) -> None:
        self._loop = loop
        self._listener = listener
        self._key = key
        self._on_proven = on_proven
        self._on_refused = on_refused
        self._most = most
        self._seconds = seconds
        self._unproven: Dict[socket.socket, _Unproven] = {}
        """The oldest first."""
        self._by_address: Dict[str, int] = {}
        self._timer: Optional[Timer] = None
        self.is_open = True
        loop.watch(listener, self._accept)

    def __len__(self) -> int:
        return len(self._unproven)

    def close(self) -> None:
        """Close the listening socket, and all connections that have not been handed over."""
        if self.is_open:
            self.is_open = False
            self._loop.forget(self._listener)
            self._listener.close()
            for connection in list(self._unproven):
                self._forget(connection)
                connection.close()

    def _accept(self) -> None:
        for _ in range(ACCEPTED_AT_ONCE):
            if not self.is_open:
                return
            try:
                connection, address = self._listener.accept()
            except ConnectionError:
                continue
            except OSError as error:
                self._on_accept_error(error)
                return
            if len(self._unproven) >= self._most:
                self._make_room()
            self._greet(connection, str(address[0]))

    def _on_accept_error(self, error: OSError) -> None:
        if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
            if self._unproven:
                self._make_room()
            else:
                self._loop.forget(self._listener)
                self._loop.after(RETRY_SECONDS, self._accept_again)
        elif error.errno == errno.EINVAL:  # the listener was shut down by another thread
            self.close()

    def _accept_again(self) -> None:
        if self.is_open:
            self._loop.watch(self._listener, self._accept)

    def _make_room(self) -> None:
        address = max(self._by_address, key=lambda known: self._by_address[known])
        oldest = next(connection for connection, known in self._unproven.items() if known.address == address)
        self._end(oldest, "too many connections at once")

    def _greet(self, connection: socket.socket, address: str) -> None:
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            greeting = UnprovenConnection(connection, self._key)
        except OSError:  # it was closed already
            connection.close()
            return
        self._unproven[connection] = _Unproven(greeting, address, time.monotonic() + self._seconds)
        self._by_address[address] = self._by_address.get(address, 0) + 1
        self._loop.watch(connection, lambda: self._read(connection))
        if self._timer is None:
            self._timer = self._loop.after(self._seconds, self._expire)

    def _read(self, connection: socket.socket) -> None:
        known = self._unproven.get(connection)
        if known is None:  # ended by an event that the loop noticed together with this one
            return
        try:
            answer = known.greeting.receive()
        except BlockingIOError:
            return
        except (OSError, ProtocolError, ValueError, RecursionError) as error:
            self._forget(connection)
            connection.close()
            self._on_refused(known.address, str(error))
            return
        if answer:
            self._forget(connection)
            self._on_proven(*answer, known.address)

    def _end(self, connection: socket.socket, because: str) -> None:
        """Refuse it, unless its proof has arrived meanwhile."""
        self._read(connection)
        known = self._unproven.get(connection)
        if known is not None:
            self._forget(connection)
            connection.close()
            self._on_refused(known.address, because)

    def _expire(self) -> None:
        self._timer = None
        now = time.monotonic()
        for connection in [connection for connection, known in self._unproven.items() if known.until <= now]:
            self._end(connection, "it did not identify itself in time")
        if self._unproven:
            next_end = min(known.until for known in self._unproven.values())
            self._timer = self._loop.after(max(0.0, next_end - now), self._expire)

    def _forget(self, connection: socket.socket) -> None:
        address = self._unproven.pop(connection).address
        self._by_address[address] -= 1
        if not self._by_address[address]:
            del self._by_address[address]
        self._loop.forget(connection)


def connect(candidates: str, key: bytes, greeting: Message, timeout: float) -> Tuple[SignedChannel, str]:
    """Connect to each of `host:port,…` until one authenticates as the head. Returns the channel and that host.

    Raises OSError if none does within `timeout` seconds.
    """
    end = time.monotonic() + timeout
    refusal = "no answer"
    while time.monotonic() < end:
        for candidate in candidates.split(","):
            host, _, port = candidate.rpartition(":")
            connection = None
            try:
                name: Any = host.encode()  # Python would load its tables of international names for text
                connection = socket.create_connection((name, int(port)), TRY_SECONDS)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return greet(connection, key, greeting, PROOF_SECONDS), host
            except (OSError, ProtocolError) as error:
                refusal = str(error)
                if connection:
                    connection.close()
        time.sleep(0.2)
    raise OSError(errno.ETIMEDOUT, f"{os.strerror(errno.ETIMEDOUT)} ({refusal})", candidates)
