"""The node agents that have called the head: who is connected, who is done, and messages to all."""

from __future__ import annotations

import contextlib
import json
import os
import time
from typing import Any, Dict, Iterator, List, Optional, Protocol, Sequence

from serried.agent.comms import rendezvous
from serried.agent.comms.channel import SignedChannel
from serried.agent.comms.rendezvous import Acceptor
from serried.agent.loop import Loop
from serried.base.channel import Message
from serried.schema.events import ToHead, ToNode
from serried.schema.reasons import Reason

GREETING_SECONDS = 10.0


class NodeAgent:
    def __init__(
        self, host: str, channel: SignedChannel, address: str, greeting: Message, last_message_at: float
    ) -> None:
        self.index = int(greeting["node"])
        self.host = host
        self.problem = str(greeting.get("problem", ""))
        """The problem that keeps its ranks from starting; empty for none."""
        self.channel = channel
        self.address = address
        """The address from which it has connected."""
        self.last_message_at = last_message_at
        """The time of its last message, on the clock `Loop.awake`."""
        self.quiet_seconds = 0.0
        """How long its running ranks have written nothing, at `heartbeat_at` on the clock `Loop.awake`."""
        self.heartbeat_at = last_message_at
        self.running: List[int] = []
        self.has_backlog: Optional[bool] = None
        """Whether the loop waits until more can be sent; None before the loop watches the connection."""
        self.is_connected = True
        self.is_done = False
        self.busy_until = 0.0
        """Until when the head waits for it, on the monotonic clock: it is copying its ranks' results."""
        self.have_ranks_ended = False
        self.is_held = False
        """It has no ranks, or they have ended, and it waits for another round or for the end."""
        self.has_published = False
        """Complete checkpoints of the round that has ended there are in the run directory."""
        self.is_lost = False
        """It disappeared before it was done: processes of the attempt may still run there."""
        self.is_unfit = False
        """It gets no ranks any more."""


class NodeEvents(Protocol):
    """Callbacks of the registry; the head implements them."""

    def on_joined(self, agent: NodeAgent) -> None: ...
    def on_message(self, agent: NodeAgent, message: Message) -> None: ...
    def on_node_lost(self, agent: NodeAgent, code: Reason, because: str) -> None: ...
    def on_ranks_ended(self) -> None:
        """No rank runs on any node; results may still be copied."""


class NodeRegistry:
    def __init__(self, loop: Loop, nodes: int, hosts: Sequence[str], head: NodeEvents) -> None:
        self.key = os.urandom(32)
        self._loop = loop
        self._nodes = nodes
        self._hosts = hosts
        self._head = head
        self._agents: Dict[int, NodeAgent] = {}
        self._have_ranks_ended = False
        self._stops: Dict[str, float] = {}
        """The latest time of KILL for each reason that nodes received, on the monotonic clock."""
        listener = rendezvous.listen(nodes)
        self._port = listener.getsockname()[1]
        most = nodes + rendezvous.MOST_UNPROVEN
        self._acceptor = Acceptor(loop, listener, self.key, self._join, most=most, seconds=GREETING_SECONDS)

    def __iter__(self) -> Iterator[NodeAgent]:
        return iter(sorted(self._agents.values(), key=lambda agent: agent.index))

    def __len__(self) -> int:
        return len(self._agents)

    def addresses(self) -> str:
        """The addresses for node agents: `host:port,…`."""
        return ",".join(f"{address}:{self._port}" for address in rendezvous.addresses(self._hosts, self._nodes))

    def missing(self) -> List[str]:
        missing = [index for index in range(self._nodes) if index not in self._agents]
        return [self._hosts[index] if index < len(self._hosts) else f"node {index}" for index in missing]

    def are_done(self) -> bool:
        return all(agent.is_done for agent in self._agents.values())

    def silent_ranks(self, output_timeout_seconds: float) -> List[int]:
        """All running ranks, if none of them has written anything for `output_timeout_seconds`."""
        busy = [agent for agent in self if agent.running and not agent.is_done]
        is_silent = bool(busy) and min(agent.quiet_seconds for agent in busy) > output_timeout_seconds
        return [rank for agent in busy for rank in agent.running] if is_silent else []

    def stop_accepting(self) -> None:
        self._acceptor.close()

    def broadcast(self, do: str, **facts: Any) -> None:
        """Send `{"do": do, …}` to all."""
        text = json.dumps({"do": do, **facts})
        for agent in self:
            if agent.is_connected:
                agent.channel.send_text(text)
                self._watch(agent)

    def stop_ranks(self, reason: str, grace: float) -> bool:
        """Have all nodes end their ranks; False if they have received an equal or earlier stop for `reason`.

        A thousand ranks that lose one another fail at once: a broadcast for each would send a million messages.
        """
        due = time.monotonic() + grace
        if self._stops.get(reason, due + 1) <= due:
            return False
        self._stops[reason] = due
        self.broadcast(ToNode.STOP, reason=reason, hard=True, grace=grace)
        return True

    def release(self) -> None:
        """A round has ended on all nodes: forget its stops."""
        self._stops.clear()
        for agent in self:
            agent.is_held = agent.has_published = False
            agent.running = []  # until its next heartbeat

    def send_to(self, index: int, message: Message) -> None:
        agent = self._agents.get(index)
        if agent and agent.is_connected:
            agent.channel.send(message)
            self._watch(agent)

    def drop_unfinished(self, code: Reason, because: str) -> None:
        """Give up each agent that is not done: now, or after the time that the agent requested."""
        now = time.monotonic()
        awaited = [agent for agent in self if not (agent.is_done or agent.is_held)]
        for agent in awaited:
            if agent.busy_until <= now:
                self._head.on_node_lost(agent, code, because)
        waits = [agent.busy_until - now for agent in awaited if agent.busy_until > now]
        if waits:
            self._loop.after(min(waits), lambda: self.drop_unfinished(code, because))

    def disconnect(self, agent: NodeAgent) -> None:
        if agent.is_connected:
            agent.is_connected = False
            with contextlib.suppress(KeyError, ValueError):
                self._loop.forget(agent.channel.connection)
            agent.channel.close()
            self._announce_when_ranks_ended()

    def _announce_when_ranks_ended(self) -> None:
        """Announce once that no rank runs on any node: then no rank writes to shared files any more."""
        if self._have_ranks_ended or len(self) < self._nodes:
            return
        # Runs for each message of each node, so it does not sort the nodes.
        are_over = all(agent.have_ranks_ended or not agent.is_connected for agent in self._agents.values())
        if are_over and not self.are_done():
            self._have_ranks_ended = True
            self._head.on_ranks_ended()
            self.broadcast(ToNode.ALL_RANKS_ENDED)

    def _watch(self, agent: NodeAgent) -> None:
        has_backlog = bool(agent.channel.backlog)
        if has_backlog != agent.has_backlog:  # as for few of thousands of messages
            agent.has_backlog = has_backlog
            self._loop.watch(agent.channel.connection, lambda: self._receive(agent), writable=has_backlog)

    def _join(self, channel: SignedChannel, greeting: Message, address: str) -> None:
        index = int(greeting["node"])
        if index in self._agents or index >= self._nodes:
            channel.close()
            return
        host = self._hosts[index] if index < len(self._hosts) else str(greeting["host"])
        agent = self._agents[index] = NodeAgent(host, channel, address, greeting, self._loop.awake())
        self._watch(agent)
        self._head.on_joined(agent)

    def _receive(self, agent: NodeAgent) -> None:
        messages = agent.channel.receive()
        if messages is None:
            self.disconnect(agent)
            self._head.on_node_lost(agent, Reason.CONNECTION_ENDED, "its connection ended")
            return
        agent.last_message_at = self._loop.awake()
        self._watch(agent)
        for message in messages:
            agent.busy_until = max(agent.busy_until, time.monotonic() + message.get("patience", 0.0))
            agent.have_ranks_ended |= message["event"] == ToHead.DONE or bool(message.get("over"))
            self._head.on_message(agent, message)
        self._announce_when_ranks_ended()
