"""The runs of a bench as they are now: states, figures, and all points together."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping

from serried.bench.measure import RunFigures, measure
from serried.bench.points import GridPoint
from serried.bench.results import BenchResults, results
from serried.bench.store import Bench, PointRun
from serried.fs.files import make_directory, read_json, write_json
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
    """The results, and the figures of each point in the order of the bench. One query for all runs.

    Keeps the figures of runs that have ended, because a site purges their directories.
    """
    known = records(bench)
    for record in known.values():
        find_out(record)
    states = {status.record.id: status for status in statuses(known.values())}
    kept = _kept(bench)
    figures = [_figures(bench, entry, states, kept) for entry in bench.entries]
    measured = {run.run: run for run in figures if run.run and run.is_measured}
    if measured != kept:
        with contextlib.suppress(OSError):
            make_directory(bench.figures_path.parent)
            write_json(bench.figures_path, {run: dataclasses.asdict(each) for run, each in measured.items()})
    points: list[GridPoint] = [entry.point for entry in bench.entries]
    return results(zip(points, figures, strict=True)), figures


def _kept(bench: Bench) -> dict[str | None, RunFigures]:
    try:
        return {run: RunFigures(**figures) for run, figures in (read_json(bench.figures_path) or {}).items()}
    except TypeError:  # of another version
        return {}


def _figures(
    bench: Bench, entry: PointRun, states: Mapping[str, RunStatus], kept: Mapping[str | None, RunFigures]
) -> RunFigures:
    if entry.refusal:
        return RunFigures(None, REFUSED, f"was refused: {entry.refusal}")
    if entry.run is None or (entry.run not in states and not entry.is_submitted):
        return RunFigures(None, MISSING, "is not submitted yet")
    if entry.run not in states:
        return kept.get(entry.run) or RunFigures(entry.run, DELETED, "was deleted")
    status = states[entry.run]
    if entry.run in kept and not status.record.where.path.is_dir():
        return kept[entry.run]
    return measure(status, entry.point, warm_up=bench.warm_up, source=bench.source)


def failed(bench: Bench) -> list[str]:
    """The runs that have ended and were not measured."""
    return [run.run for run in read(bench)[1] if run.run and not (run.is_measured or run.is_open)]
