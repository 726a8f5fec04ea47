"""The trials of a sweep with their parameters, states and results, over all runs of the sweep."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from serried.base.errors import UsageError
from serried.records import index
from serried.records.index import Selection
from serried.records.record import Record, RecordUnreadable
from serried.records.status import RunStatus, attempt_numbers, statuses
from serried.schema import names, printed_metric, series
from serried.schema.endings import End
from serried.schema.layout import TaskDirectory
from serried.schema.plan import ReportedMetric, Sweep
from serried.schema.reasons import Reason
from serried.sweeps.definition import MAXIMIZE, SEED, Trial, metric_of

PRUNED = "PRUNED"
"""The state of a trial that the search ended early."""


@dataclass(frozen=True)
class TrialResult:
    number: int
    """The index of its task, in every run of the sweep."""
    run: str
    """The newest run that has it."""
    parameters: Trial
    state: str
    value: float | None
    """The metric as logged last; None if none was logged."""
    seconds: float | None
    """How long the task ran, once it has ended."""
    has_failed: bool = False
    message: str = ""
    """Why it did not complete."""

    @property
    def is_complete(self) -> bool:
        return self.state == names.COMPLETED

    @property
    def counts(self) -> bool:
        """Whether it completed with a value of the metric, so that it can be the best."""
        return self.is_complete and self.value is not None and math.isfinite(self.value)

    @property
    def id(self) -> str:
        return f"{self.run}/{self.number}"

    def to_json(self) -> dict[str, Any]:
        return {
            "trial": self.number,
            "id": self.id,
            "parameters": self.parameters,
            "state": self.state,
            "value": self.value if self.value is None or math.isfinite(self.value) else str(self.value),
            "seconds": self.seconds,
            "message": self.message or None,
        }


@dataclass(frozen=True)
class SeedGroup:
    parameters: Trial
    values: tuple[float, ...]
    """Of the trials that logged the metric."""
    trials: tuple[int, ...]

    @property
    def mean(self) -> float | None:
        return statistics.fmean(self.values) if self.values else None

    @property
    def deviation(self) -> float | None:
        """The sample standard deviation; None of fewer than two values."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None

    def to_json(self) -> dict[str, Any]:
        mean, deviation = self.mean, self.deviation
        return {"parameters": self.parameters, "trials": list(self.trials), "mean": mean, "deviation": deviation}


@dataclass(frozen=True)
class SweepResults:
    sweep: Sweep
    runs: tuple[RunStatus, ...]
    """The first run, and those that repeat or add trials, in the order of their submission."""
    trials: tuple[TrialResult, ...]
    """Those that completed, the best first; then the others, the failed ones last."""

    @property
    def groups(self) -> list[SeedGroup]:
        """The means over seeds, the best first; empty for a sweep without seeds."""
        if self.sweep.seeds < 2:
            return []
        gathered: dict[str, list[TrialResult]] = {}
        for trial in sorted(self.trials, key=lambda trial: trial.number):
            without_seed = {name: value for name, value in trial.parameters.items() if name != SEED}
            gathered.setdefault(json.dumps(without_seed, sort_keys=True), []).append(trial)
        groups = [
            SeedGroup(
                {name: value for name, value in trials[0].parameters.items() if name != SEED},
                tuple(trial.value for trial in trials if trial.counts and trial.value is not None),
                tuple(trial.number for trial in trials),
            )
            for trials in gathered.values()
        ]
        return sorted(groups, key=lambda group: _rank(group.mean, self.sweep.goal))

    @property
    def best_so_far(self) -> Trial | None:
        """As `best`; None if no trial that completed has logged the metric."""
        if self.sweep.seeds > 1:
            return next((group.parameters for group in self.groups if group.mean is not None), None)
        return next((trial.parameters for trial in self.trials if trial.counts), None)

    @property
    def best(self) -> Trial:
        """The parameters of the best trial; of a sweep with seeds, those with the best mean, without the seed.

        Raises UsageError if no trial that completed has logged the metric.
        """
        if not self.sweep.metric:
            hint = f"serried sweep show {self.sweep.first} --metric NAME:max"
            raise UsageError(f"sweep `{self.sweep.first}` has no metric, so no trial is the best", hint=hint)
        found = self.best_so_far
        if found is not None:
            return found
        message = f"no completed trial of sweep `{self.sweep.first}` has logged `{self.sweep.metric}`"
        raise UsageError(message, hint=f"serried sweep show {self.sweep.first}")


def _rank(value: float | None, goal: str) -> tuple[bool, float]:
    """Sorts values by the goal, and missing and infinite ones and NaN last."""
    if value is None or not math.isfinite(value):
        return True, 0.0
    return False, -value if goal == MAXIMIZE else value


def runs_of(selection: Selection) -> list[Record]:
    """All runs of the sweep that a run belongs to, in the order of their submission. Raises UsageError."""
    sweep = selection.record.plan.sweep
    if sweep is None:
        raise UsageError(
            f"run `{selection.record.id}` is not a sweep", hint=f"`serried show {selection.record.id}` shows the run"
        )
    found: list[tuple[tuple[str, bool], Record]] = []
    for record in index.records():
        try:
            if record.summary.sweep == sweep.first:
                found.append(((record.summary.created, record.id != sweep.first), record))
        except RecordUnreadable:
            continue
    return [record for _, record in sorted(found, key=lambda pair: pair[0])]


def parameters_of(selection: Selection, number: int) -> Trial:
    """The parameters of one trial, in whichever run of the sweep it is.

    Raises UsageError if there is no such trial, or if it has not started and gets its parameters only then.
    """
    for record in reversed(runs_of(selection)):
        if record.plan.array and number in record.plan.array.indices:
            found = record.parameters_of(number)
            if not found:
                hint = f"serried sweep show {selection.record.id} --all"
                raise UsageError(f"trial {number} of sweep `{selection.record.id}` has no parameters yet", hint=hint)
            return found
    raise UsageError(
        f"sweep `{selection.record.id}` has no trial {number}", hint=f"serried sweep show {selection.record.id} --all"
    )


def results_of(
    selection: Selection, metric: str | None = None, look: Callable[[Sequence[Record]], Iterable[RunStatus]] = statuses
) -> SweepResults:
    """The results of the whole sweep of a run. `metric` is another than the sweep's: `loss:min`. Empty for none.

    `look` finds the statuses of its runs.

    Raises UsageError if the run belongs to no sweep, and for another metric without a goal.
    """
    records = runs_of(selection)
    by_id = {status.record.id: status for status in look(records)}
    ordered = tuple(by_id[record.id] for record in records)
    sweep = records[-1].plan.sweep or Sweep("", ())
    if metric == "":
        sweep = sweep._replace(metric="")
    elif metric is not None and metric != sweep.metric:
        other = metric_of(metric)
        known = (ReportedMetric(sweep.metric, sweep.source), records[-1].plan.metric or ReportedMetric())
        source = next(filter(None, (reported.source_of(other.name) for reported in known)), "")
        sweep = sweep._replace(metric=other.name, goal=other.goal, source=source)
    trials: dict[int, TrialResult] = {}
    for status in ordered:
        trials |= {trial.number: trial for trial in _trials(status, sweep)}
    ranked = sorted(
        trials.values(),
        key=lambda trial: (trial.has_failed, not trial.is_complete, *_rank(trial.value, sweep.goal), trial.number),
    )
    return SweepResults(sweep, ordered, tuple(ranked))


def _trials(status: RunStatus, sweep: Sweep) -> Iterable[TrialResult]:
    record = status.record
    for number in record.plan.array.indices if record.plan.array else ():
        verdict = (status.tasks or {}).get(number, status.verdict)
        place = record.where.task(number)
        end = End.read_known(place.exit) or End.of({})
        try:
            parameters = record.parameters_of(number)
        except RecordUnreadable:
            if record.where.path.is_dir():
                raise
            parameters = {}  # the run directory was deleted
        was_pruned = verdict.state == names.COMPLETED and end.cause == Reason.PRUNED
        yield TrialResult(
            number,
            record.id,
            parameters,
            PRUNED if was_pruned else verdict.state,
            _value(place, sweep) if sweep.metric else None,
            end.seconds,
            verdict.has_failed,
            "" if verdict.state == names.COMPLETED and not was_pruned else end.message or verdict.message,
        )


def _value(place: TaskDirectory, sweep: Sweep) -> float | None:
    if not sweep.source:
        return series.last_value(place, sweep.metric)
    attempts = [place.attempt(number) for number in reversed(attempt_numbers(place))]
    written = [attempt.rank_log(0, 0) for attempt in attempts]
    return printed_metric.last_value(sweep.source, sweep.metric, written, place.results)
