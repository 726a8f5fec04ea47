"""What the head knows of ranks that launchers start: who has come, who has ended, when a launcher may go.

A launcher's own exit status is never how the attempt ended, as long as its ranks can say it. It counts where they
cannot: when the launcher ends before all its ranks have started and ended.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, NamedTuple, Optional, Set

from serried.agent.attempt import Work
from serried.agent.comms.channel import Message
from serried.agent.comms.node_registry import Member, Members
from serried.agent.launchers import kinds
from serried.agent.loop import Loop
from serried.protocol.reasons import Reason

COME_SECONDS = 300.0
"""For the launchers to start all ranks, torch's import on a slow file system included."""
SETTLE_SECONDS = 5.0
"""A rank's failure may be told later than the end of a launcher on another node."""
LEAVE_SECONDS = 10.0
"""What a launcher has to end by itself once all its ranks have ended well."""
HURRIED_SECONDS = 3.0
"""The same when the attempt is being ended."""
NO_MODULE = "No module named"
"""Python's words for `-m` with a launcher that is not installed."""


class Failure(NamedTuple):
    message: str
    status: int
    """What the run exits with."""
    code: Reason = Reason.LAUNCH
    """Why, where no rank has started."""


class Launching:
    """`fail` is called when a launcher has failed and no rank."""

    def __init__(self, loop: Loop, work: Work, members: Members, fail: Callable[[Failure], None]) -> None:
        self._loop = loop
        self._work = work
        self._members = members
        self._fail = fail
        self._kind = kinds.of(work)
        self._left = work.nodes if self._kind and self._kind.everywhere else 1
        """Launchers that have not ended."""
        self._ends: List[Dict[str, Any]] = []
        self.came: Set[int] = set()
        self._ended: Set[int] = set()
        self._well: Set[int] = set()
        self._taken: Set[int] = set()
        """Ended by a launcher, though nobody had told it to."""
        self._is_stopping = False
        self._is_released = False

    def begin(self) -> None:
        if self._kind:
            self._loop.after(COME_SECONDS, self._check_come)

    def heed(self, member: Member, message: Message) -> None:
        event = message["event"]
        if event == "rank-began":
            self.came.add(message["rank"])
            self._ended.discard(message["rank"])
            self._well.discard(message["rank"])
            self._taken.discard(message["rank"])
        elif event == "rank-ended":
            self.came.add(message["rank"])
            self._ended.add(message["rank"])
            if message["well"]:
                self._well.add(message["rank"])
            if message["taken"]:
                self._taken.add(message["rank"])
            self._check_release()
        elif event == "starter-ended":
            self._ends.append({**message, "host": member.host})
            self._left -= 1
            if not self._left:
                self._members.tell("starters-ended", killed=any(end["status"] < 0 for end in self._ends))
            self._loop.after(SETTLE_SECONDS, self.judge)
        elif event == "relay":
            self._members.pass_on(message["to"], message["message"])
        elif event == "starter-wrong":
            self._fail(Failure(message["message"], 1))

    def stop(self) -> None:
        """The attempt is being ended: nobody else comes."""
        self._is_stopping = True
        self._check_release()

    def judge(self) -> None:
        """Whether a launcher that has ended has done its work."""
        if self._ends and not self._is_stopping and (self._taken or not self._are_complete):
            worst = next((end for end in self._ends if end["status"]), self._ends[0])
            self._fail(explain(worst, self._work.nodes * self._work.ranks, len(self.came)))

    @property
    def _are_complete(self) -> bool:
        """Whether all ranks have ended, for good."""
        return len(self._ended) == self._work.nodes * self._work.ranks

    def _check_release(self) -> None:
        is_time = self.came <= self._ended if self._is_stopping else self._are_complete
        if not self._kind or self._is_released or not is_time:
            return
        self._is_released = True
        is_hurried = self._is_stopping or self._well < self._ended
        patience = HURRIED_SECONDS if is_hurried else LEAVE_SECONDS
        self._members.tell("release", patience=patience if self.came else 0.0)

    def _check_come(self) -> None:
        world = self._work.nodes * self._work.ranks
        if len(self.came) < world and not self._is_stopping and not self._ends:
            missing = [rank for rank in range(world) if rank not in self.came]
            what = "no rank" if not self.came else f"only {len(self.came)} of {world} ranks"
            some = ", ".join(map(str, missing[:8])) + (" …" if missing[8:] else "")
            tail = f"; missing are {some}" if self.came else ""
            self._fail(Failure(f"`{self._work.launcher}` has started {what} within {COME_SECONDS:.0f} s{tail}", 1))


def explain(end: Dict[str, Any], world: int, came: int) -> Failure:
    """Of a launcher whose ranks have not all ended by themselves, its last words."""
    is_absent = end["is_absent"] or any(NO_MODULE in line for line in end["said"])
    code = Reason.NO_LAUNCHER if is_absent else Reason.LAUNCH
    if end["problem"]:
        return Failure(f"`{end['name']}` on {end['host']} cannot be started: {end['problem']}", 1, code)
    status = int(end["status"])
    how = f"was killed by signal {-status}" if status < 0 else f"exited with status {status}"
    when = "before it had started a rank" if not came else f"after it had started {came} of {world} ranks"
    when = "though no rank had failed" if came == world else when
    last: Optional[str] = next((line for line in reversed(end["said"]) if any(map(str.isalnum, line))), None)
    message = f"`{end['name']}` on {end['host']} {how}, {when}" + (f": {last.strip()}" if last else "")
    return Failure(message, 128 - status if status < 0 else status or 1, code)
