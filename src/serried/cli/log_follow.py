"""`serried logs -f`: follow the output of the ranks until the run ends."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from serried.base.errors import UsageError
from serried.cli import run_view
from serried.cli.log_view import LogChoice, Printer, attempts_of, heading, nothing_written, to_failed_rank
from serried.records.evidence import attempt_numbers
from serried.records.index import Selection
from serried.records.logs import RankLog
from serried.records.status import has_ended_by_file, is_over, statuses_of
from serried.records.timeline import staging_progress
from serried.schema import names
from serried.schema.layout import AttemptDirectory
from serried.views import console

_PAUSE_SECONDS = 0.5
_LOOKS_PER_SECOND = 500
"""The most logs that are opened in a second: a file server has others to serve."""
_QUERY_SECONDS, _LONGEST_QUERY_SECONDS = 5.0, 60.0


def follow(selection: Selection, choice: LogChoice) -> None:
    """Print output until the run ends, or the requested attempt."""
    clock, awaited = RunClock(selection), _Awaited(selection)
    followed = _Followed(selection, choice, awaited)
    only = attempts_of(selection, choice)[0] if choice.attempt is not None else None
    while True:
        # The state before the files: an attempt may begin and end between two looks.
        over = clock.is_run_over(only)
        attempt = followed.look(over=over)
        printer = followed.printer
        awaited.show(None if over or printer is None or printer.has_printed else attempt)
        moved = printer.pump() if printer else False
        if over and not moved:
            break
        look_seconds = (printer.logs if printer else 0) / _LOOKS_PER_SECOND
        if not moved or look_seconds > _PAUSE_SECONDS:
            console.await_more(max(_PAUSE_SECONDS, look_seconds))
    if printer is not None:
        printer.finish()
    if printer is None or not printer.has_printed:
        nothing_written(selection, choice)
        return
    status = statuses_of([selection])[0]
    run_view.say_how(status)
    if status.has_ended and status.state != names.COMPLETED:
        steps = [(f"serried why {status.id}", "what happened, and what to do")]
        console.next_steps([*to_failed_rank(selection, choice), *steps])


class _Followed:
    """The newest attempt of a run, and in a job script the newest launch with the chosen ranks."""

    def __init__(self, selection: Selection, choice: LogChoice, awaited: _Awaited) -> None:
        self.printer: Printer | None = None
        """None before the first output can come."""
        self._selection, self._choice, self._awaited = selection, choice, awaited
        self._shown: int | None = None

    def look(self, *, over: bool) -> AttemptDirectory | None:
        """Switch to the newest attempt and launch, and return the attempt.

        Raises UsageError if the run is over and its script has not started the chosen ranks.
        """
        attempt: AttemptDirectory | None = None
        are_launched = self._choice.is_of_launch(self._selection)
        attempts = self._attempts()
        is_first = self._shown is None
        for attempt in attempts:
            start = self._choice.starts(attempt) if is_first else _from_its_beginning
            if attempt.number != self._shown:
                self._begin(attempt)
                logs = [] if are_launched else self._choice.of(attempt, self._selection)
                self.printer = Printer(logs, start) if logs else None
            if are_launched:
                self._look_at_launches(attempt, start, over=over and attempt == attempts[-1])
        return attempt

    def _attempts(self) -> list[AttemptDirectory]:
        """The attempt that is shown and all later ones; at first those requested."""
        if self._shown is None:
            return attempts_of(self._selection, self._choice)
        place = self._selection.place
        later = [number for number in attempt_numbers(place) if number > self._shown and self._choice.attempt is None]
        return [place.attempt(number) for number in (self._shown, *later)]

    def _begin(self, attempt: AttemptDirectory) -> None:
        if self._choice.all_attempts:
            self._finish()
            console.out(heading(attempt))
        elif self.printer is not None:
            self._finish()
            console.note(f"attempt {attempt.number} begins")
        self._shown = attempt.number

    def _look_at_launches(self, attempt: AttemptDirectory, start: Callable[[RankLog], int], *, over: bool) -> None:
        try:
            logs = self._choice.of(attempt, self._selection)
        except UsageError:
            if self.printer is None and over:
                raise
            if self.printer is None:
                self._awaited.note("the script has not started these ranks yet; waiting for them")
            return
        if self.printer is not None and self.printer.launch == logs[0].launch:
            self.printer.add(logs)
            return
        self._finish()
        if self._choice.launch is None:
            console.note(f"launch {logs[0].launch}")
        self.printer = Printer(logs, start)

    def _finish(self) -> None:
        if self.printer is not None:
            self.printer.pump()
            self.printer.finish()


def _from_its_beginning(_log: RankLog) -> int:
    return 0


class _Awaited:
    """The progress of the data that ranks wait for: a moving line on a terminal, else one note."""

    def __init__(self, selection: Selection) -> None:
        self._selection = selection
        self._line = console.MovingLine(sys.stdout)
        self._stages = selection.record.summary.stages
        self._is_noted = False

    def show(self, attempt: AttemptDirectory | None) -> None:
        """None clears the line."""
        text = staging_progress(attempt) if attempt and self._stages else ""
        if not text:
            self._line.clear()
            return
        self._line.update(f"{self._selection}: {text}")
        if not (self._is_noted or console.is_terminal()):
            self.note(f"{self._selection}: {text}; waiting for its output")

    def note(self, text: str) -> None:
        """Print one such note."""
        if not self._is_noted:
            self._is_noted = True
            console.note(text)


class RunClock:
    """Decides whether a run is over: by its file each time, by all evidence less and less often."""

    def __init__(self, selection: Selection, awaits: str = "output") -> None:
        """`awaits`: what the reader of a run that waits is told to wait for."""
        self._selection = selection
        self._awaits = awaits
        self._interval = _QUERY_SECONDS
        self._next = time.monotonic()
        self._printed_state = ""

    def is_run_over(self, only: AttemptDirectory | None = None) -> bool:
        """Whether the run is over, or the one attempt that was requested."""
        if has_ended_by_file(self._selection) or (only is not None and only.exit.exists()):
            return True
        if time.monotonic() < self._next:
            return False
        status = statuses_of([self._selection])[0]
        self._next = time.monotonic() + self._interval
        self._interval = min(self._interval * 1.5, _LONGEST_QUERY_SECONDS)
        if status.state in (names.PENDING, names.UNKNOWN) and status.state != self._printed_state:
            console.say(f"{run_view.how(status)}; waiting for its {self._awaits}")
        self._printed_state = status.state
        return is_over(status)
