"""Rounds: after a failure that may pass, the ranks of all nodes start again within the attempt.

The agents stay, and with them staged data, the snapshot and the place in the queue. `obstacle` decides by codes.
`Rounds` collects what nodes report once their ranks have ended, and then starts another round or lets the attempt end.
"""

from __future__ import annotations

import re
import signal
import time
from collections import Counter
from typing import TYPE_CHECKING, Dict, List, Optional, Sequence

from serried.agent import system
from serried.base import NamedTuple
from serried.schema.endings import NodeEnded, RoundBegun
from serried.schema.exits import Exit
from serried.schema.reasons import Reason

if TYPE_CHECKING:
    from serried.agent.attempt import Attempt
    from serried.agent.comms.node_registry import NodeAgent
    from serried.agent.head.hangs import Hang
    from serried.agent.outcome.checkpoint_progress import Position

MOST_ALIKE = 1
"""Rounds after the same failure of the same rank at the same checkpoint: it would fail again."""
STORM_ROUNDS, STORM_SECONDS = 5, 1800.0
"""So many rounds in this time end the attempt, even if each made progress."""
PAUSE_SECONDS = (0.0, 15.0, 60.0)
"""Before a round, by the number of rounds that saved nothing new. The file system and the network may need the time."""
MOST_OF_A_NODE = 2
"""So many failures of ranks on one node show that the node is bad."""
OF_ITS_NODE = frozenset({Reason.SIGNAL, Reason.CUDA_KERNEL, Reason.SILENCE})
"""Failures that point to the rank's own node. A broken connection may be the fault of either end."""
FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGBUS, signal.SIGSEGV)
"""Signals that a program seldom causes itself. A shell or launcher that started the program returns them plus 128."""
MAY_PASS = frozenset(
    {Reason.SIGNAL, Reason.PEER_LOST, Reason.NCCL, Reason.CUDA_KERNEL, Reason.SILENCE, Reason.NODE_LOST}
)
SIGNS = (
    (Reason.CUDA_KERNEL, r"CUDA error: (?!out of memory)|uncorrectable ECC error|CUBLAS_STATUS_EXECUTION_FAILED"),
    (Reason.NCCL, r"NCCL error|nccl(?:System|Remote|Internal|UnhandledCuda)Error|NCCL communicator was aborted"),
    (Reason.NCCL, r"Watchdog caught collective operation timeout"),
)
"""Failures of GPUs and their network, in the last lines of a rank that exited by itself, or that torch aborted."""


class RoundFailure(NamedTuple):
    """Why a round ended, and where the run was then."""

    code: Reason
    message: str
    position: Position
    """Of the newest checkpoint."""
    t: float
    rank: Optional[int] = None
    host: str = ""
    error: str = ""

    def is_like(self, other: RoundFailure) -> bool:
        """Whether the same rank failed in the same way, and nothing was saved in between."""
        alike = (self.code, self.rank, self.error) == (other.code, other.rank, other.error)
        if self.code is Reason.NODE_LOST:
            alike = alike and self.host == other.host
        return alike and not self.position.is_beyond(other.position)


def obstacle(failure: RoundFailure, before: Sequence[RoundFailure], most: int) -> str:
    """Why no round follows `failure`; empty if one does. `most` is `limit.rounds`, the most without progress."""
    if failure.code not in MAY_PASS:
        return "it would fail again"
    if sum(failure.is_like(other) for other in before) >= MOST_ALIKE:
        return "it failed in the same way before"
    in_vain = rounds_in_vain([*before, failure])
    if in_vain >= most:
        return f"{in_vain} rounds saved nothing new"
    if sum(failure.t - other.t < STORM_SECONDS for other in before) >= STORM_ROUNDS:
        return f"there were {STORM_ROUNDS} rounds within {STORM_SECONDS / 60:.0f} minutes"
    return ""


def rounds_in_vain(failures: Sequence[RoundFailure]) -> int:
    """The number of rounds since the last one that saved something new."""
    in_vain = 0
    for earlier, later in zip(failures, failures[1:]):
        in_vain = 0 if later.position.is_beyond(earlier.position) else in_vain + 1
    return in_vain


def code_of(exit_: Exit, tail: Sequence[str]) -> Reason:
    """The cause of a rank's failure, as codes of rounds have it."""
    from serried.agent.outcome import diagnose

    cause = diagnose.cause(exit_, tail)
    if cause not in (Reason.EXIT, Reason.SIGNAL):
        return cause
    if exit_.status - 128 in FROM_OUTSIDE:
        return Reason.SIGNAL
    usual = Reason.CRASH if exit_.signal else cause
    return next((code for code, sign in SIGNS if any(re.search(sign, line) for line in tail)), usual)


class Rounds:
    """The rounds of an attempt so far."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self.failures: List[RoundFailure] = []
        self._ended: Dict[int, NodeEnded] = {}
        """Of the nodes that hold, after their ranks have ended."""
        self.unfit: Dict[str, str] = {}
        """What was found on nodes after the last failure, by their names."""

    def on_ended(self, agent: NodeAgent, ended: NodeEnded) -> None:
        self._ended[agent.index] = ended._replace(node=agent.index, host=agent.host)

    def may_follow(self, hang: Hang) -> bool:
        """Whether a round would follow if the ranks ended for this. Raises OSError."""
        failure = self._failure(Reason.SILENCE, [], [], hang)
        return failure is not None and not obstacle(failure, self.failures, self._attempt.plan.limit.rounds)

    def decide(self, reason: Reason, lost: Sequence[str] = (), hang: Optional[Hang] = None) -> Optional[RoundBegun]:
        """The next round, or None if the attempt ends. `reason` is that of the stop, after the nodes `lost` were lost.

        `hang` is what is known of a silence. Raises OSError.
        """
        ends = [self._ended[node] for node in sorted(self._ended)]
        self._ended.clear()
        failure = self._failure(reason, ends, lost, hang)
        if failure is None:
            return None
        because = obstacle(failure, self.failures, self._attempt.plan.limit.rounds)
        if because:
            system.log(f"no further round: {because}")
            return None
        self.failures.append(failure)
        self.unfit = {end.host: end.unfit for end in ends if end.unfit}
        own = {name: value for name, value in failure._asdict().items() if name in RoundBegun._fields and name != "t"}
        return RoundBegun(**own, round=len(self.failures) + 1, resume=self._attempt.newest_checkpoint or None)

    @property
    def bad_hosts(self) -> Dict[str, str]:
        """The nodes that are not to be used again, and why."""
        blamed = Counter(failure.host for failure in self.failures if failure.host and failure.code in OF_ITS_NODE)
        often = [(host, times) for host, times in blamed.items() if times >= MOST_OF_A_NODE]
        return {**{host: f"ranks failed there in {times} rounds" for host, times in often}, **self.unfit}

    @property
    def pause_seconds(self) -> float:
        """How long the next round waits."""
        return PAUSE_SECONDS[min(rounds_in_vain(self.failures), len(PAUSE_SECONDS) - 1)]

    def _failure(
        self, reason: Reason, ends: Sequence[NodeEnded], lost: Sequence[str], hang: Optional[Hang]
    ) -> Optional[RoundFailure]:
        from serried.agent.attempts import finalize
        from serried.agent.outcome import checkpoint_progress
        from serried.agent.outcome.evidence import first_failure

        if any(end.left for end in ends):  # what even KILL has not ended must not meet the next round
            return None
        attempt = self._attempt
        position = checkpoint_progress.position(attempt.directory.checkpoints, attempt.plan.watch_patterns)
        if reason is Reason.SILENCE:
            message = f"hung: {hang.message}" if hang else "no output from any rank for too long"
            rank, host = (next(iter(hang.ranks), None), hang.host) if hang else (None, "")
            return RoundFailure(reason, message, position, time.time(), rank, host)
        if reason is Reason.LOST:
            message = f"node {', '.join(lost)} was lost"
            return RoundFailure(Reason.NODE_LOST, message, position, time.time(), host=lost[0])
        evidence = finalize.gather(attempt, ends=ends)
        first = first_failure(evidence)
        if first is None:
            return None
        exit_ = first.exit
        tail = finalize.tail_of(attempt, evidence, first)
        message = f"rank {exit_.rank} on {exit_.host} {exit_.how}"
        return RoundFailure(
            code_of(exit_, tail), message, position, time.time(), exit_.rank, exit_.host, exit_.error.partition(":")[0]
        )
