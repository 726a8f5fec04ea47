"""Reads what the pages show. Two threads: one asks the schedulers, as often as `serried wait` does, one reads files.

They are daemons: a scheduler or a file system that does not answer delays neither a key nor the end.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from serried.base.errors import RunNotFoundError, SerriedError
from serried.base.text import ago, counted, duration, local_time
from serried.records import index, live, logs, samples
from serried.records.index import Selection
from serried.records.live import RunProgress, doubts
from serried.records.record import RecordUnreadable
from serried.records.status import UNCERTAIN, Pace, RunStatus, latest_attempt, statuses, task_of
from serried.records.why import Explanation, explain
from serried.schema import names, series
from serried.schema.layout import AttemptDirectory
from serried.schema.reasons import Reason
from serried.views import run_lines
from serried.views.console import Cell
from serried.views.run_files import EndFiles, Point, sampled_values, shown_first
from serried.views.text import without_escapes
from serried.views.watch.pages import GpuKey, RunPage, RunRow

_FILES_SECONDS, _LIVE_SECONDS, _RARELY_SECONDS = 1.0, 5.0, 5.0
_SHARE = 20
"""Reading metrics and samples takes at most one of so many seconds."""
_MOST_FOLLOWED = 20
"""Running runs whose files are read for the list."""
_FAILED = names.ENDED - {names.COMPLETED, names.CANCELLED}
_IN_NOTES = (Reason.STALLED, Reason.NO_OUTPUT, Reason.HEAD_SILENT)
"""Warnings that a note repeats."""
_TAIL_LINES, _TAIL_BYTES = 300, 1 << 16
_MOST_NODES = 64
_PERIODS, _PERIODS_OF_FIRST = 60, 1000
_LARGEST_METRICS = 8 << 20
"""About a second of reading; of more at the first look, the curves are those of the samples."""
_OLD_QUEUE_SECONDS = 900.0


@dataclass(frozen=True)
class Shown:
    """What the user looks at: the list (no selection), the tasks of an array, or a run."""

    selection: Selection | None = None
    log: int | None = None
    """None for that of the rank that failed first, or of the first rank."""


@dataclass(frozen=True)
class Pages:
    rows: tuple[RunRow, ...] = ()
    is_read: bool = False
    notice: str = ""
    of: str = ""
    """The id of the run or task that the others show."""
    tasks: tuple[RunRow, ...] | None = None
    page: RunPage | None = None


class Reader:
    def __init__(
        self, on_change: Callable[[], object] = lambda: None, on_crash: Callable[[Exception], None] = lambda _: None
    ) -> None:
        self.pages = Pages()
        self._on_change, self._on_crash = on_change, on_crash
        self._shown = Shown()
        self._wake_files, self._wake_states = threading.Event(), threading.Event()
        self._has_ended = threading.Event()
        self._found: dict[str, RunStatus] = {}
        """By id of the run."""
        self._has_asked = False
        self._problem = ""
        self._settled: set[str] = set()
        """Runs whose record has their end: they never change."""
        self._explained: dict[str, tuple[RunStatus, Explanation]] = {}
        self._rows_at = 0.0
        self._end_files = EndFiles()
        self._run: RunReader | None = None

    def start(self) -> None:
        def guarded(read: Callable[[], None]) -> None:
            try:
                read()
            except Exception as error:  # noqa: BLE001 - a bug, raised again once the terminal is restored
                self._on_crash(error)

        for read in (self._read_states, self._read_files):
            threading.Thread(target=guarded, args=(read,), daemon=True).start()

    def read_once(self, shown: Shown) -> Pages:
        self._shown = shown
        self._query()
        return self._pages(shown)

    def stop(self) -> None:
        self._has_ended.set()
        self._wake_files.set()
        self._wake_states.set()

    def show(self, shown: Shown) -> None:
        self._shown = shown
        self._wake_files.set()
        self._wake_states.set()

    def _read_states(self) -> None:
        pace = Pace()
        while not self._has_ended.is_set():
            found: list[RunStatus] = []
            try:
                found, self._problem = self._query(), ""
            except (SerriedError, OSError) as error:  # a home that is away for a moment
                self._problem = f"the records cannot be read: {error}"
            self._wake_files.set()
            self._wait_for_change(time.monotonic() + pace.after(found))

    def _query(self) -> list[RunStatus]:
        records = [record for record in index.records() if record.directory.path.is_dir()]
        found = statuses([record for record in records if record.id not in self._settled])
        kept = {record.id: self._found[record.id] for record in records if record.id in self._settled}
        self._found = {**kept, **{status.id: status for status in found}}
        self._settled = {*kept, *(status.id for status in found if _is_settled(status))}
        self._rows_at, self._has_asked = 0.0, True
        self._explain(self._shown.selection)
        return found

    def _explain(self, selection: Selection | None) -> None:
        """Here, because the explanation of a run that waits for others asks for their states."""
        status = self._status_of(selection)
        if status is None or (status.state == names.RUNNING and status.tasks is None) or status.summary is None:
            return
        before = self._explained.get(status.id)
        if before is None or before[0] is not status or status.task is not None:
            self._explained[status.id] = status, explain(status)

    def _wait_for_change(self, until: float) -> None:
        """Sleep until `until`, or until a file shows the end of a run."""
        while not self._has_ended.is_set() and (left := until - time.monotonic()) > 0:
            if self._wake_states.wait(min(_FILES_SECONDS, left)):
                self._wake_states.clear()
                selection = self._shown.selection
                if selection is not None and str(selection) not in self._explained:
                    self._explain(selection)
                    self._wake_files.set()
            if self._end_files.has_new(self._found.values()):
                return

    def _status_of(self, selection: Selection | None) -> RunStatus | None:
        whole = self._found.get(selection.record.id) if selection else None
        if whole is None or selection is None or selection.task is None:
            return whole
        try:
            return task_of(whole, selection.task)
        except RunNotFoundError:
            return None

    def _read_files(self) -> None:
        while not self._has_ended.is_set():
            self._wake_files.clear()
            shown = self._shown
            before = self.pages
            try:
                pages = self._pages(shown)
            except (SerriedError, OSError) as error:
                pages = Pages(before.rows, is_read=before.is_read, notice=f"files cannot be read: {error}")
            if shown is self._shown:
                self.pages = pages
                if pages != before:
                    self._on_change()
            self._wake_files.wait(_FILES_SECONDS)

    def _pages(self, shown: Shown) -> Pages:
        now = time.time()
        found, rows = self._found, self.pages.rows
        if shown.selection is None or not rows:
            rows = self._rows(found, now)
        stale = (notice_of(status, now) for status in found.values() if status.verdict.stale)
        notice = self._problem or next(stale, "")
        pages = Pages(rows, is_read=self._has_asked, notice=notice, of=str(shown.selection or ""))
        status = self._status_of(shown.selection)
        if shown.selection is None or status is None:
            return pages
        if status.tasks is not None:
            return dataclasses.replace(pages, tasks=_task_rows(status))
        return dataclasses.replace(pages, page=self._page(shown.selection, shown.log, status, now))

    def _page(self, selection: Selection, log: int | None, status: RunStatus, now: float) -> RunPage:
        explanation = self._explained[status.id][1] if status.id in self._explained else None
        has_begun = latest_attempt(selection.place) is not None  # its output is worth showing, also while it waits
        if status.state not in (names.RUNNING, *names.ENDED) and not has_begun:
            return _waiting_page(status, explanation, now)
        if self._run is None or str(self._run.selection) != str(selection):
            self._run = RunReader(selection)
        return self._run.page(status, explanation, log)

    def _rows(self, found: dict[str, RunStatus], now: float) -> tuple[RunRow, ...]:
        """The list, with what running runs do now: these files are read every few seconds."""
        if time.monotonic() - self._rows_at < _LIVE_SECONDS and self._rows_at:
            return self.pages.rows
        running = [status for status in found.values() if status.state == names.RUNNING][:_MOST_FOLLOWED]
        again = {status.id: dataclasses.replace(status) for status in running}  # reads its progress once more
        self._rows_at = time.monotonic()
        return tuple(_row(status, now) for status in sorted({**found, **again}.values(), key=run_lines.list_order))


def _is_settled(status: RunStatus) -> bool:
    """Whether this was read from the end in the record, which may have been written after the answer of a scheduler."""
    try:
        return status.has_ended and status.record.end is not None
    except RecordUnreadable:
        return False


def _row(status: RunStatus, now: float) -> RunRow:
    """A run in the list. Its note is that of `serried ps`, behind the first warning that says something else."""
    summary, note = status.summary, run_lines.note_of(status, now)
    found = doubts(status.progress) if status.progress else []
    warning = next((one.message for one in found if one.code not in _IN_NOTES), "")
    return RunRow(
        status.id,
        summary.name if summary else "?",
        status.state,
        summary.size if summary else "?",
        duration(run_lines.total_seconds(status, now)),
        Cell(f"{warning}, {note.text}", "warning", note.end, (warning,)) if warning else note,
        summary.project if summary else "",
        run_lines.ended(status, now),
    )


def _task_rows(status: RunStatus) -> tuple[RunRow, ...]:
    """The tasks of an array, in the order of runs. What the first running ones do is read from their files."""
    tasks = sorted(
        (status.tasks or {}).items(), key=lambda it: (run_lines.list_place(it[1].state), -(it[1].since or 0.0), it[0])
    )
    name = status.summary.name if status.summary else "?"
    doing = {task: run_lines.progress_line(progress) for task, progress in status.progress_of_tasks.items()}
    return tuple(
        RunRow(f"{status.id}/{task}", name, verdict.state, note=Cell(verdict.message or doing.get(task, "")))
        for task, verdict in tasks
    )


def notice_of(status: RunStatus | None, now: float) -> str:
    if status is None or status.verdict.stale is None:
        return ""
    return f"the scheduler does not answer; this state is from {ago(now - status.verdict.stale)}"


def size_in_words(status: RunStatus) -> str:
    summary = status.summary
    if summary is None:
        return ""
    ranks = summary.nodes * max(summary.ranks, 1)
    spares = f" + {summary.spare_nodes} spare" if summary.spare_nodes else ""
    gpus = f", {counted(summary.job_nodes * summary.gpus, 'GPU')}" if summary.gpus else f", {counted(ranks, 'rank')}"
    again = f", attempt {status.attempt}" if (status.attempt or 1) > 1 else ""
    return f"{counted(summary.nodes, 'node')}{spares}{gpus} on {summary.cluster}{again}"


class RunReader:
    """Reads the files of one run again and again: the small ones each time, the others seldom."""

    def __init__(self, selection: Selection) -> None:
        self.selection = selection
        self._t: tuple[float, float] | None = None
        """`t` of live.json, and when it would have been 0 s old by our clock."""
        self._read_again = 0.0
        """Of the first rank that logs: later looks read only what was added."""
        self._curves: Mapping[str, Sequence[Point]] = {}
        self._recent: dict[GpuKey, list[float | None]] = {}
        self._period = 30.0

    def page(self, status: RunStatus, explanation: Explanation | None, chosen: int | None) -> RunPage:
        now = time.time()
        attempt = latest_attempt(self.selection.place)
        metric = status.summary.metric if status.summary else ""
        progress = None
        is_between = not status.has_ended and attempt is not None and attempt.exit.exists()
        if attempt is not None and not status.has_ended and not is_between:
            progress = self._live(attempt, metric)
        self._read_rarely(attempt, progress, metric)
        found = self._logs(status, attempt)
        log = _failed_log(found, explanation) if chosen is None else min(max(chosen, 0), max(len(found) - 1, 0))
        warnings = tuple(warning.message for warning in (doubts(progress) if progress else status.warnings))
        notice = notice_of(status, now)
        if not notice and attempt is None and not self.selection.record.where.path.is_dir():
            notice = "the run directory was removed, and its output with it"
        message = status.verdict.message if status.has_ended or not notice else ""
        meaning = explanation.meaning if explanation and status.has_ended else ""
        # As a terminal would show them, without colours.
        last_lines = logs.last_lines(found[log].path, _TAIL_LINES, _TAIL_BYTES) if found else ()
        return RunPage(
            status.id,
            status.summary.name if status.summary else "?",
            status.state,
            message="; ".join(dict.fromkeys(filter(None, (message, meaning)))),
            size=size_in_words(status),
            elapsed=run_lines.elapsed_seconds(status, now),
            limit=status.summary.time_seconds if status.summary and not is_between else None,
            live=progress,
            recent=self._recent,
            recent_seconds=self._period,
            curves=self._curves,
            logs=tuple(_log_name(one, progress, status) for one in found),
            log=log,
            log_lines=tuple(map(without_escapes, last_lines)),
            warnings=(notice,) if notice else warnings,
            has_ended=status.has_ended,
            steps=explanation.steps if explanation and status.state in _FAILED else (),
        )

    def _live(self, attempt: AttemptDirectory, metric: str) -> RunProgress | None:
        """live.json, with its age by this machine's clock alone, once it has changed before our eyes."""
        document = live.read(attempt.live)
        if document is None:
            return None
        now = time.monotonic()
        if self._t is None or self._t[0] != document.t:
            age = 0.0
            if self._t is None:
                with contextlib.suppress(OSError):
                    age = max(time.time() - attempt.live.stat().st_mtime, 0.0)
                age = min(age, document.age(time.time()))
            self._t = document.t, now - age
        return RunProgress(document, now - self._t[1], metric)

    def _logs(self, status: RunStatus, attempt: AttemptDirectory | None) -> list[logs.RankLog]:
        if attempt is None or status.summary is None:
            return []
        found = logs.rank_logs(attempt, status.summary)
        if status.summary.script:
            found += [log for launch in [*logs.launch_logs(attempt).values()][-1:] for log in launch]
        return found

    def _read_rarely(self, attempt: AttemptDirectory | None, progress: RunProgress | None, metric: str) -> None:
        began = time.monotonic()
        if attempt is None or began < self._read_again:
            return
        nodes = (
            sorted({node.node for node in progress.live.nodes if node.gpus} | {0})[:_MOST_NODES] if progress else [0]
        )
        periods = {
            node: samples.newest(attempt.samples(node), _PERIODS if node else _PERIODS_OF_FIRST) for node in nodes
        }
        self._recent = {
            (node, int(gpu)): [_mean_busy(period, gpu) for period in its[-_PERIODS:]]
            for node, its in periods.items()
            for gpu in {gpu for period in its[-_PERIODS:] for gpu in period.gpus}
            if gpu.isdecimal()
        }
        self._period = periods[0][-1].seconds or 30.0 if periods.get(0) else 30.0
        curves = self._logged() or sampled_metrics(periods.get(0, []))
        self._curves = {name: curves[name] for name in shown_first(curves, metric)}
        self._read_again = time.monotonic() + max(_RARELY_SECONDS, _SHARE * (time.monotonic() - began))

    def _logged(self) -> dict[str, list[Point]]:
        """The values of `run.log`, by name."""
        place = self.selection.place
        ranks = series.ranks(place)
        size = 0
        for path, _ in series.files_of(place, ranks[0]) if ranks else ():
            with contextlib.suppress(OSError):
                size += path.stat().st_size
        if not ranks or size > _LARGEST_METRICS:
            return {}
        curves: dict[str, list[Point]] = {}
        for point in series.points(place, ranks[0]):
            for name, value in point.values.items():
                if (known := series.logged_number(value)) is not None:
                    with contextlib.suppress(OverflowError):
                        curves.setdefault(name, []).append((float(point.step), known))
        return curves


def _log_name(log: logs.RankLog, progress: RunProgress | None, status: RunStatus) -> str:
    if log.rank == names.SCRIPT_RANK:
        return "the script"
    host = next((node.host for node in progress.live.nodes if node.node == log.node), "") if progress else ""
    host = host or dict(enumerate(status.node_names)).get(log.node, f"node {log.node}")
    return f"rank{'s' * (log.ranks > 1)} {log.name} on {host}" + (f", launch {log.launch}" if log.launch else "")


def _failed_log(found: Sequence[logs.RankLog], explanation: Explanation | None) -> int:
    """The place of the log of the rank that failed first; the first log if none has."""
    failure = explanation.first_failure if explanation else None
    if failure is None or failure.rank is None:
        return 0
    return next((at for at, log in enumerate(found) if log.is_of(failure.rank) and log.launch == failure.launch), 0)


def sampled_metrics(periods: Sequence[samples.Period]) -> dict[str, list[Point]]:
    """The metrics that the agent read, of the first rank that has some. A loss of NaN is worth a curve, too."""
    rank = next((name for period in periods for name, it in period.ranks.items() if it.get("metrics")), "")
    curves: dict[str, list[Point]] = {}
    for period in periods:
        for step, name, value in sampled_values(period, rank):
            if (known := series.logged_number(value)) is not None:
                curves.setdefault(name, []).append((step, known))
    return curves


def _mean_busy(period: samples.Period, gpu: str) -> float | None:
    """Percent of the time."""
    busy = samples.range_in(period.gpus.get(gpu, {}), "busy")
    return busy.mean if busy else None


def _waiting_page(status: RunStatus, explanation: Explanation | None, now: float) -> RunPage:
    is_known = status.state not in (names.UNKNOWN, UNCERTAIN)
    why = explanation.meaning if explanation else status.verdict.message or status.scheduler_explanation
    ahead, sooner = _openings(status, now)
    starts = "no estimate yet" if status.starts is None else "now"
    if status.starts is not None and status.starts > now:
        starts = f"{local_time(status.starts)}, in {duration(status.starts - now)}"
    lines = {
        "reason": status.reason,
        "waits for": duration(now - status.created) if status.created else "",
        "ahead": ahead,
        "expected": starts if is_known else "",
    }
    facts = {
        "why it waits" if is_known else "why": (
            why or "the scheduler gives no reason",
            *(f"{label:<10}  {text}" for label, text in lines.items() if text),
        ),
        "what would start sooner": tuple(f"- {text}" for text in sooner),
        "what to do": tuple(f"- {step}" for step in explanation.steps) if explanation else (),
    }
    notice = notice_of(status, now)
    return RunPage(
        status.id,
        status.summary.name if status.summary else "?",
        status.state,
        size=size_in_words(status),
        warnings=(notice,) if notice else (),
        facts=tuple((head, texts) for head, texts in facts.items() if texts),
    )


def _openings(status: RunStatus, now: float) -> tuple[str, tuple[str, ...]]:
    """The jobs ahead, and what would start sooner, by the last answer to `serried queue`. Asks nothing."""
    from serried.schedulers import occupancy_cache  # only for runs that wait
    from serried.schedulers.occupancy import JobShape
    from serried.views.queue_lines import ahead_text, opening_text

    if status.summary is None or not status.job or status.waits_because not in (None, Reason.QUEUED):
        return "", ()
    try:
        look = occupancy_cache.remembered(status.summary.scheduler, os.environ, seconds=_OLD_QUEUE_SECONDS)
    except SerriedError:
        look = None
    if look is None:
        return "", (f"see `serried queue {status.id}`, which asks the scheduler",)
    ids = status.job.split(",")
    job = next((one for one in look.occupancy.mine if one.id in ids), None)
    if job is None or not job.waits_for_resources:
        return "", ()
    before, shape = look.occupancy.ahead_of(job), JobShape.of(job)
    found = look.occupancy.sooner(shape, before, now)
    ahead = f"{ahead_text(before)}, as of {duration(look.age(now))} ago"
    return ahead, tuple(opening_text(one, shape) for one in found)
