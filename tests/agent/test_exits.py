"""Ends of ranks that are held back until it shows whose doing they were. The clock is turned by hand."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from serried.agent.node import Exits
from serried.schema.exits import Exit


def an_exit(rank, code=0, signal=None, **more):
    return Exit(rank, 0, None if signal else code, signal, 1.0, False, **more)


@pytest.fixture
def node():
    due, told, tails = [], [], []
    ranks = SimpleNamespace(exits={}, was_killed_by_launcher=lambda _: False, tail=lambda _: ["boom"])
    loop = SimpleNamespace(after=lambda _, action: due.append(action))

    def tell(_, **failure):
        told.append(failure["exit"]["rank"])
        tails.extend([failure["exit"]["rank"]] * bool(failure["tail"]))

    exits = Exits(SimpleNamespace(loop=loop, log_event=lambda *_, **__: None, send=tell, finish_if_ended=list))

    def take(exit_):
        exits.add(ranks, exit_, is_stopping=False)

    return SimpleNamespace(
        exits=exits, ranks=ranks, take=take, told=told, tails=tails, wait=lambda: [due.pop(0)() for _ in due[:]]
    )


def test_a_rank_that_dies_of_term_before_its_agent_hears_one_has_not_failed(node):
    node.take(an_exit(0, signal=15))
    assert (node.told, node.exits.have_all_been_sent) == ([], False)
    node.exits.mark_ended_by_us()
    node.wait()
    assert (node.told, node.exits.have_all_been_sent, node.ranks.exits[0].ended_by_us) == ([], True, True)


def test_a_rank_that_dies_of_a_term_that_nobody_else_hears_has_failed(node):
    node.take(an_exit(0, signal=15))
    node.wait()
    assert (node.told, node.exits.have_all_been_sent) == ([0], True)


@pytest.mark.parametrize("ended", [an_exit(0, code=3), an_exit(0, signal=9)])
def test_another_failure_is_told_at_once(node, ended):
    node.take(ended)
    assert (node.told, node.exits.have_all_been_sent) == ([0], True)


def test_a_rank_that_stumbled_over_another_is_told_after_that_one(node):
    node.take(an_exit(0, code=1, stumbled=True))
    node.take(an_exit(1, code=9))
    assert node.told == [1]
    node.exits.release(node.ranks, stumbled=True)
    assert (node.told, node.exits.have_all_been_sent) == ([1, 0], True)


def test_a_node_sends_the_output_of_the_first_rank_that_lost_another_and_of_the_first_that_failed_itself(node):
    for rank in (0, 1):
        node.take(an_exit(rank, code=1, stumbled=True))
    node.wait()
    node.take(an_exit(2, code=1))
    for rank in (3, 4):
        node.take(an_exit(rank, code=1, stumbled=True))
    node.take(an_exit(5, code=1))
    node.wait()
    assert (node.told, node.tails) == ([0, 1, 2, 5, 3, 4], [0, 2])
