"""Hangs: what is learnt, who is blamed, and what follows. On a clock that the test moves."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest

from serried.agent.head.anomalies import NodeSample
from serried.agent.head.hangs import Gaps, Hang, HangWatch, judge
from serried.agent.stacks.flight_recorder import GroupState, RankReport
from serried.schema.codec import facts_of


def limit_after(*gaps, looks=1.0):
    """The limit after steps with these gaps, looked at every second."""
    pace, at, now = Gaps(), 0.0, 0.0
    pace.see(now, at, 0)
    for step, gap in enumerate(gaps, 1):
        while now + looks < at + gap:
            now += looks
            pace.see(now, at, step - 1)
        at = now = at + gap
        pace.see(now, at, step)
    return pace.limit


@pytest.mark.parametrize(
    ("gaps", "limit"),
    [
        ([], math.inf),
        ([300.0, 2.0, 2.0, 2.0], math.inf),
        ([300.0, 2.0, 2.0, 2.0, 2.0], 60.0),  # the first steps compile
        ([2.0] * 20, 60.0),
        ([2.0] * 10 + [30.0] + [2.0] * 10, 150.0),
    ],
)
def test_the_limit_is_five_times_the_longest_gap_after_the_first_steps(gaps, limit):
    assert limit_after(*gaps) == limit


def test_many_steps_between_two_looks_are_no_long_gap():
    pace = Gaps()
    for look in range(10):
        pace.see(60.0 * look, 60.0 * look, 100 * look)
    assert (pace.longest, pace.limit) == (0.6, 60.0)


def test_a_pause_is_seen_though_steps_followed_before_the_next_look():
    pace = Gaps()
    for at in range(0, 20, 2):
        pace.see(at, at, at)
    pace.see(48, 18, 18)
    pace.see(53, 53, 30)
    assert pace.longest == 30


def test_a_new_round_keeps_what_was_learnt_and_does_not_judge_its_first_steps():
    pace = Gaps()
    for step in range(10):
        pace.see(20.0 * step, 20.0 * step, step)
    pace.begin_round()
    assert (pace.longest, pace.limit) == (20.0, math.inf)
    for step in range(7):
        pace.see(1000 + step * 2.0, 1000 + step * 2.0, step)
    assert (pace.longest, pace.limit) == (20.0, 100.0)


def waits(rank, op="all_reduce", at="train.py:88", groups=()):
    return RankReport(rank, at, "train", op, groups=groups)


LOADS = RankReport(3, "data.py:12", "read")
IS_LATE = "rank 3 did not arrive in all_reduce at train.py:88"


@pytest.mark.parametrize(
    ("reports", "hang"),
    [
        (
            [waits(0), waits(1), waits(2), LOADS],
            Hang(f"{IS_LATE}, and is in read at data.py:12", (3,), is_certain=True),
        ),
        ([waits(0), RankReport(3)], Hang(IS_LATE, (3,), is_certain=True)),  # stopped, or in the kernel
        (
            [waits(0), *(RankReport(rank, "a.py:1", "f") for rank in (2, 1))],
            Hang("ranks 1-2 did not arrive in all_reduce at train.py:88", (1, 2), is_certain=True),
        ),
        ([waits(0), waits(1)], Hang("all ranks wait in all_reduce at train.py:88", is_certain=True)),
        ([waits(0, "backward"), waits(1, "backward")], Hang("all ranks wait in backward at train.py:88")),
        (
            [*(RankReport(rank, "train.py:9", "step") for rank in range(3)), LOADS],
            Hang("rank 3 did not arrive in step at train.py:9, and is in read at data.py:12", (3,)),
        ),
        ([RankReport(0, "a.py:1", "f"), RankReport(1, "b.py:1", "g")], Hang("no rank takes a step")),
        ([waits(0), LOADS._replace(is_moving=True)], None),
        ([waits(0), LOADS._replace(is_saving=True)], None),
        ([waits(0)._replace(is_moving=True), LOADS], judge([waits(0), LOADS])),  # it polls
        ([], None),
    ],
)
def test_the_rank_for_which_others_wait_is_named_unless_it_computes_or_saves(reports, hang):
    assert judge(reports) == hang


def in_group(group, last, waits_for=0, ranks="0-3"):
    return GroupState(group, ranks, last, waits_for, *(("all_reduce", "train.py:88") if waits_for else ()))


@pytest.mark.parametrize(
    ("groups", "late"),
    [
        ({0: [in_group("0", 7, 7)], 1: [in_group("0", 8, 7)], 2: [in_group("0", 7, 7)], 3: [in_group("0", 6)]}, (3,)),
        ({0: [in_group("0", 7, 7)], 1: [in_group("0", 7, 7)], 2: [], 3: [in_group("0", 7, 7)]}, (2,)),  # no record
        ({rank: [in_group("0", 7, 7)] for rank in (0, 1, 3)}, (2,)),  # it has exited
        ({0: [in_group("0", 7, 7)], 1: [in_group("0", 7, 7)], 2: [in_group("0", 7)], 3: [in_group("0", 7)]}, ()),
        (  # rank 1 is late in group 0, because it waits for rank 2 in group 1
            {
                0: [in_group("0", 7, 7, "0-1")],
                1: [in_group("0", 6, 0, "0-1"), in_group("1", 4, 4, "1-2")],
                2: [in_group("1", 3, 0, "1-2")],
            },
            (2,),
        ),
        (  # two groups of the same name are two groups
            {
                0: [in_group("1", 7, 7, "0-1")],
                1: [in_group("1", 6, 0, "0-1")],
                2: [in_group("1", 3, 0, "2-3")],
                3: [in_group("1", 3, 0, "2-3")],
            },
            (1,),
        ),
    ],
)
def test_records_of_collectives_name_the_rank_that_is_behind(groups, late):
    reports = [RankReport(rank, "train.py:99", "wait", groups=tuple(own)) for rank, own in groups.items()]
    hang = judge(reports)
    assert (hang.ranks, hang.is_certain) == (late, True)


class Nodes:
    """Two nodes with a rank each, and their watch."""

    def __init__(self, *, may_repeat=True):
        self.now, self.asked, self.hangs = 0.0, 0, []
        self.agents = [
            SimpleNamespace(
                index=at,
                host=f"n{at}",
                running=[at],
                is_done=False,
                is_connected=True,
                heartbeat_at=0.0,
                quiet_seconds=0.0,
            )
            for at in (0, 1)
        ]
        self.may_repeat = may_repeat
        self.watch = HangWatch(self.agents, lambda: self.now, self.ask, self.on_hang)

    def ask(self):
        self.asked += 1
        return f"id-{self.asked}"

    def on_hang(self, hang):
        self.hangs.append((round(self.now), hang.message, hang.host))
        return self.may_repeat

    def go(self, seconds, *, steps=0.0, prints=False, total=None):
        """Time passes, with `steps` of each rank per second."""
        for _ in range(int(seconds)):
            self.now += 1.0
            self.step = getattr(self, "step", 0) + steps
            self.stepped_at = self.now if steps else getattr(self, "stepped_at", None)
            for agent in self.agents:
                agent.quiet_seconds = 0.0 if prints else agent.quiet_seconds + 1.0
                agent.heartbeat_at = self.now
            if self.stepped_at is not None:
                self.watch.begin(self.now)
                for at in (0, 1):
                    rank = {"rank": at, "step": self.step, "step_age": self.now - self.stepped_at, "total_steps": total}
                    self.watch.see(NodeSample(at, f"n{at}", 0.0, {"ranks": [rank]}))
                assert list(self.watch.found()) == []
            self.watch.look()

    def answer(self, *reports):
        for agent, report in zip(self.agents, reports, strict=False):
            self.watch.on_reports(agent, {"id": f"id-{self.asked}", "ranks": [facts_of(report)]})


STUCK = RankReport(1, "data.py:12", "read")
FOUND = "rank 1 did not arrive in all_reduce at train.py:88, and is in read at data.py:12"


def test_a_hang_is_noticed_after_the_limit_and_named_when_all_nodes_have_answered():
    nodes = Nodes()
    nodes.go(20, steps=1)
    nodes.go(60)
    assert nodes.asked == 0
    nodes.go(1)
    assert nodes.asked == 1
    nodes.answer(waits(0), STUCK)
    assert nodes.hangs == [(81, FOUND, "n1")]


def test_a_node_that_does_not_answer_does_not_hold_the_others_up():
    nodes = Nodes()
    nodes.go(20, steps=1)
    nodes.go(61)
    nodes.answer(waits(0))
    nodes.go(41)
    assert nodes.hangs == [(122, "all ranks wait in all_reduce at train.py:88", "")]


def test_output_without_steps_and_steps_of_one_rank_are_no_hang():
    nodes = Nodes()
    nodes.go(20, steps=1)
    nodes.go(200, prints=True)
    assert nodes.asked == 0


def test_after_the_last_step_nothing_is_a_hang():
    nodes = Nodes()
    nodes.go(20, steps=1, total=20)
    nodes.go(500, total=20)
    assert nodes.asked == 0


def test_an_evaluation_that_computes_is_no_hang_and_raises_the_limit():
    nodes = Nodes()
    nodes.go(20, steps=1)
    nodes.go(61)
    nodes.answer(waits(0), STUCK._replace(is_moving=True))
    nodes.go(244)
    assert (nodes.asked, nodes.hangs) == (1, [])
    nodes.go(1)
    assert nodes.asked == 2


def test_a_step_that_comes_while_nodes_answer_is_no_hang():
    nodes = Nodes()
    nodes.go(20, steps=1)
    nodes.go(61)
    nodes.go(2, steps=1)
    nodes.answer(waits(0), STUCK)
    assert nodes.hangs == []


def test_without_evidence_a_hang_is_one_only_after_five_times_as_long():
    nodes = Nodes()
    nodes.go(20, steps=1)
    nodes.go(61)
    nodes.answer(RankReport(0), RankReport(1))
    nodes.go(244)
    nodes.go(1)
    nodes.answer(RankReport(0), RankReport(1))
    assert nodes.hangs == [(326, "no rank takes a step", "")]


def test_output_alone_is_judged_once_a_run_has_settled():
    nodes = Nodes()
    nodes.go(10, prints=True)
    nodes.go(300)  # prepares its data
    nodes.go(300, prints=True)
    nodes.go(61)
    assert nodes.asked == 0  # five times the 300 s
    early = Nodes()
    early.go(700, prints=True)
    early.go(61)
    assert early.asked == 1


def test_a_warning_is_not_repeated_every_few_seconds():
    nodes = Nodes(may_repeat=False)
    nodes.go(20, steps=1)
    nodes.go(61)
    nodes.answer(waits(0), STUCK)
    nodes.go(200)
    assert (nodes.asked, nodes.hangs) == (1, [(81, FOUND, "n1")])
