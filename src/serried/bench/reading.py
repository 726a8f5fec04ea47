"""The runs of a bench as they are now: states, figures, and all points together."""

from __future__ import annotations

from collections.abc import Mapping

from serried.bench.measure import RunFigures, measure
from serried.bench.points import GridPoint
from serried.bench.results import BenchResults, results
from serried.bench.store import Bench, PointRun
from serried.records.index import Selection
from serried.records.record import Record, RecordUnreadable
from serried.records.run_status import RunStatus
from serried.records.status import statuses
from serried.submission.reconcile import find_out

MISSING, REFUSED, DELETED = "MISSING", "REFUSED", "DELETED"
"""In place of a state: no run yet, no run possible, and no record any more."""


def records(bench: Bench) -> dict[str, Record]:
    """The runs that have a record, by id."""
    found = {}
    for entry in bench.entries:
        try:
            if entry.run:
                found[entry.run] = Record.load(entry.run)
        except RecordUnreadable:
            continue
    return found


def selections(bench: Bench) -> list[Selection]:
    return [Selection(record) for record in records(bench).values()]


def read(bench: Bench) -> tuple[BenchResults, list[RunFigures]]:
    """The results, and the figures of each point in the order of the bench. One query for all runs."""
    known = records(bench)
    for record in known.values():
        find_out(record)
    states = {status.record.id: status for status in statuses(known.values())}
    figures = [_figures(bench, entry, states) for entry in bench.entries]
    points: list[GridPoint] = [entry.point for entry in bench.entries]
    return results(zip(points, figures, strict=True)), figures


def _figures(bench: Bench, entry: PointRun, states: Mapping[str, RunStatus]) -> RunFigures:
    if entry.refusal:
        return RunFigures(None, REFUSED, f"was refused: {entry.refusal}")
    if entry.run is None or (entry.run not in states and not entry.is_submitted):
        return RunFigures(None, MISSING, "is not submitted yet")
    if entry.run not in states:
        return RunFigures(entry.run, DELETED, "was deleted")
    return measure(states[entry.run], entry.point, warm_up=bench.warm_up, source=bench.source)


def failed(bench: Bench) -> list[int]:
    """The places of the points whose run has ended and was not measured."""
    places = enumerate(read(bench)[1])
    return [at for at, run in places if not (run.is_measured or run.is_open or run.state in (MISSING, REFUSED))]
