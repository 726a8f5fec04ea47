"""Checks that a training resumes exactly: one run to its end, one that is stopped and resumed, and their differences.

If they differ for no known reason, a third run shows whether the training is deterministic at all.
"""

from __future__ import annotations

import dataclasses
import math
import os
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from serried.base.files import Journal
from serried.records.status import attempt_numbers
from serried.resume_check import judge
from serried.resume_check.judge import Comparison, Curves, Judgement, compare
from serried.schema import names, series
from serried.schema.events import ToAttempt
from serried.schema.layout import RunDirectory, TaskDirectory
from serried.schema.reasons import Reason
from serried.submission.deliver import Observe, Prepared, silent
from serried.submission.foreground import FinishedRun, run_to_end
from serried.submission.prepare import prepare
from serried.submission.request import Request, decide

WHOLE, STOPPED, AGAIN = "whole", "stopped", "again"
DOING = {WHOLE: "uninterrupted", STOPPED: "stopped and resumed", AGAIN: "uninterrupted once more"}

Observer = Callable[[int, int], None]
"""Receives the present step of rank 0, and the number of stops so far."""
TellTake = Callable[[str, Prepared], Observer]
"""Receives the kind of a take before it begins, and its plan; returns the observer of its progress."""


@dataclass(frozen=True)
class Terms:
    stops: int
    seed: int
    is_here: bool
    """In the foreground on this machine, else through its cluster's scheduler."""
    steps: int = 0
    """The training ends after this number; 0 means that it ends by itself."""
    tolerance: float | None = None
    ignore: tuple[str, ...] = ()


@dataclass(frozen=True)
class Rehearsal:
    terms: Terms
    steps: int
    """Of the training."""
    verdict: Judgement
    runs: dict[str, str]
    """The id of each take's run."""
    by_itself: Comparison | None = None
    """Two uninterrupted runs, if the difference between the first two had no other explanation."""

    @property
    def is_deterministic(self) -> bool | None:
        """Whether two uninterrupted runs learn the same; None if that was not tried."""
        return None if self.by_itself is None else not self.by_itself.differences

    def to_json(self) -> dict[str, Any]:
        verdict, comparison = self.verdict, self.verdict.comparison
        batch, first = verdict.other_batch, None
        if comparison.differences:
            first = dataclasses.asdict(comparison.differences[0])
            first |= {"name": first["name"] or None}
            first |= {run: _plain(first[run]) for run in ("whole", "stopped")}
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
            "first": first,
            "lost": [dataclasses.asdict(lost) for lost in verdict.lost],
            "other_batch": None if batch is None else {"step": batch[0], "rank": batch[1]},
            "deterministic": self.is_deterministic,
            "runs": self.runs,
        }


def _curves(run: FinishedRun) -> Curves:
    return {rank: series.points(run.place, rank) for rank in series.ranks(run.place)}


def rehearse(request: Request, directory: Path, terms: Terms, tell: TellTake) -> Rehearsal:
    """Run the training of `request` twice and compare.

    Raises:
        UsageError: the request is not possible, and nothing ran.
        SerriedError: there is nothing to compare, or the stops differ from the planned ones.
        RunFailed: one of the runs did not complete.
        KeyboardInterrupt: from the terminal; the run has ended.
    """

    def take(kind: str, stops: Sequence[int]) -> FinishedRun:
        """Run the training to its end, with a stop notice whenever its ranks wait for one."""
        prepared = prepare_take(request, kind, stops, terms.steps, directory)
        caller = Prompter(RunDirectory(Path(prepared.plan.directory)), tell(kind, prepared))
        done = run_to_end(prepared, here=terms.is_here, tick=caller.tick)
        done.check(DOING[kind])
        return done

    whole = take(WHOLE, ())
    curves, traces = _curves(whole), judge.read(whole.place)
    steps = judge.check_whole(curves, traces, terms.stops, terms.ignore)
    planned = choose_stops(steps, terms.stops, terms.seed)
    stopped = take(STOPPED, planned)
    stopped_traces = judge.read(stopped.place)
    judge.check_stopped(stopped_traces, planned, stopped.state)
    verdict = judge.judge(
        curves, _curves(stopped), traces, stopped_traces, tolerance=terms.tolerance, ignore=terms.ignore
    )
    runs = {WHOLE: whole.record.id, STOPPED: stopped.record.id}
    by_itself = None
    if verdict.comparison.differences and not verdict.lost:
        again = take(AGAIN, ())
        runs[AGAIN] = again.record.id
        by_itself = compare(curves, _curves(again), tolerance=verdict.tolerance, ignore=terms.ignore)
    return Rehearsal(terms, steps, verdict, runs, by_itself)


def _plain(value: Any) -> Any:
    """Infinity and NaN as strings, which JSON lacks."""
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def prepare_take(
    request: Request, kind: str, stops: Sequence[int], steps: int, directory: Path, *, observe: Observe | None = silent
) -> Prepared:
    """Prepare and check one run, without a change to anything. It ends after `steps`; 0 means by itself.

    `observe` is as for `prepare`. Raises UsageError.
    """
    asked = request._replace(array="off")
    asked = asked.with_setting("limit.restarts", value=len(stops)).with_setting("limit.total_time", value="off")
    decided = decide(asked, directory, os.environ)
    plan = decided.plan
    variables = {**plan.environment.env, names.REHEARSAL: str(list(stops))}
    plan = plan._replace(
        name=f"{plan.name}.{kind}", smoke=steps, notify=None, environment=plan.environment._replace(env=variables)
    )
    return prepare(plan, decided.resolved, os.environ, observe=observe)


def choose_stops(steps: int, count: int, seed: int) -> list[int]:
    """The steps after which a training is stopped: `count` different ones, never the last."""
    return sorted(random.Random(seed).sample(range(1, steps), count))  # noqa: S311 - the seed repeats them


class Prompter:
    """Reads the trace of rank 0, and stops each attempt once, when it waits for that."""

    def __init__(self, place: TaskDirectory, observe: Observer) -> None:
        self._place = place
        self._observe = observe
        self._asked: set[int] = set()
        self._seen = (-1, -1)

    def tick(self) -> None:
        numbers = attempt_numbers(self._place)
        if not numbers:
            return
        last = judge.last_event(self._place, numbers[-1])
        if last is None:
            return
        if last["event"] == "waiting" and numbers[-1] not in self._asked:
            self._asked.add(numbers[-1])
            journal = Journal(self._place.attempt(numbers[-1]).control)
            request = {"request": ToAttempt.STOP, "reason": Reason.LIMIT, "save": True, "by": "serried check-resume"}
            journal.append({"t": time.time(), **request})
            journal.close()
        seen = (int(last["step"]), len(self._asked))
        if seen != self._seen:
            self._seen = seen
            self._observe(*seen)
