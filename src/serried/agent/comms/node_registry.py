"""The node agents that have called the head: who they are, whether they are still there, and a word to them all."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Sequence

from serried.agent.comms import rendezvous
from serried.agent.comms.channel import Channel, Guest, Message, ProtocolError
from serried.agent.loop import Loop
from serried.protocol.reasons import Reason

GREETING_SECONDS = 10.0


class Member:
    """A node agent that has proven itself."""

    def __init__(self, host: str, channel: Channel, greeting: Message, heard: float) -> None:
        self.index = int(greeting["node"])
        self.host = host
        self.problem = str(greeting.get("problem", ""))
        """What keeps ranks from starting there; empty for none."""
        self.ports: List[int] = greeting.get("ports", [])
        """That it keeps for its ranks."""
        self.channel = channel
        self.heard = heard
        """When, on the loop's clock of being awake."""
        self.quiet = 0.0
        """Since when its running ranks have written nothing, in seconds."""
        self.running: List[int] = []
        self.is_connected = True
        self.is_done = False
        self.patience = 0.0
        """Until when it is not given up, on the monotonic clock: it is at work for its ranks' results."""
        self.is_over = False
        """Its ranks have ended."""
        self.is_lost = False
        """It went before it was done: something of the attempt may still run there."""


class Reactions(NamedTuple):
    """What is called from the loop when an agent has joined, says something, or is gone and why.

    And when no rank runs any more, though agents are still at work for their results.
    """

    join: Callable[[Member], None]
    message: Callable[[Member, Message], None]
    loss: Callable[[Member, Reason, str], None]
    rest: Callable[[], None]


class Members:
    def __init__(self, loop: Loop, nodes: int, hosts: Sequence[str], reactions: Reactions) -> None:
        self.key = os.urandom(32)
        self._loop = loop
        self._nodes = nodes
        self._hosts = hosts
        self._on = reactions
        self._members: Dict[int, Member] = {}
        self._is_open = True
        self._is_over = False
        self._stops: Dict[str, float] = {}
        """By when ranks are killed at the latest, by the reason that nodes were told: on the monotonic clock."""
        self._listener = rendezvous.listen(nodes)
        loop.watch(self._listener, self._accept)

    def __iter__(self) -> Iterator[Member]:
        return iter(sorted(self._members.values(), key=lambda member: member.index))

    def __len__(self) -> int:
        return len(self._members)

    def addresses(self) -> str:
        """Where node agents may call: `host:port,…`."""
        port = self._listener.getsockname()[1]
        return ",".join(f"{address}:{port}" for address in rendezvous.addresses(self._hosts, self._nodes))

    def host(self, index: int) -> str:
        return self._hosts[index] if index < len(self._hosts) else f"node {index}"

    def missing(self) -> List[str]:
        return [self.host(index) for index in range(self._nodes) if index not in self._members]

    def expect_nothing(self) -> None:
        for member in self:
            member.is_done = True

    def are_done(self) -> bool:
        return all(member.is_done for member in self._members.values())

    def silent_ranks(self, patience: float) -> List[int]:
        """All ranks that still run, if none of them has written anything for `patience` seconds."""
        busy = [member for member in self if member.running and not member.is_done]
        is_silent = bool(busy) and min(member.quiet for member in busy) > patience
        return [rank for member in busy for rank in member.running] if is_silent else []

    def close_door(self) -> None:
        """Everybody is here, or nobody is wanted any more."""
        if self._is_open:
            self._is_open = False
            self._loop.forget(self._listener)
            self._listener.close()

    def tell(self, do: str, **facts: Any) -> None:
        """Send `{"do": do, …}` to all."""
        for member in self:
            if member.is_connected:
                member.channel.send({"do": do, **facts})
                self._watch(member)

    def stop(self, reason: str, grace: float) -> bool:
        """Have all nodes end their ranks; False where they have been told so already.

        A thousand ranks that lose one another fail at once: a word to all nodes for each would be a million.
        """
        due = time.monotonic() + grace
        if self._stops.get(reason, due + 1) <= due:
            return False
        self._stops[reason] = due
        self.tell("stop", reason=reason, hard=True, grace=grace)
        return True

    def pass_on(self, index: int, message: Message) -> None:
        """Send to one what another says; one that is gone misses nothing more."""
        member = self._members.get(index)
        if member and member.is_connected:
            member.channel.send(message)
            self._watch(member)

    def workers(self) -> List[str]:
        """`address:port` for each port that is kept for a rank, in the order of ranks."""
        return [f"{member.channel.connection.getpeername()[0]}:{port}" for member in self for port in member.ports]

    def give_up(self, lose: Callable[[Member], None]) -> None:
        """Call `lose` for each that should have been done: at once, or when what it asked for is over too."""
        now = time.monotonic()
        awaited = [member for member in self if not member.is_done]
        for member in awaited:
            if member.patience <= now:
                lose(member)
        waits = [member.patience - now for member in awaited if member.patience > now]
        if waits:
            self._loop.after(min(waits), lambda: self.give_up(lose))

    def disconnect(self, member: Member) -> None:
        if member.is_connected:
            member.is_connected = False
            with contextlib.suppress(KeyError, ValueError):
                self._loop.forget(member.channel.connection)
            member.channel.close()
            self._tell_when_over()

    def _tell_when_over(self) -> None:
        """Once, when no rank runs any more on any node: nobody writes what several nodes see."""
        if self._is_over or len(self) < self._nodes:
            return
        # Asked at each message of each node: without sorting the nodes first.
        are_over = all(member.is_over or not member.is_connected for member in self._members.values())
        if are_over and not self.are_done():
            self._is_over = True
            self._on.rest()
            self.tell("all-over")

    def _watch(self, member: Member) -> None:
        waits = bool(member.channel.backlog)
        self._loop.watch(member.channel.connection, lambda: self._receive(member), writable=waits)

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            guest = Guest(connection, self.key)
        except OSError:
            return
        impatience = self._loop.after(GREETING_SECONDS, lambda: self._dismiss(connection))

        def hear() -> None:
            try:
                answer = guest.receive()
            except BlockingIOError:
                return
            except (OSError, ProtocolError, ValueError):
                impatience.cancel()
                self._dismiss(connection)
                return
            if answer:
                impatience.cancel()
                self._join(*answer)

        self._loop.watch(connection, hear)

    def _dismiss(self, connection: socket.socket) -> None:
        self._loop.forget(connection)
        connection.close()

    def _join(self, channel: Channel, greeting: Message) -> None:
        index = int(greeting["node"])
        if not self._is_open or index in self._members or index >= self._nodes:
            self._dismiss(channel.connection)
            return
        host = self._hosts[index] if index < len(self._hosts) else str(greeting["host"])
        member = self._members[index] = Member(host, channel, greeting, self._loop.awake())
        self._watch(member)
        self._on.join(member)

    def _receive(self, member: Member) -> None:
        messages = member.channel.hear()
        if messages is None:
            self.disconnect(member)
            self._on.loss(member, Reason.CONNECTION_ENDED, "its connection ended")
            return
        member.heard = self._loop.awake()
        self._watch(member)
        for message in messages:
            member.patience = max(member.patience, time.monotonic() + message.get("patience", 0.0))
            member.is_over |= message["event"] == "done" or bool(message.get("over"))
            self._on.message(member, message)
        self._tell_when_over()
