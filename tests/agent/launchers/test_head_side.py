"""The head's view of ranks that launchers start, by messages of nodes. Its clock is turned by hand."""

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
    here.hear(0, "rank-ended", **ended(0))
    here.hear(0, "rank-started", rank=0)
    here.hear(1, "rank-ended", **ended(1))
    assert here.told == [], "a rank that is started again has not ended"
    here.hear(0, "rank-ended", **ended(0))
    assert here.told == [("release", 10.0)]


def test_of_an_attempt_that_is_being_ended_the_ranks_that_came_are_waited_for(head):
    here, without_ranks = head(), head()
    here.hear(1, "rank-started", rank=1)
    here.launching.stop()
    assert here.told == []
    here.hear(1, "rank-ended", **ended(1, well=False))
    assert here.told == [("release", 3.0)]
    without_ranks.launching.stop()
    assert without_ranks.told == [("release", 0.0)]


@pytest.mark.parametrize(
    ("came", "status", "output", "message"),
    [
        (2, -9, ["last words", " "], "was killed by signal 9, though no rank had failed: last words"),
        (1, 0, ["out of tasks"], "exited with status 0, after it had started 1 of 2 ranks: out of tasks"),
        (0, 0, [], "exited with status 0, before it had started a rank"),
    ],
)
def test_a_launcher_that_ends_while_ranks_run_has_failed_unless_a_rank_is_named_soon(
    head, came, status, output, message
):
    here = head()
    for rank in range(came):
        here.hear(rank, "rank-started", rank=rank)
    here.hear(0, "launcher-exited", **of_launcher(status, output))
    assert here.failures == []
    here.clock.pass_all()
    assert here.failures == [Failure(f"`torchrun` on n1 {message}", 137 if status else 1)]


@pytest.mark.parametrize(
    ("facts", "stops", "statuses"),
    [
        (None, True, []),  # as the head does when a rank has failed
        ({}, False, []),  # after its ranks have ended well
        ({"well": False, "taken": True}, False, [1]),  # it has ended its ranks by itself
    ],
)
def test_a_launcher_that_ends_after_its_ranks_has_failed_if_it_has_killed_them(head, facts, stops, statuses):
    here = head()
    for rank in (0, 1) if facts is not None else ():
        here.hear(rank, "rank-ended", **ended(rank, **facts))
    here.hear(0, "launcher-exited", **of_launcher(1))
    if stops:
        here.launching.stop()
    here.clock.pass_all()
    assert [failure.status for failure in here.failures] == statuses


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
