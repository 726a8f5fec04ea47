"""`serried ps --watch`: the list again and again on a terminal; elsewhere a line for each change."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from typing import cast

from serried.cli import ps
from serried.cli.ps import Listing
from serried.errors import SchedulerUnreachable, UsageError
from serried.records.run_status import RunStatus
from serried.records.status import registered
from serried.schedulers.interface import Job, Scheduler
from serried.ui import console, run_rows
from serried.ui.text import local_time, printable

_SECONDS = 5.0
"""The head agents write their files as often."""
_SHORTEST_SECONDS = 1.0
_QUERY_SECONDS = 15.0
"""Between two queries of a scheduler; the files of runs are read each time."""
_HOME, _REST_OF_LINE, _REST_OF_SCREEN, _ALL = "\x1b[H", "\x1b[K", "\x1b[J", "\x1b[2J"


def interval_of(text: str, words: tuple[str, ...]) -> tuple[float, tuple[str, ...]]:
    """The interval that `--watch` names, and the words of the filter: in `--watch train` the word is one of those."""
    if not text:
        return _SECONDS, words
    try:
        seconds = float(text.removesuffix("s"))
    except ValueError:
        return _SECONDS, (text, *words)
    if not _SHORTEST_SECONDS <= seconds < float("inf"):
        raise UsageError(f"`--watch {text}` is not a number of seconds from 1", hint="for example --watch 10")
    return seconds, words


class _Seldom:
    """The registered schedulers, each queried at most every 15 seconds, or at once for other jobs."""

    def __init__(self) -> None:
        self._pollers: dict[str, _Poller] = {}

    def __call__(self, name: str) -> Scheduler:
        return cast("Scheduler", self._pollers.setdefault(name, _Poller(registered(name))))


class _Poller:
    """A scheduler that repeats its last answer for a while, or that it gave none."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.split = scheduler.split
        self._asked: frozenset[str] = frozenset()
        self._due = 0.0
        self._answer: Mapping[tuple[str, int | None], Job] | SchedulerUnreachable = {}

    def poll(self, ids: Sequence[str], since: float | None = None) -> Mapping[tuple[str, int | None], Job]:
        if not self._asked.issuperset(ids) or time.monotonic() >= self._due:
            try:
                self._answer = self._scheduler.poll(ids, since)
            except SchedulerUnreachable as error:
                self._answer = error
            self._asked, self._due = frozenset(ids), time.monotonic() + _QUERY_SECONDS
        if isinstance(self._answer, SchedulerUnreachable):
            raise self._answer
        return self._answer


def watch(listing: Listing, seconds: float) -> None:
    """Show the list until Ctrl-C."""
    is_screen = console.is_terminal() and os.environ.get("TERM") != "dumb"
    seldom, before = _Seldom(), dict[str, str]()
    if is_screen:
        sys.stdout.write(_ALL)
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            shown, known = listing.find(seldom)
            if is_screen:
                _redraw(shown, known, seconds)
            else:
                before = _print_changes(shown, before)
            console.await_more(seconds)
    if is_screen:
        console.out()


def _redraw(shown: Sequence[RunStatus], known: int, seconds: float) -> None:
    now = time.time()
    height = shutil.get_terminal_size((80, 24)).lines
    head = console.style(f"{local_time(now)}, every {seconds:g}s, Ctrl-C ends", "quiet")
    lines = ps.table(shown, now) if shown else ["no runs to show"]
    room = height - 3  # the head, an empty line, and the line of the cursor
    more = known - len(shown) + max(len(lines) - room, 0)
    lines = [*lines[: room - 1], f"{more + 1} more: serried ps --all"] if len(lines) > room else lines
    sys.stdout.write(_HOME + "".join(f"{line}{_REST_OF_LINE}\n" for line in [head, "", *lines]) + _REST_OF_SCREEN)
    sys.stdout.flush()


def _print_changes(shown: Sequence[RunStatus], before: Mapping[str, str]) -> dict[str, str]:
    """Print a line for each run whose state, attempt or reason differs from `before`. Steps are not changes."""
    after = {status.id: _state(status) for status in shown}
    for status in shown:
        if before.get(status.id) != after[status.id]:
            name = status.summary.name if status.summary else "?"
            console.out(f"{local_time(time.time())} {status.id} {printable(name)} {printable(after[status.id])}")
    sys.stdout.flush()
    return after


def _state(status: RunStatus) -> str:
    attempt = f"attempt {status.attempt}" if (status.attempt or 1) > 1 else ""
    is_stalled = status.progress is not None and status.progress.is_stalled
    tasks = run_rows.tasks_text(status) if status.tasks is not None else ""
    message = status.verdict.message or status.reason
    parts = (message, attempt, tasks, "no step for minutes" if is_stalled else "")
    details = ", ".join(filter(None, parts))
    return status.state + (f": {details}" if details else "")
