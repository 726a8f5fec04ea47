"""The status of all runs, kept up to date by a thread while a browser asks.

However many browsers ask, the scheduler gets a query when something changed, then less and less often: as from
`serried wait`, at most every two seconds and at least every half a minute.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Iterable, Sequence

from serried.records import index, run_status
from serried.records.index import Selection
from serried.records.record import Record
from serried.records.run_status import RunStatus
from serried.records.status import statuses, task_of

FIRST_SECONDS, LONGEST_SECONDS, GROWTH = 2.0, 30.0, 1.5
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
        self._has_looked, self._is_wanted, self._is_closed = (threading.Event() for _ in range(3))
        self._asked_at = time.monotonic()
        self._thread = threading.Thread(target=self._refresh, name="serried-ui-runs", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._is_closed.set()
        self._is_wanted.set()

    def all(self) -> tuple[RunStatus, ...]:
        """The newest first. Waits for the first look only."""
        self._want()
        self._has_looked.wait(FIRST_LOOK_SECONDS)
        # Copies: a status keeps the progress that it has read once.
        return tuple(status if status.has_ended else dataclasses.replace(status) for status in self._found)

    def one(self, selection: Selection) -> RunStatus:
        """The status of a run or a task: as of the last look, or from files if the run has ended."""
        if selection.record.end is not None:
            whole = run_status.read_end(selection.record)
        else:
            known = {status.record.id: status for status in self.all()}
            whole = known.get(selection.record.id) or self._look([selection.record])[0]
        return whole if selection.task is None else task_of(whole, selection.task)

    def _want(self) -> None:
        self._asked_at = time.monotonic()
        self._is_wanted.set()

    def _refresh(self) -> None:
        interval, before = FIRST_SECONDS, ""
        while not self._is_closed.is_set():
            self._is_wanted.wait()
            self.refresh()
            now = repr([(status.id, status.state, status.attempt) for status in self._found])
            interval = FIRST_SECONDS if now != before else min(interval * GROWTH, LONGEST_SECONDS)
            before = now
            self._is_closed.wait(interval)
            if time.monotonic() - self._asked_at > IDLE_SECONDS:
                self._is_wanted.clear()

    def refresh(self) -> None:
        """Look at the runs that have not ended, and at new ones."""
        records = {record.id: record for record in self._known()}
        self._ended = {run: status for run, status in self._ended.items() if run in records}
        looked = self._look([record for run, record in records.items() if run not in self._ended])
        self._ended.update({status.record.id: status for status in looked if status.record.end is not None})
        open_ = [status for status in looked if status.record.id not in self._ended]
        self._found = tuple(sorted((*open_, *self._ended.values()), key=lambda status: -status.created))
        self._has_looked.set()
