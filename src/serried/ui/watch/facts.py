"""Reads what the pages show. Each function may wait for a file system: only reading threads and `--once` call them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from serried.metrics import samples
from serried.protocol import names, series
from serried.protocol.layout import AttemptDirectory
from serried.protocol.reasons import Reason
from serried.protocol.sizes import counted
from serried.records import live, logs
from serried.records.doubts import doubts
from serried.records.evidence import latest_attempt
from serried.records.explain import Explanation
from serried.records.index import Selection
from serried.records.run_status import RunStatus
from serried.records.verdict import Verdict
from serried.ui import progress_lines, run_rows
from serried.ui.console import Cell
from serried.ui.text import ago, duration, without_escapes
from serried.ui.watch.drawing import Point
from serried.ui.watch.list_page import RunRow
from serried.ui.watch.live_view import GpuKey, LiveView
from serried.ui.watch.run_page import RunPage

_FAILED = names.ENDED - {names.COMPLETED, names.CANCELLED}
_IN_NOTES = (Reason.STALLED, Reason.NO_OUTPUT, Reason.HEAD_SILENT)
"""Warnings that a note repeats."""
_TAIL_LINES, _TAIL_BYTES = 300, 1 << 16
_MOST_NODES = 64
_PERIODS, _PERIODS_OF_FIRST = 60, 1000
_LARGEST_METRICS = 8 << 20
"""About a second of reading; of more, the curves are those of the samples."""
_RARELY_SECONDS = 5.0
_SHARE = 20
"""Reading metrics and samples takes at most one of so many seconds."""


def row_of(status: RunStatus, now: float) -> RunRow:
    """A run in the list. What it does now is read from its files."""
    summary = status.summary
    return RunRow(
        status.id,
        summary.name if summary else "?",
        status.state,
        summary.size if summary else "?",
        duration(run_rows.total(status, now)),
        _note(status, now),
        summary.project if summary else "",
    )


def _note(status: RunStatus, now: float) -> Cell:
    """As `serried ps` has it, behind the first warning that says something else."""
    note = run_rows.note(status, now)
    found = doubts(status.progress) if status.progress else []
    warning = next((one["message"] for one in found if one["code"] not in _IN_NOTES), "")
    return Cell(f"{warning}, {note.text}", "warning", note.end, (warning,)) if warning else note


def task_rows(status: RunStatus) -> tuple[RunRow, ...]:
    """The tasks of an array, in the order of runs. What the first running ones do is read from their files."""
    tasks = sorted(
        (status.tasks or {}).items(), key=lambda it: (run_rows.place(it[1].state), -(it[1].since or 0.0), it[0])
    )
    name = status.summary.name if status.summary else "?"
    return tuple(
        RunRow(f"{status.id}/{task}", name, verdict.state, note=_task_note(status, task, verdict))
        for task, verdict in tasks
    )


def _task_note(status: RunStatus, task: int, verdict: Verdict) -> Cell:
    progress = status.progress_of_tasks.get(task)
    return Cell(verdict.message or (progress_lines.line(progress) if progress else ""))


def notice_of(status: RunStatus | None, now: float) -> str:
    if status is None or status.verdict.stale is None:
        return ""
    return f"the scheduler does not answer; this state is from {ago(now - status.verdict.stale)}"


def size_in_words(status: RunStatus) -> str:
    summary = status.summary
    if summary is None:
        return ""
    ranks = summary.nodes * max(summary.ranks, 1)
    gpus = f", {counted(summary.nodes * summary.gpus, 'GPU')}" if summary.gpus else f", {counted(ranks, 'rank')}"
    again = f", attempt {status.attempt}" if (status.attempt or 1) > 1 else ""
    return f"{counted(summary.nodes, 'node')}{gpus} on {summary.cluster}{again}"


class RunReader:
    """Reads the files of one run again and again: the small ones each time, the others seldom."""

    def __init__(self, selection: Selection) -> None:
        self.selection = selection
        self._t: tuple[float, float] | None = None
        """`t` of live.json, and when it would have been 0 s old by our clock."""
        self._read_again = 0.0
        self._curves: Mapping[str, Sequence[Point]] = {}
        self._recent: dict[GpuKey, list[float | None]] = {}
        self._period = 30.0

    def page(self, status: RunStatus, explanation: Explanation | None, chosen: int | None) -> RunPage:
        now = time.time()
        attempt = latest_attempt(self.selection.place)
        metric = status.summary.metric if status.summary else ""
        view = None
        is_between = not status.has_ended and attempt is not None and attempt.exit.exists()
        if attempt is not None and not status.has_ended and not is_between:
            view = self._live(attempt, metric)
        self._read_rarely(attempt, view, metric)
        found = self._logs(status, attempt)
        log = _failed_log(found, explanation) if chosen is None else min(max(chosen, 0), max(len(found) - 1, 0))
        warnings = doubts(view.progress) if view else status.warnings
        notice = notice_of(status, now) or self._purged(attempt)
        message = status.verdict.message if status.has_ended or not notice else ""
        meaning = explanation.meaning if explanation and status.has_ended else ""
        return RunPage(
            status.id,
            status.summary.name if status.summary else "?",
            status.state,
            message="; ".join(dict.fromkeys(filter(None, (message, meaning)))),
            size=size_in_words(status),
            elapsed=run_rows.elapsed(status, now),
            limit=status.summary.time_seconds if status.summary and not is_between else None,
            live=view,
            recent=self._recent,
            recent_seconds=self._period,
            curves=self._curves,
            logs=tuple(self._named(one, view, status) for one in found),
            log=log,
            log_lines=tail(found[log].path) if found else (),
            advice=tuple(warning["message"] for warning in warnings),
            notice=notice,
            has_ended=status.has_ended,
            steps=explanation.steps if explanation and status.state in _FAILED else (),
        )

    def _purged(self, attempt: AttemptDirectory | None) -> str:
        is_purged = attempt is None and not self.selection.record.where.path.is_dir()
        return "the run directory was removed, and its output with it" if is_purged else ""

    def _live(self, attempt: AttemptDirectory, metric: str) -> LiveView | None:
        """live.json, with its age by this machine's clock alone, once it has changed before our eyes."""
        document = live.read(attempt.live)
        if document is None:
            return None
        now = time.monotonic()
        if self._t is None or self._t[0] != document.t:
            age = min(_age_of(attempt.live), document.age(time.time())) if self._t is None else 0.0
            self._t = document.t, now - age
        return LiveView(live.RunProgress(document, now - self._t[1], metric))

    def _logs(self, status: RunStatus, attempt: AttemptDirectory | None) -> list[logs.RankLog]:
        if attempt is None or status.summary is None:
            return []
        found = logs.rank_logs(attempt, status.summary)
        if status.summary.script:
            found += [log for launch in [*logs.launch_logs(attempt).values()][-1:] for log in launch]
        return found

    @staticmethod
    def _named(log: logs.RankLog, view: LiveView | None, status: RunStatus) -> str:
        if log.rank == names.SCRIPT_RANK:
            return "the script"
        host = next((node.host for node in view.live.nodes if node.node == log.node), "") if view else ""
        host = host or dict(enumerate(status.node_names)).get(log.node, f"node {log.node}")
        return f"rank{'s' * (log.ranks > 1)} {log.name} on {host}" + (f", launch {log.launch}" if log.launch else "")

    def _read_rarely(self, attempt: AttemptDirectory | None, view: LiveView | None, metric: str) -> None:
        began = time.monotonic()
        if attempt is None or began < self._read_again:
            return
        nodes = sorted({gpu.node for gpu in view.gpus} | {0})[:_MOST_NODES] if view else [0]
        periods = {
            node: samples.newest(attempt.samples(node), _PERIODS if node else _PERIODS_OF_FIRST) for node in nodes
        }
        self._recent = {
            (node, int(gpu)): values
            for node, its in periods.items()
            for gpu, values in busy_of(its[-_PERIODS:]).items()
            if gpu.isdecimal()
        }
        self._period = periods[0][-1].seconds or 30.0 if periods.get(0) else 30.0
        self._curves = in_order(self._logged() or sampled_metrics(periods.get(0, [])), metric)
        self._read_again = time.monotonic() + max(_RARELY_SECONDS, _SHARE * (time.monotonic() - began))

    def _logged(self) -> dict[str, list[Point]]:
        """The values of `run.log`, by name."""
        place = self.selection.place
        ranks = series.ranks(place)
        files = place.attempts.glob(f"*/node-*/metrics-{ranks[0]}.jsonl") if ranks else ()
        if not ranks or sum(map(_size_of, files)) > _LARGEST_METRICS:
            return {}
        return curves_of({**point.values, "step": point.step} for point in series.points(place, ranks[0]))


def in_order(curves: Mapping[str, Sequence[Point]], wanted: str) -> dict[str, Sequence[Point]]:
    """The metric `wanted`, or else the loss, comes first, and those that Serried measures come last."""
    main = live.main_metric(curves, wanted)
    return {name: curves[name] for name in sorted(curves, key=lambda it: (it != main, it.startswith("serried/")))}


def _failed_log(found: Sequence[logs.RankLog], explanation: Explanation | None) -> int:
    """The place of the log of the rank that failed first; the first log if none has."""
    failure = explanation.first_failure if explanation else None
    rank, launch = (failure.get("rank"), failure.get("launch") or "") if failure else (None, "")
    if not isinstance(rank, int):
        return 0
    return next((at for at, log in enumerate(found) if log.is_of(rank) and log.launch == launch), 0)


def tail(path: Path) -> tuple[str, ...]:
    """The last lines as a terminal would show them, without colours: of a file of any size, in constant memory."""
    return tuple(map(without_escapes, logs.last_lines(path, _TAIL_LINES, _TAIL_BYTES)))


def curves_of(rows: Iterable[Mapping[str, object]]) -> dict[str, list[Point]]:
    curves: dict[str, list[Point]] = {}
    for row in rows:
        step = row.get("step")
        for name, value in row.items():
            known = series.logged_number(value)
            if name != "step" and known is not None and isinstance(step, int):
                with contextlib.suppress(OverflowError):
                    curves.setdefault(name, []).append((float(step), known))
    return curves


def sampled_metrics(periods: Sequence[samples.Period]) -> dict[str, list[Point]]:
    """The metrics that the agent read, of the first rank that has some."""
    rank = next((name for period in periods for name, it in period.ranks.items() if it.get("metrics")), None)
    rows = [period.ranks[rank] for period in periods if rank in period.ranks] if rank is not None else []
    return curves_of(
        {**metrics, "step": it.get("step")} for it in rows if isinstance(metrics := it.get("metrics"), dict)
    )


def busy_of(periods: Sequence[samples.Period]) -> dict[str, list[float | None]]:
    """The mean busy percentage of each GPU in each period."""
    gpus = {gpu for period in periods for gpu in period.gpus}
    ranges = {gpu: [samples.range_in(period.gpus.get(gpu, {}), "busy") for period in periods] for gpu in gpus}
    return {gpu: [it.mean if it else None for it in found] for gpu, found in ranges.items()}


def _age_of(path: Path) -> float:
    try:
        return max(time.time() - path.stat().st_mtime, 0.0)
    except OSError:
        return 0.0


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
