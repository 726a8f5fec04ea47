"""The head's end of stage-in: tells each node which node to take data from, and starts ranks when all nodes have it."""

from __future__ import annotations

import time
from typing import Callable, Dict, Mapping, Optional, Tuple

from serried.agent import system
from serried.agent.attempt import Attempt
from serried.agent.comms.node_registry import NodeAgent, NodeRegistry
from serried.base.channel import Message
from serried.base.text import progress
from serried.schema.events import JournalEvent, ToHead, ToNode
from serried.schema.reasons import Reason

RECORD_SECONDS = 5.0
LOG_SECONDS = 30.0
"""In the job's own log, which must stay short."""
HEAD_ADDRESS = ""
"""Stands for the address of the head, which each node knows."""

Address = Tuple[str, int]


class StageInCoordinator:
    """Calls `go` when every node has its data, or `fail` with a sentence when a node cannot have it."""

    def __init__(
        self,
        attempt: Attempt,
        nodes: NodeRegistry,
        log_event: Callable[..., None],
        fail: Callable[[str, Reason], None],
        go: Callable[[], None],
    ) -> None:
        self._attempt, self._nodes = attempt, nodes
        self._log_event, self._fail, self._go = log_event, fail, go
        self._is_open = self._has_begun = False
        self._ports: Dict[int, int] = {}
        self._progress: Dict[int, Message] = {}
        self._staged: Dict[int, Message] = {}
        self._recorded_at = self._began_at = self._logged_at = 0.0

    def begin(self) -> None:
        """All nodes are connected."""
        self._is_open = True
        if not self._attempt.plan.staged_items:
            self._go()
        else:
            self._began_at = self._logged_at = time.monotonic()
            self._start_nodes()

    def on_message(self, member: NodeAgent, message: Message) -> bool:
        """False for a message that is not about stage-in."""
        event = message["event"]
        if event == ToHead.STAGE_PORT:
            self._ports[member.index] = message["port"]
            self._start_nodes()
        elif event == ToHead.STAGING:
            self._progress[member.index] = message
            self._record_progress()
        elif event == ToHead.STAGED:
            self._staged[member.index] = message
            if len(self._staged) == self._attempt.agents:
                totals = {name: max(int(state[name]) for state in self._staged.values()) for name in ("bytes", "files")}
                seconds = round(time.monotonic() - self._began_at, 2)
                self._log_event(JournalEvent.STAGED, **totals, seconds=seconds)
                self._go()
        elif event == ToHead.STAGE_FAILED:
            self._fail(f"{member.host}: data: {message['because']}", Reason.NO_DATA)
        else:
            return False
        return True

    def _start_nodes(self) -> None:
        """Once all nodes are connected and serve."""
        if not self._is_open or len(self._ports) < self._attempt.agents or self._has_begun:
            return
        self._has_begun = True
        self._log_event(JournalEvent.STAGING, bytes=0, of=0, files=0, of_files=0, rate=0, left=None)
        before = predecessors(self._ports, {member.index: peer_host(member) for member in self._nodes})
        for member in self._nodes:
            self._nodes.send_to(member.index, {"do": ToNode.STAGE, "before": before[member.index]})

    def _record_progress(self) -> None:
        """Of the node that is furthest behind, which all others wait for."""
        now = time.monotonic()
        if now - self._recorded_at < RECORD_SECONDS:
            return
        self._recorded_at = now
        waited_for = [state for index, state in self._progress.items() if index not in self._staged]
        slowest = min(waited_for, key=lambda state: (state["unpacks"], int(state["bytes"])))
        same_phase = [state for state in self._progress.values() if state["unpacks"] == slowest["unpacks"]]
        totals = {name: max(int(state[name]) for state in same_phase) for name in ("of", "of_files")}
        rate = slowest["rate"]
        left = round((totals["of"] - slowest["bytes"]) / rate) if rate else None
        facts = {name: slowest[name] for name in ("bytes", "files", "waits_for", "unpacks")}
        facts = {**facts, **totals, "rate": rate, "left": left}
        self._log_event(JournalEvent.STAGING, **facts)
        if now - self._logged_at >= LOG_SECONDS:
            self._logged_at = now
            system.log(f"staging {progress(facts)}")


def predecessors(ports: Mapping[int, int], hosts: Mapping[int, str]) -> Dict[int, Optional[Address]]:
    """By node: the address of the closest earlier node that serves; None for a node that has to read the source.

    `ports` has 0 for a node that does not serve.
    """
    before: Dict[int, Optional[Address]] = {}
    last: Optional[Address] = None
    for node in sorted(ports):
        before[node] = last
        if ports[node]:
            last = (hosts[node], ports[node])
    return before


def peer_host(member: NodeAgent) -> str:
    """The address at which other nodes reach this one."""
    connection = member.channel.connection
    try:
        own, head = (str(name()[0]) for name in (connection.getpeername, connection.getsockname))
    except OSError:
        return HEAD_ADDRESS  # the connection has ended, so the attempt will too
    return HEAD_ADDRESS if own == head else own
