"""The head's end of the checks: gathers the facts of all nodes, has them judged, and writes the findings."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional

from serried.agent.attempt import Attempt
from serried.agent.comms.node_registry import NodeAgent, NodeRegistry
from serried.agent.loop import Loop
from serried.base.channel import Message
from serried.schema import codec
from serried.schema.events import JournalEvent, ToHead, ToNode

if TYPE_CHECKING:
    from serried.agent.checks.facts import NodeFacts, PeerFacts
    from serried.schema.checks import Finding

NODES_SECONDS = 20.0
"""The limit for the facts of all nodes, and then for the facts of their connections."""
MOST_PEERS = 63
"""How many others a node of a larger job connects to."""


class CheckCoordinator:
    """`fail` ends the launch if there is a problem. `is_over`: agents are about to leave, so facts no longer count."""

    def __init__(
        self,
        loop: Loop,
        attempt: Attempt,
        nodes: NodeRegistry,
        *,
        port: int,
        log_event: Callable[..., None],
        fail: Callable[[List[Finding]], bool],
        is_over: Callable[[], bool],
    ) -> None:
        """`port` is where ranks will meet."""
        self._loop, self._attempt, self._nodes, self._port = loop, attempt, nodes, port
        self._log_event, self._fail, self._is_over = log_event, fail, is_over
        self._facts: Dict[int, NodeFacts] = {}
        self._peers: Dict[int, PeerFacts] = {}
        self._began_at = 0.0
        self._are_peers_tested = self._are_nodes_judged = False
        self._go: Optional[Callable[[], None]] = None
        self.is_ready = not attempt.plan.preflight
        """Ranks may start."""
        self.seconds = 0.0
        """How long the checks have taken."""

    @property
    def has_begun(self) -> bool:
        return self._began_at > 0

    def begin(self) -> None:
        """All nodes are connected."""
        if self._attempt.agents > 1 or self._attempt.plan.preflight:
            self._began_at = time.monotonic()
            self._loop.after(NODES_SECONDS, self._test_peers)
            self._test_when_complete()

    def when_ready(self, go: Callable[[], None]) -> None:
        """Call `go` once no check has found a problem."""
        self._go = go

    def on_message(self, agent: NodeAgent, message: Message) -> bool:
        """False for a message that is not about checks."""
        event = message["event"]
        if event not in (ToHead.NODE_FACTS, ToHead.PEER_FACTS):
            return False
        from serried.agent.checks.facts import NodeFacts, PeerFacts

        if event == ToHead.NODE_FACTS:
            self._facts[agent.index] = codec.known(NodeFacts, message["facts"])._replace(host=agent.host)
            self._test_when_complete()
        else:
            self._peers[agent.index] = codec.known(PeerFacts, message["facts"])
            if len(self._peers) == len(self._facts):
                self._judge_nodes()
        return True

    def _test_when_complete(self) -> None:
        if self._began_at and len(self._facts) == self._attempt.agents:
            self._test_peers()

    def _test_peers(self) -> None:
        """Have the nodes connect to each other, as far as their facts have come."""
        if self._are_peers_tested or self._is_over():
            return
        self._are_peers_tested = True
        reachable = [index for index in sorted(self._facts) if self._facts[index].port]
        if len(reachable) < 2:
            self._judge_nodes()
            return
        self._loop.after(NODES_SECONDS, self._judge_nodes)
        peers = {index: _peer(self._facts[index]) for index in reachable}
        port = self._port if self._attempt.plan.preflight else 0  # else a rank may listen there already
        for index in self._facts:
            chosen = [peers[other] for other in peers_of(index, reachable)]
            self._nodes.send_to(index, {"do": ToNode.CHECK_PEERS, "peers": chosen, "port": port})

    def _judge_nodes(self) -> None:
        preflight = self._attempt.plan.preflight
        if self._are_nodes_judged or self._is_over():
            return
        self._are_nodes_judged = True
        self._nodes.broadcast(ToNode.CHECK_PEERS, peers=None)
        from serried.agent.checks import judge
        from serried.schema.checks import NOT_TESTED, Finding

        hosts = [agent.host for agent in self._nodes]
        plan = self._attempt.plan
        meets = plan.ranks_meet and plan.launch.kind != "single" and self._attempt.nodes > 1
        job = judge.CheckedJob(
            hosts,
            self._attempt.ranks,
            plan.allocation.gpus or 0,
            meets=meets,
            is_script=self._attempt.is_script,
            has_container=plan.container is not None,
            is_like_torchrun=plan.launch.kind in ("agent", "torchrun"),
        )
        try:
            findings = judge.findings(job, list(self._facts.values()), list(self._peers.values()))
        except Exception as error:  # noqa: BLE001 - an odd node must not end a run whose ranks may be running
            findings = [Finding("node-answers", NOT_TESTED, f"the checks failed: {type(error).__name__}: {error}")]
        self.seconds, entries = round(time.monotonic() - self._began_at, 2), [codec.facts_of(it) for it in findings]
        self._log_event(JournalEvent.CHECKED, part="nodes", findings=entries, seconds=self.seconds)
        if preflight and not self._fail(findings):
            self.is_ready = True
            if self._go:
                self._go()


def peers_of(index: int, nodes: List[int]) -> List[int]:
    """The peers of node `index`. Among many nodes, its neighbours on both sides: so pairs test both directions."""
    others = [node for node in nodes if node != index]
    if len(others) <= MOST_PEERS or index not in nodes:
        return others[:MOST_PEERS]
    place, half = nodes.index(index), MOST_PEERS // 2
    near = {nodes[(place + step) % len(nodes)] for step in range(-half, half + 1)} | {nodes[0]}
    return sorted(near - {index})


def _peer(node: NodeFacts) -> Any:
    from serried.agent.checks import facts

    return {"node": node.node, "host": node.host, "port": node.port, "addresses": facts.offered(node)}
