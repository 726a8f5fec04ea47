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
from serried.resume_check.judge import Comparison, Curves, Difference, Judgement, Trace, compare
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
TellTake = Callable[[str, str], Observer]
"""Receives the kind of a take that begins, and its run's id; returns the observer of its progress."""


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


class Take(FinishedRun):
    """One run of the training, ended."""

    def curves(self) -> Curves:
        return {rank: series.points(self.place, rank) for rank in series.ranks(self.place)}

    def traces(self) -> list[Trace]:
        return judge.read(self.place)


def rehearse(request: Request, directory: Path, terms: Terms, tell: TellTake) -> Rehearsal:
    """Run the training of `request` twice and compare.

    Raises:
        UsageError: the request is not possible, and nothing ran.
        SerriedError: there is nothing to compare, or the stops differ from the planned ones.
        RunFailed: one of the runs did not complete.
        KeyboardInterrupt: from the terminal; the run has ended.
    """

    def take(kind: str, stops: Sequence[int]) -> Take:
        prepared = prepare_take(request, kind, stops, terms.steps, directory)
        done = perform(prepared, here=terms.is_here, observe=tell(kind, prepared.plan.run))
        done.check(DOING[kind])
        return done

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


def _difference(one: Difference) -> dict[str, Any]:
    return {
        "step": one.step,
        "rank": one.rank,
        "name": one.name or None,
        "whole": _plain(one.whole),
        "stopped": _plain(one.stopped),
    }


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
    asked = dataclasses.replace(request, array="off")
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


def perform(prepared: Prepared, *, here: bool, observe: Observer) -> Take:
    """Run it to its end, with a stop notice whenever its ranks wait for one.

    `here`: in the foreground, in this process; else through the cluster's scheduler.
    """
    caller = Prompter(RunDirectory(Path(prepared.plan.directory)), observe)
    return Take(**vars(run_to_end(prepared, here=here, tick=caller.tick)))


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
            self._ask(numbers[-1])
        seen = (int(last["step"]), len(self._asked))
        if seen != self._seen:
            self._seen = seen
            self._observe(*seen)

    def _ask(self, attempt: int) -> None:
        journal = Journal(self._place.attempt(attempt).control)
        request = {"request": ToAttempt.STOP, "reason": Reason.LIMIT, "save": True, "by": "serried check-resume"}
        journal.append({"t": time.time(), **request})
        journal.close()
