"""The whole rehearsal: one run to its end, one that is stopped, and where they differ for no known reason, a third."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from serried.errors import RunFailed
from serried.protocol import names
from serried.resume_check import judge
from serried.resume_check.conduct import STOPPED, WHOLE, Observer, Take, choose_stops, perform, prepare_take
from serried.resume_check.curves import Comparison, Difference, compare
from serried.resume_check.judge import Verdict
from serried.submission.request import Request

AGAIN = "again"
DOING = {WHOLE: "uninterrupted", STOPPED: "stopped and resumed", AGAIN: "uninterrupted once more"}

TellTake = Callable[[str, str], Observer]
"""Hears which take begins, and its run's id; returns who hears how it goes."""


@dataclass(frozen=True)
class Terms:
    stops: int
    seed: int
    is_here: bool
    """In the foreground on this machine; else by its cluster's scheduler."""
    steps: int = 0
    """End the training after so many; 0 is when it ends by itself."""
    tolerance: float | None = None
    ignore: tuple[str, ...] = ()


@dataclass(frozen=True)
class Rehearsal:
    terms: Terms
    steps: int
    """Of the training."""
    verdict: Verdict
    runs: dict[str, str]
    """The id of each take's run."""
    by_itself: Comparison | None = None
    """Two uninterrupted runs, where the difference between the first two had no other explanation."""

    @property
    def is_deterministic(self) -> bool | None:
        """Whether the training learns the same twice when nobody stops it; None where that was not tried."""
        return None if self.by_itself is None else not self.by_itself.differences

    def to_json(self) -> dict[str, Any]:
        verdict, comparison = self.verdict, self.verdict.comparison
        batch = verdict.other_batch
        return {
            "exact": verdict.is_exact,
            "stops": list(verdict.stops),
            "seed": self.terms.seed,
            "steps": self.steps,
            "ranks": comparison.ranks,
            "values": comparison.values,
            "tolerance": verdict.tolerance,
            "left_out": list(comparison.left_out),
            "differences": len(comparison.differences),
            "first": _difference(comparison.differences[0]) if comparison.differences else None,
            "lost": [
                {"name": one.name, "kind": one.kind, "role": one.role, "step": one.step, "rank": one.rank}
                for one in verdict.lost
            ],
            "other_batch": None if batch is None else {"step": batch[0], "rank": batch[1]},
            "deterministic": self.is_deterministic,
            "runs": self.runs,
        }


def rehearse(request: Request, directory: Path, terms: Terms, tell: TellTake) -> Rehearsal:
    """Run the training of `request` twice and compare.

    Raises:
        UsageError: it cannot be, and nothing was run.
        SerriedError: there is nothing to compare, or it was not stopped as often as it should have been.
        RunFailed: one of the runs did not come to its end.
        KeyboardInterrupt: from the terminal; the run has ended.
    """

    def take(kind: str, stops: Sequence[int]) -> Take:
        prepared = prepare_take(request, kind, stops, terms.steps, directory)
        return _ended_well(perform(prepared, here=terms.is_here, observe=tell(kind, prepared.plan.run)), kind)

    whole = take(WHOLE, ())
    curves, found = whole.curves(), whole.traces()
    steps = judge.check_whole(curves, found, terms.stops, terms.ignore)
    planned = choose_stops(steps, terms.stops, terms.seed)
    stopped = take(STOPPED, planned)
    judge.check_stopped(stopped.traces(), planned, stopped.state)
    verdict = judge.judge(
        curves, stopped.curves(), found, stopped.traces(), tolerance=terms.tolerance, ignore=terms.ignore
    )
    runs = {WHOLE: whole.record.id, STOPPED: stopped.record.id}
    by_itself = None
    if verdict.comparison.differences and not verdict.lost:
        again = take(AGAIN, ())
        runs[AGAIN] = again.record.id
        by_itself = compare(curves, again.curves(), tolerance=verdict.tolerance, ignore=terms.ignore)
    return Rehearsal(terms, steps, verdict, runs, by_itself)


def _ended_well(take: Take, kind: str) -> Take:
    if take.is_interrupted:
        raise KeyboardInterrupt
    if take.state != names.COMPLETED:
        run = take.record.id
        failure = take.end.get("first_failure") or {}
        raise RunFailed(
            f"run {run}, {DOING[kind]}, ended {take.state}: {take.end.get('message') or 'no reason is known'}",
            hint=f"serried why {run}",
            details="\n".join(failure.get("tail", ())[-5:]) or None,
        )
    return take


def _difference(one: Difference) -> dict[str, Any]:
    return {
        "step": one.step,
        "rank": one.rank,
        "name": one.name or None,
        "whole": _plain(one.whole),
        "stopped": _plain(one.stopped),
    }


def _plain(value: Any) -> Any:
    """JSON has no word for infinity, nor for what is none."""
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
