"""Hangs: no step and no output for much longer than ever before, and the rank for which the others wait.

`Gaps` learns what is usual, and `judge` names the rank. Both are pure. `HangWatch` asks the nodes in between, because a
long evaluation looks like a hang from afar: a rank whose stack changes within seconds computes.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Callable, Dict, Iterable, Iterator, List, Optional, Sequence, Set, Tuple

from serried.agent.comms.node_registry import NodeAgent
from serried.agent.head.anomalies import Anomaly, NodeSample
from serried.agent.stacks.flight_recorder import BACKWARD, GroupState, RankReport
from serried.base import NamedTuple
from serried.base.channel import Message
from serried.base.text import expand, ranges
from serried.schema.codec import known
from serried.schema.series import number

TIMES = 5.0
"""So many times the longest gap is a hang."""
SHORTEST_SECONDS = 60.0
FIRST = 5
"""Steps, or outputs, of each round that are not judged."""
SETTLING_SECONDS = 600.0
"""Output alone is not judged before: a program prints much as it starts, and may then prepare its data for minutes."""
SAME_SECONDS = 1.0
"""Outputs whose times differ by less may be the same one: messages are late."""
ANSWER_SECONDS = 40.0


class Hang(NamedTuple):
    message: str
    ranks: Tuple[int, ...] = ()
    """Those that did not arrive; empty if unknown."""
    is_certain: bool = False
    """Ranks wait for others. Otherwise all may be computing."""
    host: str = ""


class Gaps:
    """The longest time between two steps, or between two outputs. All times are by one clock."""

    def __init__(self) -> None:
        self.longest = 0.0
        self.begin_round()

    def begin_round(self) -> None:
        self.at: Optional[float] = None
        """Of the newest step."""
        self.until = -math.inf
        """What came later is not known yet."""
        self._step, self._seen, self._age = 0.0, 0.0, 0.0

    def see(self, until: float, at: float, step: Optional[float] = None) -> None:
        """The newest step `until` a moment, and when it was reached. Several may have been reached since the last."""
        is_new = self.at is None or (at >= self.at + SAME_SECONDS if step is None else step != self._step)
        if self.at is not None and is_new:
            taken = 1.0 if step is None else max(step - self._step, 1.0)
            if self._seen >= FIRST:  # `_age`: the gap was at least as long as at the last look
                self.longest = max(self.longest, (at - self.at) / taken, self._age)
            self._seen += taken
        if self.at is None or is_new:
            self.at, self._step = at, step or 0.0
        self.until, self._age = until, until - self.at

    @property
    def limit(self) -> float:
        """Seconds without a step after which a run counts as hung; infinite before enough was seen."""
        return max(SHORTEST_SECONDS, TIMES * self.longest) if self._seen >= FIRST else math.inf


def judge(reports: Sequence[RankReport]) -> Optional[Hang]:
    """The ranks that keep the others waiting; None if these compute or save, or if nothing is known."""
    by_rank = {report.rank: report for report in reports}
    wait = _by_records(by_rank) or _by_stacks(reports)
    late = wait.late
    judged = [by_rank[rank] for rank in late if rank in by_rank] if late else reports
    if not reports or any(report.is_moving or report.is_saving for report in judged):
        return None
    where = f"{wait.op} at {wait.at}" if wait.at else wait.op
    if not late:
        return Hang(f"all ranks wait in {where}" if where else "no rank takes a step", is_certain=wait.is_certain)
    message = f"rank{'s' * (len(late) > 1)} {ranges(late)} did not arrive in {where}"
    if len(late) == 1 and judged and judged[0].at:
        message += f", and is in {judged[0].function} at {judged[0].at}"
    return Hang(message, late, wait.is_certain)


class _Blockage(NamedTuple):
    late: Tuple[int, ...] = ()
    """The ranks for which others wait."""
    op: str = ""
    """The collective in which these wait, as `at`."""
    at: str = ""
    is_certain: bool = False


def _by_records(by_rank: Dict[int, RankReport]) -> Optional[_Blockage]:
    """Of each group, the members that have not begun the oldest collective for which another one waits."""
    groups: Dict[Tuple[str, str], Dict[int, GroupState]] = {}
    for rank, report in by_rank.items():
        for state in report.groups:
            groups.setdefault((state.group, state.ranks), {})[rank] = state
    waits = []
    for (_, ranks), begun in sorted(groups.items()):
        waiting = [state for state in begun.values() if state.waits_for]
        if waiting:
            oldest = min(waiting, key=lambda state: state.waits_for)
            members = expand(ranks) if ranks else sorted(by_rank)
            late = [rank for rank in members if rank not in begun or begun[rank].last < oldest.waits_for]
            waits.append(_Blockage(tuple(late), oldest.op, oldest.at, is_certain=True))
    # A rank that waits in another group is late because of a third one.
    blocked = {rank for rank, report in by_rank.items() if any(state.waits_for for state in report.groups)}
    first = [wait._replace(late=tuple(rank for rank in wait.late if rank not in blocked)) for wait in waits]
    return next((wait for wait in (*first, *waits) if wait.late), waits[0] if waits else None)


def _by_stacks(reports: Sequence[RankReport]) -> _Blockage:
    waiting = [(report.op, report.at) for report in reports if report.op]
    if waiting:
        op, at = _most_common(waiting)
        late = tuple(sorted(report.rank for report in reports if not report.op))
        return _Blockage(late, op, at, is_certain=bool(late) or op != BACKWARD)
    places = [(report.function, report.at) for report in reports if report.at]
    if not places or 2 * places.count(_most_common(places)) <= len(reports):
        return _Blockage()
    place = _most_common(places)
    return _Blockage(tuple(sorted(each.rank for each in reports if (each.function, each.at) != place)), *place)


def _most_common(places: Sequence[Tuple[str, str]]) -> Tuple[str, str]:
    return Counter(places).most_common(1)[0][0]


class HangWatch:
    """Looks at samples and heartbeats, asks all nodes for the stacks of their ranks, and reports a hang."""

    def __init__(
        self,
        nodes: Iterable[NodeAgent],
        clock: Callable[[], float],
        ask: Callable[[], str],
        on_hang: Callable[[Hang], bool],
    ) -> None:
        """`ask` requests stacks, and returns the id of the request. `on_hang` returns whether ranks start again."""
        self._nodes, self._clock, self._ask, self._on_hang = nodes, clock, ask, on_hang
        self._steps, self._outputs = Gaps(), Gaps()
        self.begin_round()

    def begin_round(self) -> None:
        """What was learnt about gaps stays."""
        for gaps in (self._steps, self._outputs):
            gaps.begin_round()
        self._began_at = self._clock()
        self._is_over = self._is_doubtful = False
        self._request, self._asked_at = "", 0.0
        self._awaited: Set[int] = set()
        self._reports: List[RankReport] = []
        self._hosts: Dict[int, str] = {}
        self._newest_at = -math.inf
        self.hang: Optional[Hang] = None
        """What was found since the newest step and output."""
        self._has_asked = False
        """Since then."""

    # As a check of samples.

    def begin(self, now: float) -> None:
        self._now, self._newest, self._until, self._is_last = now, (-math.inf, 0.0), now, False

    def see(self, sample: NodeSample) -> None:
        for rank in sample.ranks:
            step, age, total = number(rank.get("step")), number(rank.get("step_age")), number(rank.get("total_steps"))
            if step is not None and age is not None:
                self._newest = max(self._newest, (self._now - age - sample.age, step))
                self._until = min(self._until, self._now - sample.age)
                self._is_last |= total is not None and step >= total

    def found(self) -> Iterator[Anomaly]:
        at, step = self._newest
        if at > -math.inf:
            self._steps.see(self._until, at, step)
            self._is_over = self._is_last  # what follows takes no steps
        return iter(())

    # Every few seconds.

    def look(self) -> None:
        busy = [agent for agent in self._nodes if agent.running and not agent.is_done]
        if not busy:
            return
        at = max(agent.heartbeat_at - agent.quiet_seconds for agent in busy)
        self._outputs.see(min(agent.heartbeat_at for agent in busy), at)
        newest = max(gaps.at or -math.inf for gaps in (self._steps, self._outputs))
        if newest > self._newest_at:
            self._newest_at, self.hang, self._has_asked = newest, None, False
        if self._awaited:
            if self._clock() - self._asked_at > ANSWER_SECONDS:
                self._conclude()
        elif self._is_silent:
            self.ask()

    def ask(self) -> None:
        """Have all nodes report where their ranks are."""
        if not self._awaited:
            self._has_asked = True
            self._reports, self._asked_at = [], self._clock()
            self._awaited = {agent.index for agent in self._nodes if agent.running and agent.is_connected}
            self._request = self._ask()

    def ask_once(self) -> None:
        """As `ask`, unless that was done since the newest step and output."""
        if not self._has_asked:
            self.ask()

    def on_reports(self, agent: NodeAgent, message: Message) -> None:
        if message["id"] == self._request and agent.index in self._awaited:
            self._awaited.discard(agent.index)
            reports = [known(RankReport, report) for report in message["ranks"]]
            self._reports += reports
            self._hosts.update((report.rank, agent.host) for report in reports)
            if not self._awaited:
                self._conclude()

    @property
    def _gaps(self) -> Gaps:
        return self._outputs if self._steps.at is None else self._steps

    @property
    def _silence(self) -> float:
        """Seconds without a step and without output, as far as that is known."""
        known = [gaps.at for gaps in (self._steps, self._outputs) if gaps.at is not None]
        return self._gaps.until - max(known, default=math.inf)

    @property
    def _is_silent(self) -> bool:
        is_settled = self._gaps is self._steps or self._clock() - self._began_at >= SETTLING_SECONDS
        return is_settled and not self._is_over and self._silence > self._gaps.limit

    def _conclude(self) -> None:
        self._awaited = set()
        hang = judge(self._reports)
        if hang:
            self.hang = hang = hang._replace(host=next((self._hosts.get(rank, "") for rank in hang.ranks), ""))
        if not self._is_silent:  # a step has come, or somebody else asked
            return
        # Without evidence this may be an evaluation that computes in one line, and will end before long.
        if hang and (hang.is_certain or self._is_doubtful) and self._on_hang(hang):
            return
        self._is_doubtful = hang is not None
        self._gaps.longest = max(self._gaps.longest, self._silence)
