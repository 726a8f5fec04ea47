"""The share of the metric's variation that each parameter explains."""

from __future__ import annotations

import math
import random

import pytest

from serried.plan import Sweep
from serried.sweeps.importance import LEAST, importance_of
from serried.sweeps.results import SweepResults, TrialResult


def a_sweep(trials, metric="acc"):
    """A sweep of (parameters, value)."""
    return SweepResults(
        Sweep("k3f9q2", (), metric, "maximize"),
        (),
        tuple(
            TrialResult(number, "k3f9q2", parameters, "COMPLETED", value, 1.0)
            for number, (parameters, value) in enumerate(trials)
        ),
    )


def drawn(count, seed=0, *, noise=0.01):
    """Trials of which the learning rate decides, the width a little, and the rest nothing."""
    generator = random.Random(seed)
    for _ in range(count):
        lr, width = 10 ** generator.uniform(-5, -1), generator.choice([1, 2, 3])
        rest = {"dropout": generator.uniform(0, 1), "kind": generator.choice(["a", "b"])}
        value = 1 - 0.05 * (math.log10(lr) + 2.5) ** 2 + 0.03 * width + generator.gauss(0, noise)
        yield {"lr": lr, "width": width, **rest, "constant": 1}, value


@pytest.mark.parametrize("seed", range(5))
def test_the_parameter_that_decides_comes_first(seed):
    shares = importance_of(a_sweep(drawn(200, seed))).shares
    assert list(shares)[:2] == ["lr", "width"]
    assert shares["lr"] > 0.6
    assert set(shares) == {"lr", "width", "dropout", "kind"}
    assert max(shares["dropout"], shares["kind"]) < 0.1


def test_values_of_a_grid_count_alone_and_text_as_numbers():
    grid = [({"lr": lr, "kind": kind, "seed": seed}, lr) for lr in (1, 2, 3) for kind in "ab" for seed in range(3)]
    assert importance_of(a_sweep(grid)).shares == {"lr": 1.0, "kind": 0.0, "seed": 0.0}


def test_it_is_the_eta_squared_of_kruskal_and_wallis():
    """Without ties, H = 12 / (n (n + 1)) * sum(R^2 / size) - 3 (n + 1) for the sums R of the groups' ranks."""
    ranks = [[1, 2, 5, 7, 9, 12], [3, 4, 8, 10, 14, 15], [6, 11, 13, 16, 17, 18]]
    trials = [({"kind": name}, float(rank)) for name, group in zip("abc", ranks, strict=True) for rank in group]
    h = 12 / (18 * 19) * sum(sum(group) ** 2 / 6 for group in ranks) - 3 * 19
    assert importance_of(a_sweep(trials)).shares["kind"] == pytest.approx((h - 3 + 1) / (18 - 3), abs=1e-4)


def test_a_diverged_trial_does_not_decide():
    trials = list(drawn(60))
    worst = min(range(60), key=lambda place: trials[place][1])
    before = importance_of(a_sweep(trials)).shares
    trials[worst] = (trials[worst][0], -1e300)
    assert importance_of(a_sweep(trials)).shares == before


def test_values_that_json_knows_count():
    values = [None, True, [1, 2], {"a": 1}, "x", 10**400]
    trials = [({"value": value}, float(place)) for place, value in enumerate(values) for _ in range(3)]
    assert importance_of(a_sweep(trials)).shares == {"value": 1.0}


def test_trials_without_a_parameter_are_a_group():
    trials = [({"lr": 1} if place % 2 else {}, float(place % 2)) for place in range(20)]
    assert importance_of(a_sweep(trials)).shares == {"lr": 1.0}


@pytest.mark.parametrize(
    ("trials", "reason"),
    [
        (list(drawn(LEAST - 1)), "importance needs 16 completed trials with a value, and 15 have one"),
        (
            [({"lr": 1}, 1.0)] + [({"lr": 2}, math.nan)] * 20,
            "importance needs 16 completed trials with a value, and 1 has",
        ),
        ([({"lr": place % 2}, 0.5) for place in range(20)], "all trials have the same acc"),
        ([({"id": f"x{place}"}, float(place)) for place in range(20)], "no parameter has values that repeat"),
        ([({}, float(place)) for place in range(20)], "no parameter has values that repeat"),
    ],
)
def test_too_little_has_a_reason(trials, reason):
    importance = importance_of(a_sweep(trials))
    assert importance.shares == {}
    assert importance.missing.startswith(reason)


def test_without_a_metric_nothing_is_important():
    assert importance_of(a_sweep(drawn(20), metric="")).missing == "the sweep has no metric"
