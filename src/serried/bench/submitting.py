"""A run for each point of a bench, at most once.

The file of the bench gets the id of a run before the run is submitted. A run without a record has never reached the
scheduler, and its point is submitted again, as another run. A run with a record keeps its point, even if the outcome of
its submission is unknown.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from serried import schedulers
from serried.base.errors import SchedulerUnreachable, SubmissionUncertain, UsageError
from serried.bench.store import DP, Bench, GridPoint, PointRun, find, only_writer
from serried.records.record import Record, RecordUnreadable, records_directory
from serried.schema import names
from serried.schema.plan import Plan
from serried.submission.deliver import Observe, deliver, silent
from serried.submission.prepare import prepare
from serried.submission.reconcile import find_out
from serried.submission.request import Decided, Request, decide

NO_SYNC = "no-sync"
WORDS = ("batch", "global_batch", "method", "nodes", "ranks")


@dataclass(frozen=True)
class BenchRequest:
    directory: str
    experiment: str | None = None
    command: Sequence[str] | None = None
    overrides: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    cluster: str | None = None
    name: str = ""
    """Each run has the point behind it."""
    passed: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Settings of the program, by name: `{"batch_size": "{batch}"}`."""
    on_gpus: bool = False
    """A rank has a GPU."""
    parallel: int | None = None
    """The most points that run at once."""

    def to_json(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "command": list(self.command) if self.command else None}

    def at(self, point: GridPoint, after: str | None = None) -> Request:
        size = {
            "resources.nodes": point.nodes,
            "resources.spare_nodes": 0,
            "resources.ranks": point.processes,
            "resources.gpus": point.ranks if self.on_gpus else 0,
            "launch.kind": point.launch,
            "limit.restarts": 0,
        }
        way = "dp" if point.method == DP else NO_SYNC if point.without_sync else None
        if way:
            size[f"environment.env.{names.PARALLEL}"] = way
        return Request(
            experiment=self.experiment,
            command=self.command,
            overrides={**self.overrides, **size},
            cluster=self.cluster,
            name="-".join([self.name, point.shape, *point.labels, *([NO_SYNC] if point.without_sync else [])]),
            array="off",
            parameters={name: _filled(text, point) for name, text in self.passed.items()},
            after=[f"{after}:any"] if after else (),
        )

    def decide(self, point: GridPoint, environ: Mapping[str, str], after: str | None = None) -> Decided:
        return decide(self.at(point, after), Path(self.directory), environ)


def check_passed(passed: Mapping[str, str], points: Iterable[GridPoint]) -> None:
    """Raises UsageError for a text of `--pass` that a point cannot fill."""
    for point in points:
        for text in passed.values():
            _filled(text, point)


def _filled(text: str, point: GridPoint) -> int | str:
    """A whole word becomes its value, a number for example; words within a text are replaced."""
    words = point.words
    try:
        filled = text.format_map(words)
    except (KeyError, ValueError, IndexError, AttributeError):
        known = ", ".join(f"`{{{word}}}`" for word in WORDS)
        hint = "`--batch N` sets the batch" if "batch" in text and point.batch is None else f"there are {known}"
        raise UsageError(f"`--pass` cannot fill in `{text}`", hint=hint) from None
    return int(filled) if filled.isdecimal() else filled


def request_of(bench: Bench) -> BenchRequest:
    return BenchRequest(**bench.request)


def devices(plan: Plan) -> tuple[int, str]:
    """GPUs of each node, or CPUs without GPUs."""
    allocation = plan.allocation
    return (allocation.gpus, "GPU") if allocation.gpus else (allocation.cpus, "CPU")


def submit_missing(
    bench: Bench,
    environ: Mapping[str, str],
    *,
    failed: Collection[str] = (),
    observe: Observe | None = silent,
    submitted: Callable[[PointRun], None] = lambda _: None,
) -> Bench:
    """Submit each point that has no run, refused ones too; `failed` are runs that are replaced.

    A refused point keeps the reason, and the others are submitted. Raises SchedulerUnreachable and SubmissionUncertain:
    `serried bench continue` submits the rest.
    """
    request = request_of(bench)
    with only_writer(bench.id):
        bench = find(bench.id) if bench.path.exists() else bench.write()
        before = [entry.run for entry in bench.entries if entry.run and (records_directory() / entry.run).is_dir()]
        for at, entry in enumerate(bench.entries):
            settled = PointRun(entry.point) if entry.run in failed else _settled(entry)
            if settled.run is None:
                decided = _decided(request, entry.point, before, environ)
                if isinstance(decided, UsageError):
                    settled = PointRun(entry.point, refusal=decided.message)
                else:
                    bench = bench.with_entry(at, PointRun(entry.point, decided.plan.run)).write()
                    settled = _submit(decided, entry.point, environ, observe)
                    before += [settled.run] if settled.run else []
                submitted(settled)
            if settled != bench.entries[at]:
                bench = bench.with_entry(at, settled).write()
    return bench


def _settled(entry: PointRun) -> PointRun:
    """The point after an interrupted command: without its run, if no job of that can start."""
    if entry.run is None or entry.is_submitted:
        return entry
    try:
        record = Record.load(entry.run)
        find_out(record)
        states = {each.state for each in record.first_submissions}
    except RecordUnreadable:
        return PointRun(entry.point)
    if states == {names.SubmissionState.FAILED}:
        return PointRun(entry.point)
    return dataclasses.replace(entry, is_submitted=names.SubmissionState.SUBMITTED in states)


def _decided(
    request: BenchRequest, point: GridPoint, before: Sequence[str], environ: Mapping[str, str]
) -> Decided | UsageError:
    """The plan of a point, which starts after one of the runs `before` if only some may run at once.

    On this machine one runs at a time: points that ran at once would measure each other.
    """
    try:
        decided = request.decide(point, environ)
        at_once = request.parallel or (1 if decided.plan.site.scheduler == schedulers.LOCAL else None)
        if at_once and len(before) >= at_once:
            return request.decide(point, environ, before[-at_once])
    except UsageError as error:
        return error
    return decided


def _submit(decided: Decided, point: GridPoint, environ: Mapping[str, str], observe: Observe | None) -> PointRun:
    run = decided.plan.run
    try:
        prepared = prepare(decided.plan, decided.resolved, environ, jobs=decided.jobs, observe=observe)
        deliver(prepared)
    except (SchedulerUnreachable, SubmissionUncertain) as error:
        error.hint = f"{error.hint or 'try again later'}; `serried bench continue` submits the other points"
        raise
    except UsageError as error:  # no job exists
        return PointRun(point, refusal=error.message)
    return PointRun(point, run, is_submitted=True)
