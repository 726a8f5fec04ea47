"""What the head makes of what nodes say about ranks that launchers start. Its clock is turned by hand."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from building import a_plan
from serried.agent.attempt import Attempt
from serried.agent.launchers.head_side import Failure, LauncherCoordinator
from serried.schema.layout import RunDirectory
from serried.schema.plan import Launch


class Clock:
    """As much of the loop as is used."""

    def __init__(self):
        self.due = []

    def after(self, seconds, action):
        self.due.append((seconds, action))

    def pass_all(self):
        while self.due:
            self.due.pop(0)[1]()


class Told(list):
    """What the nodes are told."""

    def broadcast(self, do, **facts):
        self.append((do, *facts.values()))


@pytest.fixture
def head():
    def make(kind="torchrun"):
        plan = a_plan(nodes=2, ranks=1)._replace(launch=Launch(kind))
        work = Attempt(RunDirectory(Path("/run")), plan, None, 1)
        clock, told, failures = Clock(), Told(), []
        launching = LauncherCoordinator(clock, work, told, failures.append)
        launching.begin()

        def hear(node, event, **facts):
            launching.on_message(SimpleNamespace(index=node, host=f"n{node + 1}"), {"event": event, **facts})

        return SimpleNamespace(
            launching=launching, clock=clock, told=told, failures=failures, hear=hear, said=lambda: failures[0].message
        )

    return make


def ended(rank, **facts):
    return {"rank": rank, "well": True, "taken": False, **facts}


def of_launcher(status, said=()):
    return {"name": "torchrun", "status": status, "said": list(said), "problem": None, "is_absent": False}


def test_launchers_see_how_ranks_have_ended_once_all_have(head):
    here = head()
    for rank in (0, 1):
        here.hear(rank, "rank-started", rank=rank)
    here.hear(0, "rank-ended", **ended(0))
    assert here.told == []
    here.hear(1, "rank-ended", **ended(1))
    assert here.told == [("release", 10.0)]


def test_a_rank_that_is_started_again_has_not_ended(head):
    here = head()
    here.hear(0, "rank-ended", **ended(0))
    here.hear(0, "rank-started", rank=0)
    here.hear(1, "rank-ended", **ended(1))
    assert here.told == []


def test_of_an_attempt_that_is_being_ended_the_ranks_that_came_are_waited_for(head):
    here = head()
    here.hear(1, "rank-started", rank=1)
    here.launching.stop()
    assert here.told == []
    here.hear(1, "rank-ended", **ended(1, well=False))
    assert here.told == [("release", 3.0)]


def test_nobody_is_waited_for_where_no_rank_came(head):
    here = head()
    here.launching.stop()
    assert here.told == [("release", 0.0)]


def test_a_launcher_that_ends_while_ranks_run_has_failed_unless_a_rank_is_named_soon(head):
    here = head()
    here.hear(0, "rank-started", rank=0)
    here.hear(1, "rank-started", rank=1)
    here.hear(0, "launcher-exited", **of_launcher(-9, ["last words", " "]))
    assert here.failures == []
    here.clock.pass_all()
    assert here.failures == [
        Failure("`torchrun` on n1 was killed by signal 9, though no rank had failed: last words", 137)
    ]


def test_a_launcher_that_ends_after_a_rank_has_failed_has_not(head):
    here = head()
    here.hear(0, "launcher-exited", **of_launcher(1))
    here.launching.stop()  # what the head does when a rank has failed
    here.clock.pass_all()
    assert here.failures == []


def test_a_launcher_that_ends_its_ranks_by_itself_has_failed(head):
    here = head()
    here.hear(0, "rank-ended", **ended(0, well=False, taken=True))
    here.hear(1, "rank-ended", **ended(1, well=False, taken=True))
    here.hear(0, "launcher-exited", **of_launcher(1))
    here.clock.pass_all()
    assert [failure.status for failure in here.failures] == [1]


def test_all_nodes_hear_when_the_last_launcher_has_ended(head):
    here = head()
    here.hear(1, "launcher-exited", **of_launcher(0))
    assert here.told == []
    here.hear(0, "launcher-exited", **of_launcher(0))
    assert here.told == [("launchers-exited", False)]
    one = head("srun")
    one.hear(0, "launcher-exited", **of_launcher(-15))
    assert one.told == [("launchers-exited", True)]


@pytest.mark.parametrize(
    ("came", "said"),
    [
        ((), "`torchrun` has started no rank within 300 s"),
        ((1,), "`torchrun` has started only 1 of 2 ranks within 300 s; missing are 0"),
    ],
)
def test_ranks_that_do_not_come_are_not_waited_for_for_ever(head, came, said):
    here = head()
    for rank in came:
        here.hear(rank, "rank-started", rank=rank)
    here.clock.pass_all()
    assert here.said() == said


def test_ranks_that_agents_start_are_none_of_its_business(head):
    here = head("agent")
    here.launching.stop()
    here.launching.judge()
    assert (here.clock.due, here.told, here.failures) == ([], [], [])


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"is_absent": True, "problem": "no such file or directory"}, "no-launcher"),
        ({"is_absent": False, "problem": "permission denied"}, "launch"),
        ({"said": ["/usr/bin/python3: No module named torch"]}, "no-launcher"),
        ({"said": ["out of slots"]}, "launch"),
    ],
)
def test_a_launcher_that_is_not_installed_is_told_from_one_that_failed(head, changes, code):
    here = head()
    here.hear(0, "launcher-exited", **{**of_launcher(1), **changes})
    here.clock.pass_all()
    assert [failure.code for failure in here.failures] == [code]
