"""The network between the nodes of a job, as their workers see it: who answers whom, at which address.

A connection counts once its other end has proven the attempt's key and answered a short and a long message.
"""

from __future__ import annotations

import errno
import queue
import socket
import sys
import threading
import time
from functools import partial
from typing import Any, Callable, Dict, Optional, Sequence, Tuple

from serried.agent.checks import facts
from serried.agent.checks.facts import PeerFacts, PeerResult
from serried.agent.comms.channel import ProtocolError, SignedChannel, greet
from serried.agent.comms.rendezvous import MOST_UNPROVEN, Acceptor
from serried.agent.loop import Loop
from serried.base import NamedTuple
from serried.base.channel import Message
from serried.base.hosts import resolve

BULK_BYTES = 48 << 10
"""Several frames of any size, and less than what the other end's kernel takes before its program reads."""
_UNACKNOWLEDGED = 0x5411  # SIOCOUTQ
TRIES_SECONDS = (1.5, 5.0)
"""For a connection, and for each answer. The first is longer than TCP waits before it repeats a lost packet."""
MOST_AT_ONCE = 64
STACK = 256 << 10


class PeerAddress(NamedTuple):
    node: int
    host: str
    port: int
    addresses: Tuple[str, ...]


class PeerServer:
    """Answers the workers of other nodes, in a thread of its own."""

    def __init__(self, key: bytes, node: int, nodes: int) -> None:
        """Raises OSError."""
        self._node = node
        self._loop = Loop()
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.bind(("", 0))
        listener.listen(nodes + MOST_UNPROVEN)
        listener.setblocking(False)
        self.port: int = listener.getsockname()[1]
        self._acceptor = Acceptor(
            self._loop, listener, key, self._on_proven, most=nodes + MOST_UNPROVEN, seconds=sum(TRIES_SECONDS)
        )
        threading.Thread(target=self._loop.run, daemon=True).start()

    def _on_proven(self, channel: SignedChannel, _greeting: Message, _address: str) -> None:
        self._loop.watch(channel.connection, partial(self._answer, channel))

    def _answer(self, channel: SignedChannel) -> None:
        messages = channel.receive()
        if messages is None:
            self._loop.forget(channel.connection)
            channel.close()
            return
        for message in messages:
            channel.send({"node": self._node, "clock": time.time(), "length": len(message["text"])})


class PeerTest:
    """Connects to `peers` by every address, many at once. `finish` returns what there is so far."""

    def __init__(self, key: bytes, node: int, peers: Sequence[PeerAddress]) -> None:
        self._key, self._node, self._peers = key, node, peers
        self._outcomes: Dict[Tuple[int, str], str] = {}
        self._names: Dict[int, Tuple[str, ...]] = {}
        self._clock: Optional[Tuple[float, float]] = None
        """The round trip, and the difference to the clock of node 0."""
        self._rendezvous = ""
        self._tasks: queue.SimpleQueue[Tuple[Callable[[], None], threading.Event]] = queue.SimpleQueue()
        self._left: Dict[threading.Event, int] = {}
        self._counting = threading.Lock()
        self.done, self.are_named = threading.Event(), threading.Event()
        """All connections have been tried, and all names resolved."""

    def begin(self, rendezvous: Optional[Tuple[str, int]]) -> None:
        tasks = [partial(self._try, peer, address) for peer in self._peers for address in peer.addresses]
        tasks += [partial(self._knock, rendezvous)] if rendezvous else []
        names = [partial(self._resolve, peer) for peer in self._peers]
        self._left = {self.done: len(tasks), self.are_named: len(names)}
        for what, those in ((self.done, tasks), (self.are_named, names)):  # a dead name server must not come first
            for task in those:
                self._tasks.put((task, what))
            if not those:
                what.set()
        threading.stack_size(STACK)
        for _ in range(min(MOST_AT_ONCE, len(tasks) + len(names))):
            threading.Thread(target=self._work, daemon=True).start()

    def _work(self) -> None:
        while True:
            try:
                task, what = self._tasks.get_nowait()
            except queue.Empty:
                return
            try:
                task()
            finally:
                with self._counting:
                    self._left[what] -= 1
                    if not self._left[what]:
                        what.set()

    def finish(self) -> PeerFacts:
        results = []
        for peer in self._peers:
            outcomes = {address: self._outcomes.get((peer.node, address), facts.SILENT) for address in peer.addresses}
            name = self._names.get(peer.node)
            if name is not None or set(outcomes.values()) != {facts.OK}:
                results.append(PeerResult(peer.node, outcomes, name))
        trip, offset = self._clock or (0.0, None)
        tested = tuple(peer.node for peer in self._peers)
        return PeerFacts(self._node, tested, tuple(results), offset, trip, self._rendezvous)

    def _try(self, peer: PeerAddress, address: str) -> None:
        for seconds in TRIES_SECONDS:
            outcome = self._outcomes[peer.node, address] = self._reach(peer, address, seconds)
            if outcome in (facts.OK, facts.REFUSED, facts.UNREACHABLE):
                return

    def _reach(self, peer: PeerAddress, address: str, seconds: float) -> str:
        outcome, until = facts.TIMED_OUT, time.monotonic() + seconds
        try:
            with _connect(address, peer.port, seconds) as connection:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                outcome = facts.SILENT
                channel = greet(connection, self._key, {"node": self._node}, seconds)
                sent_at = time.time()
                answer = _ask(channel, "", seconds)
                received_at = time.time()
                if answer is None:
                    return outcome
                if answer["node"] != peer.node:
                    return facts.OTHER
                trip = received_at - sent_at
                if not peer.node and (self._clock is None or trip < self._clock[0]):
                    self._clock = trip, (sent_at + received_at) / 2 - float(answer["clock"])
                if _ask(channel, "x" * BULK_BYTES, seconds):
                    outcome = facts.OK
                # A worker that gets no CPU does not answer either, but the kernel there acknowledges what arrives.
                elif channel.backlog or _unacknowledged(connection):
                    outcome = facts.NO_BULK
                return outcome
        except socket.timeout:
            return outcome
        except ProtocolError:  # also of an answer that this process read too late
            return facts.OTHER if time.monotonic() < until else facts.SILENT
        except OSError as error:
            return outcome if outcome == facts.SILENT else outcome_of(error)

    def _resolve(self, peer: PeerAddress) -> None:
        addresses = tuple(dict.fromkeys(resolve(peer.host)))
        if not set(addresses) & set(peer.addresses):
            self._names[peer.node] = addresses

    def _knock(self, place: Tuple[str, int]) -> None:
        """Nothing listens where ranks will meet, so a refusal shows that packets pass."""
        for seconds in TRIES_SECONDS:
            try:
                _connect(*place, seconds).close()
                self._rendezvous = facts.OK
            except OSError as error:
                self._rendezvous = facts.OK if outcome_of(error) == facts.REFUSED else outcome_of(error)
            if self._rendezvous != facts.TIMED_OUT:
                return


def _connect(address: str, port: int, seconds: float) -> socket.socket:
    name: Any = address.encode()  # Python would load its tables of international names for text
    return socket.create_connection((name, port), seconds)


def outcome_of(error: OSError) -> str:
    if isinstance(error, socket.timeout) or error.errno == errno.ETIMEDOUT:
        return facts.TIMED_OUT
    return facts.REFUSED if error.errno in (errno.ECONNREFUSED, errno.ECONNRESET) else facts.UNREACHABLE


def _ask(channel: SignedChannel, text: str, seconds: float) -> Optional[Message]:
    """The answer of the other end, which counts the letters of `text`; None without one in time."""
    until = time.monotonic() + seconds
    channel.send({"text": text})
    while (left := until - time.monotonic()) > 0:
        if channel.backlog:
            _wait_until_writable(channel.connection, left)
            channel.flush()
            continue
        answers = channel.receive_within(left)
        if answers is None:
            return None
        if answers:
            return answers[0] if answers[0]["length"] == len(text) else None
    return None


def _unacknowledged(connection: socket.socket) -> int:
    import fcntl

    return int.from_bytes(fcntl.ioctl(connection, _UNACKNOWLEDGED, bytes(4)), sys.byteorder)


def _wait_until_writable(connection: socket.socket, seconds: float) -> None:
    import select

    poll = select.poll()
    poll.register(connection, select.POLLOUT)
    poll.poll(1000 * seconds)
