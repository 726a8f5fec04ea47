"""The head's end of part `pairs`: programs in the ranks' environment measure devices, then the network between nodes.

Rounds, each with a deadline: devices; all-reduces between pairs of nodes, all pairs at once; the nodes of pairs that
failed or were slow with nodes of good pairs; all nodes together. All ranks of both nodes take part in a pair, as in the
run: each GPU may have a network card of its own. A node without torch, or whose program hangs, takes no part in pairs.
"""

from __future__ import annotations

import time
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence

from serried.agent.attempt import Attempt
from serried.agent.checks import pairs_judge
from serried.agent.checks.pairs_judge import ALL, DEVICES, PAIRS, ProbeMeasurements, ProbeRound
from serried.agent.checks.probe import ProbeJob, ProbeResult
from serried.agent.comms.node_registry import NodeAgent, NodeRegistry
from serried.agent.loop import Loop, Timer
from serried.agent.stage_in.head_side import peer_host
from serried.base import files
from serried.base.channel import Message
from serried.schema.checks import NOT_TESTED, Finding
from serried.schema.codec import facts_of, from_json
from serried.schema.events import JournalEvent, ToHead, ToNode

DEVICES_SECONDS, REDUCE_SECONDS = 45.0, 26.0
TORCH_SECONDS = 20.0
"""The limit of one operation of torch.distributed."""
LEAST_SECONDS = 5.0
"""A round is skipped if less time is left."""


def rounds(seen: ProbeMeasurements) -> Iterator[ProbeRound]:
    """Each round follows from what those before it have shown."""
    yield ProbeRound(DEVICES, [[node] for node in range(seen.nodes)])
    if pairs_judge.are_devices_doubtful(seen):
        yield ProbeRound(DEVICES, [[node] for node in range(seen.nodes) if seen.has_ended(0, [node])])
    able = [node for node in range(seen.nodes) if seen.is_able(node)]
    for turn in turns(able):
        yield ProbeRound(PAIRS, turn)
    again = second_turn(seen.groups(PAIRS))
    if again:
        yield ProbeRound(PAIRS, again)
    if len(able) > 2 and not any(group.problem for group in pairs_judge.unexplained(seen.groups(PAIRS))):
        yield ProbeRound(ALL, [able])
        if seen.groups(ALL)[-1].problem:
            yield ProbeRound(ALL, [able])


def turns(nodes: Sequence[int]) -> List[List[List[int]]]:
    """Neighbours. If the number is odd, an extra turn has the last node with the first."""
    pairs = [[nodes[at], nodes[at + 1]] for at in range(0, len(nodes) - 1, 2)]
    extra = [[nodes[0], nodes[-1]]] if pairs and len(nodes) % 2 else []
    return [turn for turn in (pairs, extra) if turn]


def second_turn(groups: Sequence[pairs_judge.MeasuredGroup]) -> List[List[int]]:
    """Each node that only bad pairs have, with one of a good pair; bad pairs once more if no pair is good."""
    good, bad = pairs_judge.good_nodes(groups), pairs_judge.bad_groups(groups)
    losers = sorted({node for group in bad for node in group.nodes} - set(good))
    if good:
        return [[winner, loser] for winner, loser in zip(good, losers)]
    return [[losers[at], losers[at + 1]] for at in range(0, len(losers) - 1, 2)]


class PairsCoordinator:
    """Runs the rounds, logs the findings and calls `on_findings` with them."""

    def __init__(
        self,
        loop: Loop,
        attempt: Attempt,
        nodes: NodeRegistry,
        log_event: Callable[..., None],
        on_findings: Callable[[List[Finding]], None],
    ) -> None:
        self._loop, self._attempt, self._nodes = loop, attempt, nodes
        self._log_event, self._on_findings = log_event, on_findings
        ranks = (attempt.plan.allocation.gpus or 1) if attempt.is_script else attempt.ranks
        self._seen = ProbeMeasurements(attempt.agents, ranks)
        self._rounds = rounds(self._seen)
        self._place: Dict[str, Any] = {}
        self._ports: Dict[int, List[int]] = {}
        self._timer: Optional[Timer] = None
        self._began = self._end = 0.0
        self.has_begun, self._is_open = False, False

    def begin(self, place: Dict[str, Any], seconds: float) -> None:
        """`place`: variables of all ranks, as START_RANKS has them. What takes longer than `seconds` is not tested."""
        self._began, self._place = time.monotonic(), place
        self._end = self._began + seconds
        self.has_begun = self._is_open = True
        self._next()

    def on_message(self, agent: NodeAgent, message: Message) -> bool:
        """False for a message that is not about these programs."""
        if message["event"] != ToHead.PROBED:
            return False
        self._ports.setdefault(agent.index, []).extend(message.get("ports", ()))
        for result in message.get("results", ()):
            self._seen.add(message["round"], agent.index, from_json(ProbeResult, result))
        if self._is_open and self._seen.has_ended(len(self._seen.rounds) - 1):
            self._next()
        return True

    def stop(self) -> None:
        """End the programs, without findings: the attempt ends."""
        if self._is_open:
            self._is_open = False
            if self._timer:
                self._timer.cancel()
            self._nodes.broadcast(ToNode.PROBE, job=None)

    def _next(self) -> None:
        if self._timer:
            self._timer.cancel()
        left = self._end - time.monotonic()
        round_ = next(self._rounds, None) if left > LEAST_SECONDS else None
        if round_ is None:
            self._finish()
            return
        number, agents = len(self._seen.rounds), list(self._nodes)
        self._seen.rounds.append(round_)
        active = self._seen.active(round_)
        for group in round_.groups:
            job = ProbeJob(number, 0, root="yes" if number == 0 else "")
            if round_.kind != DEVICES:
                ports = self._ports[group[0]]
                job = job._replace(
                    size=len(group) * active,
                    host=peer_host(agents[group[0]]),
                    port=ports[number % len(ports)],
                    limit=TORCH_SECONDS,
                )
            for place, node in enumerate(group):
                probe = {
                    "job": facts_of(job._replace(rank=place * active)),
                    "active": active,
                    "ranks": self._seen.ranks,
                }
                self._nodes.send_to(node, {"do": ToNode.PROBE, "place": self._place, **probe})
        self._timer = self._loop.after(
            min(DEVICES_SECONDS if round_.kind == DEVICES else REDUCE_SECONDS, left), self._next
        )

    def _finish(self) -> None:
        self.stop()
        hosts = [agent.host for agent in self._nodes]
        has_container = self._attempt.plan.container is not None
        try:
            found = pairs_judge.judge(hosts, self._seen, has_container=has_container)
        except Exception as error:  # noqa: BLE001 - an odd result must not end the run
            found = [Finding("all-reduce", NOT_TESTED, f"the checks failed: {type(error).__name__}: {error}")]
        found = [*pairs_judge.judge_launch(files.read_journal(self._attempt.files.events)), *found]
        entries, seconds = [facts_of(finding) for finding in found], round(time.monotonic() - self._began, 2)
        self._log_event(JournalEvent.CHECKED, part="pairs", findings=entries, seconds=seconds)
        self._on_findings(found)
