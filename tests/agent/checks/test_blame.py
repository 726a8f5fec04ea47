"""Which nodes are to blame: for connections that fail, and for slow CPUs."""

from __future__ import annotations

from itertools import count, permutations

from serried.agent.checks import probe
from serried.agent.checks.judge import Blame, blame

PAIRS = set(permutations(range(4), 2))


def test_a_node_that_no_other_reaches_explains_whatever_else_it_does_not_reach():
    assert blame({(0, 2), (1, 2), (3, 2), (2, 1)}, PAIRS) == Blame(into=(2,))


def test_one_direction_between_two_nodes_is_a_matter_of_both():
    assert blame({(3, 1)}, PAIRS) == Blame(pairs=((3, 1),))


def test_no_node_is_blamed_for_a_fault_of_more_than_half_of_them():
    assert blame(PAIRS, PAIRS) == Blame(pairs=tuple(sorted(PAIRS)))


def test_a_cpu_is_as_fast_as_its_own_time_says_however_long_others_keep_it_busy():
    ticks = count()

    seen = probe._repeated(lambda: 1, lambda _: True, operations=10, difference=0, clock=lambda: next(ticks))

    assert (seen.rate, seen.problem) == (10.0, "")
