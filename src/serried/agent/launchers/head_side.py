"""The head's view of ranks that launchers start: which have started or ended, and when launchers may exit.

A launcher's exit status does not decide the attempt while its ranks can report. It counts if the launcher ends before
all its ranks have started and ended.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional

from serried.agent.attempt import Attempt
from serried.agent.comms.node_registry import NodeAgent, NodeRegistry
from serried.agent.loop import Loop
from serried.base import NamedTuple
from serried.base.channel import Message
from serried.schema import exits
from serried.schema.events import ToHead, ToNode
from serried.schema.reasons import Reason

START_SECONDS = 300.0
"""For the launchers to start all ranks, torch's import on a slow file system included."""
SETTLE_SECONDS = 5.0
"""A rank's failure may be reported later than the end of a launcher on another node."""
LEAVE_SECONDS = 10.0
"""For a launcher to exit by itself, once all its ranks have exited with 0."""
URGENT_LEAVE_SECONDS = 3.0
"""The same while the attempt is being ended."""
NO_MODULE = "No module named"
"""Printed by Python for `-m` with a launcher that is not installed."""


class Failure(NamedTuple):
    message: str
    status: int
    """The run's exit status."""
    code: Reason = Reason.LAUNCH
    """For an attempt without a started rank."""


class LauncherCoordinator:
    """Calls `fail` when a launcher has failed, and none of its ranks."""

    def __init__(self, loop: Loop, attempt: Attempt, nodes: NodeRegistry, fail: Callable[[Failure], None]) -> None:
        self._loop = loop
        self._attempt = attempt
        self._nodes = nodes
        self._fail = fail
        self._world_size = attempt.nodes * attempt.ranks
        self._running = 0
        """Launchers that have not ended."""
        self._exits: List[Dict[str, Any]] = []
        self.started: Dict[int, Optional[Message]] = {}
        """By rank that has started: the message about its end, None while it runs."""
        self._is_stopping = False
        self._is_released = False

    def begin(self) -> None:
        if not self._attempt.agents_start_ranks:
            from serried.agent.launchers.kinds import KINDS

            self._running = self._attempt.nodes if KINDS[self._attempt.plan.launch.kind].everywhere else 1
            self._loop.after(START_SECONDS, self._check_started)

    def on_message(self, member: NodeAgent, message: Message) -> None:
        event = message["event"]
        if event == ToHead.RANK_STARTED:
            self.started[message["rank"]] = None
        elif event == ToHead.RANK_ENDED:
            self.started[message["rank"]] = message
            self._check_release()
        elif event == ToHead.LAUNCHER_EXITED:
            self._exits.append({**message, "host": member.host})
            self._running -= 1
            if not self._running:
                self._nodes.broadcast(ToNode.LAUNCHERS_EXITED, killed=any(end["status"] < 0 for end in self._exits))
            self._loop.after(SETTLE_SECONDS, self.judge)
        elif event == ToHead.RELAY:
            self._nodes.send_to(message["to"], message["message"])
        elif event == ToHead.LAUNCHER_PROBLEM:
            self._fail(Failure(message["message"], 1))

    def stop(self) -> None:
        """The attempt is being ended: no further rank starts."""
        self._is_stopping = True
        self._check_release()

    def judge(self) -> None:
        """Fail the attempt if a launcher ended too early."""
        were_killed = any(end and end["taken"] for end in self.started.values())
        if self._exits and not self._is_stopping and (were_killed or not self._have_all_ended):
            worst = next((end for end in self._exits if end["status"]), self._exits[0])
            self._fail(explain(worst, self._world_size, len(self.started)))

    @property
    def _have_all_ended(self) -> bool:
        return len(self.started) == self._world_size and all(self.started.values())

    def _check_release(self) -> None:
        ends = self.started.values()
        is_time = all(ends) if self._is_stopping else self._have_all_ended
        if self._attempt.agents_start_ranks or self._is_released or not is_time:
            return
        self._is_released = True
        is_urgent = self._is_stopping or not all(end and end["well"] for end in ends)
        timeout = URGENT_LEAVE_SECONDS if is_urgent else LEAVE_SECONDS
        self._nodes.broadcast(ToNode.RELEASE, patience=timeout if ends else 0.0)

    def _check_started(self) -> None:
        missing = [rank for rank in range(self._world_size) if rank not in self.started]
        if missing and not self._is_stopping and not self._exits:
            count, tail = "no rank", ""
            if self.started:
                count = f"only {len(self.started)} of {self._world_size} ranks"
                tail = f"; missing are {', '.join(map(str, missing[:8]))}{' …' if missing[8:] else ''}"
            kind = self._attempt.plan.launch.kind
            self._fail(Failure(f"`{kind}` has started {count} within {START_SECONDS:.0f} s{tail}", 1))


def explain(end: Dict[str, Any], world: int, started: int) -> Failure:
    """The failure of a launcher whose ranks have not all ended by themselves, with the launcher's last output."""
    is_absent = end["is_absent"] or any(NO_MODULE in line for line in end["said"])
    code = Reason.NO_LAUNCHER if is_absent else Reason.LAUNCH
    if end["problem"]:
        return Failure(f"`{end['name']}` on {end['host']} cannot be started: {end['problem']}", 1, code)
    status = int(end["status"])
    how = exits.how(status, -status if status < 0 else None)
    when = f"after it had started {started} of {world} ranks" if started else "before it had started a rank"
    when = "though no rank had failed" if started == world else when
    last = next((f": {line.strip()}" for line in reversed(end["said"]) if any(map(str.isalnum, line))), "")
    message = f"`{end['name']}` on {end['host']} {how}, {when}{last}"
    return Failure(message, 128 - status if status < 0 else status or 1, code)
