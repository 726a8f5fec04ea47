"""How much of the metric's variation each parameter of a sweep explains.

The measure is eta squared of the Kruskal-Wallis test, (H - k + 1) / (n - k) for k groups of n trials: the share of the
variance of the metric's ranks that the parameter's values explain, less what as many groups of random trials would
explain. Ranks keep one diverged trial from deciding. Parameters that only matter together get too little.

Sources: Kruskal and Wallis, "Use of Ranks in One-Criterion Variance Analysis" (JASA 1952); Kelley, "An Unbiased
Correlation Ratio Measure" (PNAS 1935); Tomczak and Tomczak, "The need to report effect size estimates revisited"
(Trends in Sport Sciences, 2014).
"""

from __future__ import annotations

import json
import math
import statistics
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from serried.sweeps.results import SweepResults

LEAST = 16
"""Of fewer trials, a parameter without any effect often explains half of the variation by chance."""


@dataclass(frozen=True)
class Importance:
    shares: dict[str, float]
    """By parameter, the largest first: from 0, none of the variation, to 1, all of it."""
    missing: str = ""
    """Why there are no shares."""


def importance_of(results: SweepResults) -> Importance:
    """Over the trials that completed with a value of the metric. Parameters with one value only are left out."""
    if not results.sweep.metric:
        return Importance({}, "the sweep has no metric")
    trials = [trial for trial in results.trials if trial.counts]
    if len(trials) < LEAST:
        have = f"{len(trials)} {'has' if len(trials) == 1 else 'have'} one"
        return Importance({}, f"importance needs {LEAST} completed trials with a value, and {have}")
    values = [trial.value or 0.0 for trial in trials]
    if min(values) == max(values):
        return Importance({}, f"all trials have the same {results.sweep.metric}")
    ranks = _ranks(values)
    shares: dict[str, float] = {}
    for name in dict.fromkeys(name for trial in trials for name in trial.parameters):
        share = _share(_groups([trial.parameters.get(name) for trial in trials]), ranks)
        if share is not None:
            shares[name] = share
    if not shares:
        return Importance({}, "no parameter has values that repeat or can be ordered")
    return Importance(dict(sorted(shares.items(), key=lambda pair: -pair[1])))


def _ranks(values: Sequence[float]) -> list[float]:
    """From 1; equal values have the mean of their ranks."""
    ordered = sorted(values)
    return [(bisect_left(ordered, value) + bisect_right(ordered, value) + 1) / 2 for value in values]


def _groups(values: Sequence[Any]) -> list[int | str]:
    """The group of each value: the value itself, or of many different numbers a part of their order."""
    distinct = {json.dumps(value, sort_keys=True) for value in values}
    most = min(10, max(2, round(math.sqrt(len(values)))))
    if len(distinct) <= most or not all(map(is_number, values)):
        return [json.dumps(value, sort_keys=True) for value in values]
    ordered = sorted(values)
    return [bisect_left(ordered, value) * most // len(values) for value in values]


def is_number(value: Any) -> bool:
    """Whether it has a place on an axis."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return -1e300 < value < 1e300


def _share(groups: Sequence[int | str], ranks: Sequence[float]) -> float | None:
    """None if there is one group, or hardly any two trials are in the same one."""
    members: dict[int | str, list[float]] = {}
    for group, rank in zip(groups, ranks, strict=True):
        members.setdefault(group, []).append(rank)
    if not 1 < len(members) <= len(ranks) // 2:
        return None
    within = sum(_squares(each) for each in members.values()) / (len(ranks) - len(members))
    return round(max(0.0, 1 - within / (_squares(ranks) / (len(ranks) - 1))), 4)


def _squares(ranks: Sequence[float]) -> float:
    mean = statistics.fmean(ranks)
    return sum((rank - mean) ** 2 for rank in ranks)
