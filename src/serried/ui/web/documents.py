"""What the API of the web page answers, as JSON values. Everything is read from files, except the status of runs."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from serried.errors import UsageError
from serried.metrics import samples
from serried.metrics.samples import NodeSamples
from serried.protocol import checkpoints
from serried.protocol.layout import AttemptDirectory
from serried.records import logs
from serried.records.evidence import latest_attempt
from serried.records.index import Selection
from serried.records.record import RecordUnreadable
from serried.records.run_status import RunStatus, warnings_of
from serried.records.timeline import attempts, timeline
from serried.report import rules
from serried.report.runs import whole_usage
from serried.sweeps import results
from serried.ui import report_page
from serried.ui.plan_lines import command_text
from serried.ui.text import plain

MOST_POINTS = 800
"""Of a curve: more than a screen has columns."""
MOST_COLUMNS = 240
"""Of a heatmap over time."""
MOST_ROWS = 1024
CHUNK = 1 << 18
FIRST_CHUNK = 1 << 16
MOST_TEXT = 1 << 20
MOST_CHECKPOINTS = 100
QUANTITIES = {
    "busy": ("gpus", "busy", "%"),
    "memory": ("gpus", "memory", "bytes"),
    "power": ("gpus", "power", "W"),
    "temperature": ("gpus", "temperature", "°C"),
    "sm_active": ("gpus", "sm_active", "%"),
    "rank_cpu": ("ranks", "cpu", "cores"),
    "rank_memory": ("ranks", "memory", "bytes"),
    "step_rate": ("ranks", "steps_per_second", "steps/s"),
    "data_wait": ("ranks", "data_wait", "share"),
    "node_cpu": ("node", "cpu", "cores"),
    "node_memory": ("node", "memory", "bytes"),
}
"""What a heatmap shows: the part of a sample, the name there, the unit."""
FILES = ("plan", "script", "job.sh", "diff")


def runs(statuses: Sequence[RunStatus]) -> dict[str, Any]:
    """The list of runs: of each, what a row shows."""
    return {"runs": [row(status) for status in statuses]}


def row(status: RunStatus) -> dict[str, Any]:
    whole = status.to_json()
    kept = (
        "id", "name", "project", "experiment", "cluster", "state", "cause", "message", "created", "started", "ended",
        "seconds", "nodes", "ranks_per_node", "gpus_per_node", "attempt", "progress",
    )  # fmt: skip
    found = {name: whole[name] for name in kept if whole.get(name) is not None}
    if status.tasks is not None:
        found["tasks"] = _counted(status)
    if status.summary is not None and status.summary.sweep:
        found["sweep"] = status.summary.sweep
    return found


def _counted(status: RunStatus) -> dict[str, int]:
    counts: dict[str, int] = {}
    for verdict in (status.tasks or {}).values():
        counts[verdict.state] = counts.get(verdict.state, 0) + 1
    return counts


def run(selection: Selection, status: RunStatus) -> dict[str, Any]:
    """A run or a task: its status, plan, timeline, files, and what can be shown of it."""
    record, place = selection.record, selection.place
    whole = not selection.is_array
    return {
        **status.to_json(),
        **({"task_counts": _counted(status)} if status.tasks is not None else {}),
        "sweep": status.summary.sweep if status.summary else None,
        "task": selection.task,
        "command": _command(selection),
        "metric": _metric(selection),
        "limit_seconds": status.summary and status.summary.time_seconds,
        "warnings": [dict(warning) for warning in warnings_of(status)],
        "timeline": [event.to_json() for event in timeline(record, selection.task, status.verdict if whole else None)],
        "attempts": [attempt.directory.number for attempt in attempts(place)] if whole else [],
        "ranks": _log_names(selection) if whole else [],
        "metric_ranks": logs.ranks_with_metrics(place) if whole else [],
        "checkpoints": _checkpoints(selection) if whole else [],
        "files": {name: str(path) for name, path in _file_paths(selection).items() if path.exists()},
    }


def _command(selection: Selection) -> str:
    with contextlib.suppress(RecordUnreadable):
        return command_text(selection.record.plan_of(selection.task))
    return ""


def _metric(selection: Selection) -> str | None:
    with contextlib.suppress(RecordUnreadable):
        sweep = selection.record.plan.sweep
        return sweep.metric if sweep else None
    return None


def _log_names(selection: Selection) -> list[str]:
    """The names of the logs of the newest attempt: a rank's number, `2:0` for rank 0 of launch 2, or `script`."""
    attempt = latest_attempt(selection.place)
    return [*_logs(attempt, selection)] if attempt else []


def _logs(attempt: AttemptDirectory, selection: Selection) -> dict[str, Path]:
    summary = selection.record.summary
    if not summary.script:
        return {str(log.rank): log.path for log in logs.rank_logs(attempt, summary)}
    launched = logs.launch_logs(attempt)
    found = {f"{launch}:{log.rank}": log.path for launch, of_launch in launched.items() for log in of_launch}
    return {"script": attempt.script_log, **found}


def _checkpoints(selection: Selection) -> list[dict[str, Any]]:
    """The complete ones, the newest first."""
    root = selection.place.checkpoints
    watch: tuple[str, ...] = ()
    with contextlib.suppress(RecordUnreadable):
        sync = selection.record.plan.sync
        watch = sync.watch if sync else ()
    found = checkpoints.ordered(root, watch)[::-1][:MOST_CHECKPOINTS]
    return [{"name": path.name, "path": str(path), "changed": checkpoints.changed(path) / 1e9} for path in found]


def curves(selection: Selection, rank: int, wanted: Sequence[str]) -> dict[str, Any]:
    """The logged values of a rank by step; without `wanted`, only the names."""
    rows = logs.metrics(selection.place, rank)
    present = sorted({name for row in rows for name in row} - {"attempt", "t", "step"})
    return {
        "run": str(selection),
        "names": present,
        "curves": {name: _curve(rows, name) for name in wanted if name in present},
    }


def _curve(rows: Iterable[Mapping[str, Any]], name: str) -> dict[str, list[float]]:
    points = [
        (row["step"], float(row[name]))
        for row in rows
        if isinstance(row.get(name), int | float) and math.isfinite(row[name])
    ]
    shown = thinned(points, MOST_POINTS)
    return {"steps": [step for step, _ in shown], "values": [value for _, value in shown]}


def thinned(points: Sequence[tuple[int, float]], most: int) -> list[tuple[int, float]]:
    """At most `most` points. Of each stretch the lowest and the highest stay, so that no spike is lost."""
    if len(points) <= most:
        return list(points)
    size = len(points) / (most // 2)
    kept = []
    for number in range(most // 2):
        stretch = range(int(number * size), int((number + 1) * size))
        low, high = (pick(stretch, key=lambda at: points[at][1]) for pick in (min, max))
        kept += [points[at] for at in sorted({low, high})]
    return kept


def heatmap(selection: Selection, quantity: str) -> dict[str, Any]:
    """A quantity over time: a row for each GPU, rank or node. A cell is a mean; one without a sample is None.

    Raises UsageError for an unknown quantity.
    """
    if quantity not in QUANTITIES:
        raise UsageError(f"unknown quantity: `{quantity}`", hint=f"one of {', '.join(QUANTITIES)}")
    part, name, unit = QUANTITIES[quantity]
    found = samples.read(selection.place)
    times = [period.t for node in found.nodes for period in (node.periods[0], node.periods[-1])]
    if not times:
        return {"quantity": quantity, "unit": unit, "start": None, "end": None, "rows": [], "present": []}
    start = min(node.periods[0].t - node.periods[0].seconds for node in found.nodes)
    end = max(times)
    columns = max(min(MOST_COLUMNS, max(len(node.periods) for node in found.nodes)), 1)
    rows: dict[str, list[list[float]]] = {}
    for node in found.nodes:
        for period in node.periods:
            middle = period.t - period.seconds / 2
            column = min(int((middle - start) / max(end - start, 1e-9) * columns), columns - 1)
            for label, values in _parts(node, part, period):
                value = samples.range_in(values, name)
                if value is not None and (label in rows or len(rows) < MOST_ROWS):
                    rows.setdefault(label, [[] for _ in range(columns)])[column].append(value.mean)
    cells = {label: [sum(cell) / len(cell) if cell else None for cell in row] for label, row in rows.items()}
    return {
        "quantity": quantity,
        "unit": unit,
        "start": start,
        "end": end,
        "rows": [{"label": label, "values": values} for label, values in cells.items()],
        "present": _present(found.nodes),
        "one_in": found.one_in,
    }


def _parts(node: NodeSamples, part: str, period: samples.Period) -> list[tuple[str, Mapping[str, Any]]]:
    if part == "node":
        return [(node.host, period.node)]
    found = period.gpus if part == "gpus" else period.ranks
    kind = "GPU" if part == "gpus" else "rank"
    return [(f"{node.host} {kind} {key}", found[key]) for key in sorted(found, key=samples.by_number)]


def _present(nodes: Sequence[NodeSamples]) -> list[str]:
    """The quantities that the last periods have, so that a page offers no empty pictures."""
    last = [(node, node.periods[-1]) for node in nodes]
    return [
        quantity
        for quantity, (part, name, _) in QUANTITIES.items()
        if any(name in values for node, period in last for _, values in _parts(node, part, period))
    ]


def report(selection: Selection, status: RunStatus) -> dict[str, Any]:
    """The page of `serried report`. Raises UsageError for a whole array."""
    if selection.is_array:
        raise UsageError(f"run `{selection}` is an array", hint="each of its tasks has a report")
    usage = whole_usage(status, time.time())
    notes = rules.judge(usage)
    lines = [plain(line) for line in report_page.page(usage, notes)]
    return {"lines": lines, "notes": [note.to_json() for note in notes]}


def log(selection: Selection, name: str, attempt: int | None, offset: int | None) -> dict[str, Any]:
    """Lines of a log from `offset`, or its last lines; `next` is where to go on reading.

    `rest` is the last line, which has no end yet. Escape sequences are removed. Raises UsageError for an unknown log.
    """
    place = selection.place.attempt(attempt) if attempt else latest_attempt(selection.place)
    if place is None:
        return {"lines": [], "rest": "", "next": 0, "size": 0, "attempt": None}
    path = _logs(place, selection).get(name)
    if path is None:
        raise UsageError(f"run `{selection}` has no log `{name}` in attempt {place.number}")
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            is_tail = offset is None or not 0 <= offset <= size
            start = max(size - FIRST_CHUNK, 0) if is_tail else offset or 0
            file.seek(start)
            text = file.read(FIRST_CHUNK if is_tail else CHUNK)
    except OSError:
        return {"lines": [], "rest": "", "next": 0, "size": 0, "attempt": place.number}
    whole, newline, rest = text.rpartition(b"\n")
    if len(text) == CHUNK and not newline:  # a line without an end, in pieces
        whole, newline, rest = text, b"\n", b""
    lines = whole.split(b"\n") if newline else []
    if is_tail and start and lines:
        lines = lines[1:]
    return {
        "lines": [_shown(line) for line in lines],
        "rest": _shown(rest[-(1 << 12) :]),
        "next": start + len(text) - len(rest),
        "size": size,
        "attempt": place.number,
        "is_tail": bool(is_tail and start),
    }


def _shown(line: bytes) -> str:
    return plain(line.decode("utf-8", "replace"))


def file(selection: Selection, name: str) -> dict[str, Any]:
    """The text of one of FILES. Raises UsageError if it does not exist."""
    path = _file_paths(selection).get(name)
    try:
        if path is None:
            raise FileNotFoundError(name)
        with path.open("rb") as opened:
            text = opened.read(MOST_TEXT + 1)
    except OSError as error:
        raise UsageError(f"run `{selection}` has no file `{name}`", hint=f"one of {', '.join(FILES)}") from error
    cut = len(text) > MOST_TEXT
    return {"name": name, "path": str(path), "text": text[:MOST_TEXT].decode("utf-8", "replace"), "is_cut": cut}


def _file_paths(selection: Selection) -> dict[str, Path]:
    record = selection.record
    where = record.where
    return {
        "plan": record.directory.plan,
        "job.sh": where.job_script,
        "script": where.script,
        "diff": record.directory.diff,
    }


def sweep(found: results.SweepResults) -> dict[str, Any]:
    """The trials of a sweep, the best first."""
    return {
        "sweep": found.sweep.first,
        "metric": found.sweep.metric or None,
        "goal": found.sweep.goal,
        "runs": [row(status) for status in found.runs],
        "trials": [trial.to_json() for trial in found.trials],
        "groups": [group.to_json() for group in found.groups],
        "best": found.best_so_far,
    }
