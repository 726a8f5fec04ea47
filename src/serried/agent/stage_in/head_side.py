"""The head's end of stage-in: tells nodes when to begin; ranks start when all nodes have the data."""

from __future__ import annotations

import time
from typing import Any, Callable, Dict

from serried.agent import system
from serried.agent.attempt import Attempt
from serried.agent.comms.node_registry import NodeAgent, NodeRegistry
from serried.agent.stage_in.topology import HEAD_ADDRESS, peer_host, predecessors, staged_data
from serried.protocol.events import JournalEvent, ToHead, ToNode
from serried.protocol.json_lines import Message
from serried.protocol.reasons import Reason
from serried.protocol.sizes import progress

RECORD_SECONDS = 5.0
LOG_SECONDS = 30.0
"""The same in the job's own log, which nobody is to scroll through."""


class StageInCoordinator:
    """`go` is called when every node has its data, `fail` with a sentence where one cannot have it."""

    def __init__(
        self,
        work: Attempt,
        nodes: NodeRegistry,
        log_event: Callable[..., None],
        fail: Callable[[str, Reason], None],
        go: Callable[[], None],
    ) -> None:
        self._work, self._nodes = work, nodes
        self._log_event, self._fail, self._go = log_event, fail, go
        self._is_open = self._has_begun = False
        self._ports: Dict[int, int] = {}
        self._progress: Dict[int, Message] = {}
        self._staged: Dict[int, Message] = {}
        self._recorded_at = self._began_at = self._logged_at = 0.0

    def begin(self) -> None:
        """All nodes are here."""
        self._is_open = True
        if staged_data(self._work) is None:
            self._go()
        else:
            self._began_at = self._logged_at = time.monotonic()
            self._start_nodes()

    def on_message(self, member: NodeAgent, message: Message) -> bool:
        """Whether it was about this."""
        event = message["event"]
        if event == ToHead.STAGE_PORT:
            self._ports[member.index] = message["port"]
            self._start_nodes()
        elif event == ToHead.STAGING:
            self._progress[member.index] = message
            self._record_progress()
        elif event == ToHead.STAGED:
            self._staged[member.index] = message
            if len(self._staged) == self._work.nodes:
                self._log_event(
                    JournalEvent.STAGED, **self._totals(), seconds=round(time.monotonic() - self._began_at, 2)
                )
                self._go()
        elif event == ToHead.STAGE_FAILED:
            self._fail(f"{member.host}: data: {message['because']}", Reason.NO_DATA)
        else:
            return False
        return True

    def _start_nodes(self) -> None:
        """Once all are here and listen: who takes it from whom."""
        if not self._is_open or len(self._ports) < self._work.nodes or self._has_begun:
            return
        self._has_begun = True
        self._log_event(JournalEvent.STAGING, bytes=0, of=0, files=0, of_files=0, rate=0, left=None)
        before = predecessors(self._ports, {member.index: _peer_address(member) for member in self._nodes})
        for member in self._nodes:
            self._nodes.send_to(member.index, {"do": ToNode.STAGE, "before": before[member.index]})

    def _record_progress(self) -> None:
        """Of the node that is furthest behind: it is waited for."""
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
        same = {name: slowest[name] for name in ("bytes", "files", "waits_for", "unpacks")}
        facts = {**same, **totals, "rate": rate, "left": left}
        self._log_event(JournalEvent.STAGING, **facts)
        if now - self._logged_at >= LOG_SECONDS:
            self._logged_at = now
            system.log(f"staging {progress(facts)}")

    def _totals(self) -> Dict[str, Any]:
        return {name: max(int(state[name]) for state in self._staged.values()) for name in ("bytes", "files")}


def _peer_address(member: NodeAgent) -> str:
    """The address at which the others find it."""
    connection = member.channel.connection
    try:
        return peer_host(str(connection.getpeername()[0]), str(connection.getsockname()[0]))
    except OSError:
        return HEAD_ADDRESS  # it is gone, which will show
