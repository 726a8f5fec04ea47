"""What the API of the web page answers, as JSON values. Everything is read from files, except the status of runs."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from serried.base.errors import UsageError
from serried.base.files import read_json
from serried.base.text import ago
from serried.records import logs, rules, samples
from serried.records.index import Selection
from serried.records.record import RecordUnreadable
from serried.records.samples import NodeSamples, Range
from serried.records.status import RunStatus, latest_attempt, warnings_of
from serried.records.timeline import attempts, timeline
from serried.records.usage import whole_usage
from serried.schema import checkpoints, series
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
FILES = ("plan", "script", "job.sh", "diff")


def row(status: RunStatus) -> dict[str, Any]:
    """What the list shows of a run."""
    whole = status.to_json()
    kept = (
        "id", "name", "project", "experiment", "cluster", "state", "message", "created", "started", "ended",
        "seconds", "stale_since", "nodes", "ranks_per_node", "gpus_per_node",
    )  # fmt: skip
    found = {name: whole[name] for name in kept if whole.get(name) is not None}
    if status.tasks is not None:
        found["tasks"] = _counted(status)
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
        **_progress(status),
        "facts": run_lines.progress_facts(status.progress) if status.progress else [],
        "waits_for": status.scheduler_explanation if status.reason else "",
        "links": _tasks_by_state(status),
        "plan": _plan(selection),
        "limit_seconds": status.summary and status.summary.time_seconds,
        "warnings": [dict(warning) for warning in warnings_of(status)],
        "timeline": [event.to_json() for event in timeline(record, selection.task, status.verdict if whole else None)],
        "attempts": [attempt.directory.number for attempt in attempts(place)] if whole else [],
        "ranks": _log_names(selection) if whole else [],
        "failed_log": _failed_log(selection) if whole and status.has_ended else None,
        "metric_ranks": series.ranks(place) if whole else [],
        "checkpoints": _checkpoints(selection) if whole else [],
        "files": {name: str(path) for name, path in _file_paths(selection).items() if path.exists()},
    }


def _tasks_by_state(status: RunStatus) -> dict[str, Any] | None:
    """The number of tasks in each state, and the first of them; None unless it is an array."""
    if status.tasks is None:
        return None
    found: dict[str, list[int]] = {}
    for index, verdict in status.tasks.items():
        found.setdefault(verdict.state, []).append(index)
    return {state: {"count": len(tasks), "tasks": tasks[:MOST_LINKS]} for state, tasks in found.items()}


def _plan(selection: Selection) -> list[tuple[str, str]]:
    """The plan as `serried submit` showed it."""
    record = selection.record
    source = read_json(record.directory.source) or {}
    diff = "changed" if record.directory.diff.exists() else ""
    with contextlib.suppress(RecordUnreadable):
        plan = record.plan_of(selection.task)
        return plan_lines(plan, None, Revision(source.get("commit"), source.get("branch"), diff))
    return []


def _log_names(selection: Selection) -> list[str]:
    """The names of the logs of the newest attempt: a rank's number, `2:0` for rank 0 of launch 2, or `script`."""
    attempt = latest_attempt(selection.place)
    return [*_logs(attempt, selection)] if attempt else []


def _failed_log(selection: Selection) -> str | None:
    """The log of the rank that failed first in the newest attempt."""
    attempt = latest_attempt(selection.place)
    failure = (read_json(attempt.exit) or {}).get("first_failure") if attempt else None
    if not isinstance(failure, Mapping) or attempt is None:
        return None
    rank, launch = failure.get("rank"), failure.get("launch")
    name = f"{launch}:{rank}" if launch else str(rank)
    return name if name in _logs(attempt, selection) else None


def _logs(attempt: AttemptDirectory, selection: Selection) -> dict[str, Path]:
    summary = selection.record.summary
    if not summary.script:
        return {log.name: log.path for log in logs.rank_logs(attempt, summary)}
    launched = logs.launch_logs(attempt)
    found = {f"{launch}:{log.rank}": log.path for launch, of_launch in launched.items() for log in of_launch}
    return {"script": attempt.script_log, **found}


def _checkpoints(selection: Selection) -> list[dict[str, Any]]:
    """The complete ones, the newest first."""
    root = selection.place.checkpoints
    watch: tuple[str, ...] = ()
    with contextlib.suppress(RecordUnreadable):
        sync = selection.record.plan.checkpoint
        watch = sync.watch if sync else ()
    found = checkpoints.ordered(root, watch)[:MOST_CHECKPOINTS]
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
    answer = {"quantity": quantity, "unit": unit, "attempt": number, "one_in": found.one_in, "left_out": 0}
    if not found.nodes:
        return {**answer, "start": None, "end": None, "rows": [], "present": []}
    periods = [(node, period) for node in found.nodes for period in node.plausible_periods()]
    start = min(period.t - period.seconds for _, period in periods)
    end = max(period.t for _, period in periods)
    each = 1 if found.one_in == 1 else 2  # distances between lines that were read differ: no cell may stay empty
    columns = max(min(MOST_COLUMNS, max(len(node.periods) for node in found.nodes) // each), 1)
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
    shown = [_heatmap_row(label, cells) for label, cells in rows.items()]
    of_each_node = (len(rows) + len(left_out)) // len(found.nodes)
    missing = len(left_out) + found.unread * of_each_node
    more = {"rows": shown, "present": _present(found.nodes), "left_out": missing}
    return {**answer, "start": start, "end": end, **more}


def _heatmap_row(label: str, cells: Sequence[Sequence[Range]]) -> dict[str, Any]:
    every = [value for cell in cells for value in cell]
    return {
        "label": label,
        "values": [sum(value.mean for value in cell) / len(cell) if cell else None for cell in cells],
        "low": min(value.minimum for value in every),
        "mean": sum(value.mean for value in every) / len(every),
        "high": max(value.maximum for value in every),
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

    A reader that is far behind gets the last lines, too; `is_new` says so. `rest` is the last line, which has no end
    yet. Escape sequences are removed. Raises UsageError for an unknown log.
    """
    place = selection.place.attempt(attempt) if attempt else latest_attempt(selection.place)
    if place is None:
        return {"lines": [], "rest": "", "next": 0, "size": 0, "attempt": None, "is_new": True, "is_cut": False}
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
        more = {"attempt": place.number, "is_new": True, "is_cut": False}
        return {"lines": [], "rest": "", "next": 0, "size": 0, **more}
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
    """The text of one of FILES. Raises UsageError if it does not exist."""
    path = _file_paths(selection).get(name)
    try:
        if path is None or not path.is_file():  # a pipe, say, would never end
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
        "trials": [trial.to_json() for trial in found.trials],
        "best": found.best_so_far,
    }
