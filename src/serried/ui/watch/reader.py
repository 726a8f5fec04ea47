"""Two threads that read for the pages: one asks the schedulers, as often as `serried wait` does, one reads files.

They are daemons: a scheduler or a file system that does not answer delays neither a key nor the end.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from serried.errors import RunNotFoundError, SerriedError
from serried.protocol import names
from serried.records import index
from serried.records.evidence import latest_attempt
from serried.records.explain import Explanation, explain
from serried.records.index import Selection
from serried.records.record import RecordUnreadable
from serried.records.run_status import RunStatus
from serried.records.status import Pace, has_ended_by_file, statuses, task_of
from serried.ui import run_rows
from serried.ui.watch import facts, waiting_facts
from serried.ui.watch.list_page import RunRow
from serried.ui.watch.run_page import RunPage
from serried.ui.watch.waiting_page import WaitingPage

_FILES_SECONDS, _LIVE_SECONDS = 1.0, 5.0
_MOST_FOLLOWED = 20
"""Running runs whose files are read for the list."""


@dataclass(frozen=True)
class Shown:
    """What the user looks at: the list (no selection), the tasks of an array, or a run."""

    selection: Selection | None = None
    log: int | None = None
    """None for that of the rank that failed first, or of the first rank."""


@dataclass(frozen=True)
class Pages:
    """What was read last."""

    rows: tuple[RunRow, ...] = ()
    is_read: bool = False
    notice: str = ""
    of: str = ""
    """The id of the run or task that the others show."""
    tasks: tuple[RunRow, ...] | None = None
    page: RunPage | WaitingPage | None = None


class Reader:
    def __init__(
        self, on_change: Callable[[], None] = lambda: None, on_crash: Callable[[Exception], None] = lambda _: None
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
        self._run: facts.RunReader | None = None

    def start(self) -> None:
        for work in (self._read_states, self._read_files):
            threading.Thread(target=self._guard, args=(work,), daemon=True).start()

    def read_once(self, shown: Shown) -> Pages:
        """Read in this thread."""
        self._shown = shown
        self._query()
        return self._pages(shown)

    def stop(self) -> None:
        self._has_ended.set()
        self._wake_files.set()
        self._wake_states.set()

    def show(self, shown: Shown) -> None:
        """Read this from now on."""
        self._shown = shown
        self._wake_files.set()
        self._wake_states.set()

    def _guard(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - a bug, raised again once the terminal is restored
            self._on_crash(error)

    # The states of all runs, by the schedulers.

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
        running = [status for status in self._found.values() if status.state == names.RUNNING and status.tasks is None]
        followed = [Selection(status.record) for status in running[:_MOST_FOLLOWED]]
        followed = [one for one in followed if not has_ended_by_file(one)]  # a preempted run has, and continues
        while not self._has_ended.is_set() and (left := until - time.monotonic()) > 0:
            if self._wake_states.wait(min(_FILES_SECONDS, left)):
                self._wake_states.clear()
                self._explain_new()
            if any(map(has_ended_by_file, followed)):
                return

    def _explain_new(self) -> None:
        selection = self._shown.selection
        if selection is not None and str(selection) not in self._explained:
            self._explain(selection)
            self._wake_files.set()

    def _status_of(self, selection: Selection | None) -> RunStatus | None:
        whole = self._found.get(selection.record.id) if selection else None
        if whole is None or selection is None or selection.task is None:
            return whole
        try:
            return task_of(whole, selection.task)
        except RunNotFoundError:
            return None

    # Files.

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
        stale = (facts.notice_of(status, now) for status in found.values() if status.verdict.stale)
        notice = self._problem or next(stale, "")
        pages = Pages(rows, is_read=self._has_asked, notice=notice, of=str(shown.selection or ""))
        status = self._status_of(shown.selection)
        if shown.selection is None or status is None:
            return pages
        if status.tasks is not None:
            return dataclasses.replace(pages, tasks=facts.task_rows(status))
        return dataclasses.replace(pages, page=self._page(shown.selection, shown.log, status, now))

    def _page(self, selection: Selection, log: int | None, status: RunStatus, now: float) -> RunPage | WaitingPage:
        explanation = self._explained[status.id][1] if status.id in self._explained else None
        has_begun = latest_attempt(selection.place) is not None  # its output is worth showing, also while it waits
        if status.state not in (names.RUNNING, *names.ENDED) and not has_begun:
            return waiting_facts.waiting_page(status, explanation, now)
        if self._run is None or str(self._run.selection) != str(selection):
            self._run = facts.RunReader(selection)
        return self._run.page(status, explanation, log)

    def _rows(self, found: dict[str, RunStatus], now: float) -> tuple[RunRow, ...]:
        """The list, with what running runs do now: these files are read every few seconds."""
        if time.monotonic() - self._rows_at < _LIVE_SECONDS and self._rows_at:
            return self.pages.rows
        running = [status for status in found.values() if status.state == names.RUNNING][:_MOST_FOLLOWED]
        again = {status.id: dataclasses.replace(status) for status in running}  # reads its progress once more
        self._rows_at = time.monotonic()
        return tuple(facts.row_of(status, now) for status in sorted({**found, **again}.values(), key=run_rows.order))


def _is_settled(status: RunStatus) -> bool:
    """Whether this was read from the end in the record, which may have been written after the answer of a scheduler."""
    try:
        return status.has_ended and status.record.end is not None
    except RecordUnreadable:
        return False
