"""The status of all runs and their curves, kept up to date while a browser asks.

However many browsers ask, the schedulers get a query when something changed, then less and less often, as from
`serried wait`. In between, files show new runs and the ends of others.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

from serried.records import index, status
from serried.records.index import Selection
from serried.records.record import Record
from serried.records.status import Pace, RunStatus, statuses, task_of
from serried.schema.layout import TaskDirectory
from serried.views.run_files import EndFiles, RankCurves


class KeptCurves:
    """The curves that browsers have asked for last."""

    def __init__(self, most: int = 16) -> None:
        self._most = most
        self._kept: dict[tuple[Path, int], RankCurves] = {}
        self._lock = threading.Lock()

    def look(
        self, place: TaskDirectory, rank: int, wanted: Collection[str] | None = None, metric: str = ""
    ) -> dict[str, Any]:
        with self._lock:
            found = self._kept.pop((place.path, rank), None) or RankCurves(place, rank)
            self._kept[place.path, rank] = found
            while len(self._kept) > self._most:
                del self._kept[next(iter(self._kept))]
        return found.look(wanted, metric)


_FILES_SECONDS = 1.0
IDLE_SECONDS = 60.0
"""The thread rests when no browser has asked for so long."""
FIRST_LOOK_SECONDS = 15.0
"""How long the first request waits for the first look: a scheduler may be slow."""

Look = Callable[[Iterable[Record]], Sequence[RunStatus]]


class Runs:
    """`look` finds the statuses of runs; `known` lists their records."""

    def __init__(self, look: Look = statuses, known: Callable[[], list[Record]] = index.records) -> None:
        self._look, self._known = look, known
        self._ended: dict[str, RunStatus] = {}
        """Those whose end is in the record, so that no later look changes it."""
        self._found: tuple[RunStatus, ...] = ()
        self.problem = ""
        """Why the last look failed, so that the statuses are those of an earlier one."""
        self._listed: set[str] = set()
        """The runs that the last look knew. A run that came while it lasted is none of them, and is noticed."""
        self._end_files = EndFiles()
        self.curves = KeptCurves()
        self._lock = threading.Lock()
        self._has_looked, self._is_wanted, self._is_closed = (threading.Event() for _ in range(3))
        self._asked_at = time.monotonic()
        self._thread = threading.Thread(target=self._refresh, name="serried-ui-runs", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._is_closed.set()
        self._is_wanted.set()

    def all(self) -> tuple[RunStatus, ...]:
        """The newest first. Waits for the first look, and for the first one after a rest."""
        self._asked_at = time.monotonic()
        self._is_wanted.set()
        self._has_looked.wait(FIRST_LOOK_SECONDS)
        # Copies: a status keeps the progress that it has read once.
        return tuple(status if status.has_ended else dataclasses.replace(status) for status in self._found)

    def one(self, selection: Selection) -> RunStatus:
        """The status of a run or a task: as of the last look, or from files if the run has ended."""
        record = selection.record
        whole = status.read_end(record) if record.end is not None else self._known_status(record)
        if whole is None:
            with self._lock:  # a new run costs one look, however many requests wait for it
                if self._known_status(record) is None:
                    self._update()
            whole = self._known_status(record) or self._look([record])[0]
        return whole if selection.task is None else task_of(whole, selection.task)

    def _known_status(self, record: Record) -> RunStatus | None:
        return next((status for status in self.all() if status.record.id == record.id), None)

    def _refresh(self) -> None:
        pace = Pace()
        while not self._is_closed.is_set():
            self._is_wanted.wait()
            try:
                self.refresh()
                self.problem = ""
            except Exception as error:  # noqa: BLE001 - a home that is away, say: the page tells, and the next look may work
                self.problem = f"the runs cannot be read: {error}"
            self._has_looked.set()
            self._wait_for_change(time.monotonic() + pace.after(self._found))
            if self._is_idle():
                self._has_looked.clear()
                self._is_wanted.clear()
                if not self._is_idle():  # a request came just now
                    self._is_wanted.set()

    def _is_idle(self) -> bool:
        return time.monotonic() - self._asked_at > IDLE_SECONDS

    def _wait_for_change(self, until: float) -> None:
        """Sleep until `until`, or until files show a new run or the end of another."""
        while (left := until - time.monotonic()) > 0 and not self._is_closed.wait(min(_FILES_SECONDS, left)):
            if self._end_files.has_new(self._found):
                return
            with contextlib.suppress(OSError):  # a home that is away for a moment
                if {record.id for record in self._known()} != self._listed:
                    return

    def refresh(self) -> None:
        """Look at the runs that have not ended, and at new ones."""
        with self._lock:
            self._update()

    def _update(self) -> None:
        records = {record.id: record for record in self._known()}
        self._listed = set(records)
        self._ended = {run: status for run, status in self._ended.items() if run in records}
        looked = self._look([record for run, record in records.items() if run not in self._ended])
        self._ended.update({status.record.id: status for status in looked if status.record.end is not None})
        open_ = [status for status in looked if status.record.id not in self._ended]
        self._found = tuple(sorted((*open_, *self._ended.values()), key=lambda status: -status.created))
        self._has_looked.set()
