"""What the API of the web page answers, as JSON values. Everything is read from files, except the status of runs."""

from __future__ import annotations

import contextlib
import os
import statistics
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from serried.base.errors import UsageError
from serried.base.files import read_json
from serried.base.text import ago
from serried.records import logs, rules, samples
from serried.records.index import Selection
from serried.records.record import RecordUnreadable
from serried.records.samples import NodeSamples, Range
from serried.records.status import RunStatus, latest_attempt, tasks_by_state, warnings_of
from serried.records.timeline import attempts, timeline
from serried.records.usage import whole_usage
from serried.schema import checkpoints, series
from serried.schema.endings import End
from serried.schema.layout import AttemptDirectory
from serried.submission.snapshot import Revision
from serried.sweeps import results
from serried.views import report_page, run_lines
from serried.views.plan_lines import plan_lines
from serried.views.text import plain

MOST_COLUMNS = 240
"""Of a heatmap over time."""
MOST_ROWS = 1024
CHUNK = 1 << 18
FIRST_CHUNK = 1 << 16
MOST_TEXT = 1 << 20
LONGEST_LINE = 1 << 12
"""Of a log, in characters."""
MOST_LINKS = 500
"""Tasks of an array with a link, for each state."""
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


def row(status: RunStatus) -> dict[str, Any]:
    whole = status.to_json()
    kept = (
        "id", "name", "project", "experiment", "cluster", "state", "message", "created", "started", "ended",
        "seconds", "stale_since", "nodes", "spare_nodes", "ranks_per_node", "gpus_per_node",
    )  # fmt: skip
    found = {name: whole[name] for name in kept if whole.get(name) is not None}
    if status.tasks is not None:
        found["tasks"] = {state: len(tasks) for state, tasks in tasks_by_state(status.tasks).items()}
    if status.summary is not None and status.summary.sweep:
        found["sweep"] = status.summary.sweep
    return {**found, **_progress(status)}


def _progress(status: RunStatus) -> dict[str, Any]:
    """What the run does now, in the words of `serried ps`, and its steps for a bar."""
    progress = status.progress
    if progress is None:
        return {}
    return {"doing": run_lines.progress_line(progress), "step": progress.step, "total_steps": progress.total_steps}


def notice(problem: str, statuses: Iterable[RunStatus]) -> str:
    """Why the states may be those of an earlier time; empty if they are not."""
    stale = [status.verdict.stale for status in statuses if status.verdict.stale is not None]
    if problem or not stale:
        return problem
    return f"the scheduler does not answer; the states of live runs are from {ago(time.time() - min(stale))}"


def run(selection: Selection, status: RunStatus) -> dict[str, Any]:
    """A run or a task: its status, plan, timeline, files, and what can be shown of it."""
    record, place = selection.record, selection.place
    whole = not selection.is_array
    by_state = tasks_by_state(status.tasks or {})
    links = {state: {"count": len(tasks), "tasks": tasks[:MOST_LINKS]} for state, tasks in by_state.items()}
    attempt = latest_attempt(place) if whole else None
    return {
        **status.to_json(),
        **_progress(status),
        "facts": run_lines.progress_facts(status.progress) if status.progress else [],
        "waits_for": status.scheduler_explanation if status.reason else "",
        "links": None if status.tasks is None else links,
        "plan": _plan(selection),
        "limit_seconds": status.summary and status.summary.time_seconds,
        "warnings": [warning.to_json() for warning in warnings_of(status)],
        "timeline": [
            event.to_json() for event in timeline(record, selection.task, status.verdict.ending if whole else None)
        ],
        "attempts": [attempt.directory.number for attempt in attempts(place)] if whole else [],
        "ranks": [*_logs(attempt, selection)] if attempt else [],
        "failed_log": _failed_log(attempt, selection) if attempt and status.has_ended else None,
        "metric_ranks": series.ranks(place) if whole else [],
        "checkpoints": _checkpoints(selection) if whole else [],
        "files": {name: str(path) for name, path in _file_paths(selection).items() if path.exists()},
    }


def _plan(selection: Selection) -> list[tuple[str, str]]:
    record = selection.record
    source = read_json(record.directory.source) or {}
    diff = "changed" if record.directory.diff.exists() else ""
    with contextlib.suppress(RecordUnreadable):
        plan = record.plan_of(selection.task)
        return plan_lines(plan, None, Revision(source.get("commit"), source.get("branch"), diff))
    return []


def _failed_log(attempt: AttemptDirectory, selection: Selection) -> str | None:
    end = End.read_known(attempt.exit)
    failure = end.first_failure if end else None
    if failure is None:
        return None
    name = f"{failure.launch}:{failure.rank}" if failure.launch else str(failure.rank)
    return name if name in _logs(attempt, selection) else None


def _logs(attempt: AttemptDirectory, selection: Selection) -> dict[str, Path]:
    """By name: a rank's number, `2:0` for rank 0 of launch 2, or `script`."""
    summary = selection.record.summary
    if not summary.script:
        return {log.name: log.path for log in logs.rank_logs(attempt, summary)}
    launched = logs.launch_logs(attempt)
    found = {f"{launch}:{log.rank}": log.path for launch, of_launch in launched.items() for log in of_launch}
    return {"script": attempt.script_log, **found}


def _checkpoints(selection: Selection) -> list[dict[str, Any]]:
    """The complete ones, the newest first."""
    watch: tuple[str, ...] = ()
    with contextlib.suppress(RecordUnreadable):
        sync = selection.record.plan.checkpoint
        watch = sync.watch if sync else ()
    found = checkpoints.ordered(selection.place.checkpoints, watch)[:MOST_CHECKPOINTS]
    return [{"name": path.name, "path": str(path), "changed": checkpoints.changed(path) / 1e9} for path in found]


def heatmap(selection: Selection, quantity: str, attempt: int | None = None) -> dict[str, Any]:
    """A quantity over the time of an attempt, the newest by default: a row for each GPU, rank or node.

    A cell is a mean; one without a sample is None. Raises UsageError for an unknown quantity.
    """
    if quantity not in QUANTITIES:
        raise UsageError(f"unknown quantity: `{quantity}`", hint=f"one of {', '.join(QUANTITIES)}")
    part, name, unit = QUANTITIES[quantity]
    newest = latest_attempt(selection.place)
    number = attempt or (newest.number if newest else 1)
    found = samples.read(selection.place, attempt=number)
    one_in = max((node.one_in for node in found.nodes), default=1)
    answer = {"quantity": quantity, "unit": unit, "attempt": number, "one_in": one_in, "left_out": 0}
    if not found.nodes:
        return {**answer, "start": None, "end": None, "rows": [], "present": []}
    periods = [(node, period) for node in found.nodes for period in node.plausible_periods()]
    start = min(period.t - period.seconds for _, period in periods)
    end = max(period.t for _, period in periods)
    lines = 1 if one_in == 1 else 2  # in a cell: distances between lines that were read differ, and none may stay empty
    columns = max(min(MOST_COLUMNS, max(len(node.periods) for node in found.nodes) // lines), 1)
    rows: dict[str, list[list[Range]]] = {}
    left_out = set()
    for node, period in periods:
        middle = period.t - period.seconds / 2
        column = min(int((middle - start) / max(end - start, 1e-9) * columns), columns - 1)
        for label, values in _parts(node, part, period):
            value = samples.range_in(values, name)
            if value is None:
                continue
            if label not in rows and len(rows) == MOST_ROWS:
                left_out.add(label)
                continue
            rows.setdefault(label, [[] for _ in range(columns)])[column].append(value)
    shown = []
    for label, cells in rows.items():
        means = [statistics.fmean(value.mean for value in cell) if cell else None for cell in cells]
        every = samples.combined((1.0, value) for cell in cells for value in cell)
        low, mean, high = every or (None, None, None)
        shown.append({"label": label, "values": means, "low": low, "mean": mean, "high": high})
    # The page offers no empty pictures: only quantities that the last periods have.
    last = [(node, node.periods[-1]) for node in found.nodes]
    present = [
        quantity
        for quantity, (part, name, _) in QUANTITIES.items()
        if any(name in values for node, period in last for _, values in _parts(node, part, period))
    ]
    of_each_node = (len(rows) + len(left_out)) // len(found.nodes)
    missing = len(left_out) + found.unread * of_each_node
    return {**answer, "start": start, "end": end, "rows": shown, "present": present, "left_out": missing}


def _parts(node: NodeSamples, part: str, period: samples.Period) -> list[tuple[str, Mapping[str, Any]]]:
    if part == "node":
        return [(node.host, period.node)]
    found = period.gpus if part == "gpus" else period.ranks
    kind = "GPU" if part == "gpus" else "rank"
    return [(f"{node.host} {kind} {key}", found[key]) for key in sorted(found, key=samples.by_number)]


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

    A reader that is far behind gets the last lines, too; `is_new` says so. `rest` is the last line, which has no end
    yet. Escape sequences are removed. Raises UsageError for an unknown log.
    """
    place = selection.place.attempt(attempt) if attempt else latest_attempt(selection.place)
    empty = {"lines": [], "rest": "", "next": 0, "size": 0, "is_new": True, "is_cut": False}
    if place is None:
        return {**empty, "attempt": None}
    path = _logs(place, selection).get(name)
    if path is None and name.isdecimal() and selection.record.summary.shares_logs:
        shared = logs.rank_logs(place, selection.record.summary)
        path = next((log.path for log in shared if log.is_of(int(name))), None)
    if path is None:
        raise UsageError(f"run `{selection}` has no log `{name}` in attempt {place.number}")
    try:
        if not path.is_file():  # a pipe, say, would never end
            raise FileNotFoundError(path)
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            is_tail = offset is None or not size - CHUNK <= offset <= size
            start = max(size - FIRST_CHUNK, 0) if is_tail else offset or 0
            file.seek(start)
            text = file.read(FIRST_CHUNK if is_tail else CHUNK)
    except OSError:
        return {**empty, "attempt": place.number}
    whole, newline, rest = text.rpartition(b"\n")
    if len(text) == CHUNK and not newline:  # a line without an end, in pieces
        whole, newline, rest = text, b"\n", b""
    lines = whole.split(b"\n") if newline else []
    if is_tail and start and lines:
        lines = lines[1:]
    return {
        "lines": [_shown(line) for line in lines],
        "rest": _shown(rest),
        "next": start + len(text) - len(rest),
        "size": size,
        "attempt": place.number,
        "is_new": is_tail,
        "is_cut": is_tail and start > 0,
    }


def _shown(line: bytes) -> str:
    text = plain(line.decode("utf-8", "replace"))
    return text if len(text) <= LONGEST_LINE else f"{text[:LONGEST_LINE]} … ({len(text):,} characters)"


def file(selection: Selection, name: str) -> dict[str, Any]:
    """The text of a file of the run. Raises UsageError if it does not exist."""
    paths = _file_paths(selection)
    path = paths.get(name)
    try:
        if path is None or not path.is_file():  # a pipe, say, would never end
            raise FileNotFoundError(name)
        with path.open("rb") as opened:
            text = opened.read(MOST_TEXT + 1)
    except OSError as error:
        raise UsageError(f"run `{selection}` has no file `{name}`", hint=f"one of {', '.join(paths)}") from error
    cut = len(text) > MOST_TEXT
    return {"name": name, "path": str(path), "text": text[:MOST_TEXT].decode("utf-8", "replace"), "is_cut": cut}


def _file_paths(selection: Selection) -> dict[str, Path]:
    where, kept = selection.record.where, selection.record.directory
    return {"plan": kept.plan, "script": where.script, "job.sh": where.job_script, "diff": kept.diff}


def sweep(found: results.SweepResults) -> dict[str, Any]:
    return {
        "sweep": found.sweep.first,
        "metric": found.sweep.metric or None,
        "goal": found.sweep.goal,
        "trials": [trial.to_json() for trial in found.trials],
        "best": found.best_so_far,
    }
