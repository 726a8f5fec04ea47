"""`serried logs`: the logs that a user chooses, printed, or followed until the run ends."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from serried.base.errors import SerriedError, UsageError
from serried.base.text import duration, local_time
from serried.cli import run_view
from serried.records.index import Selection
from serried.records.live import staging_progress
from serried.records.logs import Lines, RankLog, Tail, decode, logs_of_launch, rank_logs, start_of_last_lines
from serried.records.status import attempt_numbers, has_ended_by_file, is_over, statuses_of
from serried.schema import names
from serried.schema.endings import End
from serried.schema.layout import AttemptDirectory
from serried.views import console, run_lines
from serried.views.text import harmless, overwritten, unfinished_lines

_PAUSE_SECONDS = 0.5
_LOOKS_PER_SECOND = 500
"""The most logs that are opened in a second: a file server has others to serve."""
_QUERY_SECONDS, _LONGEST_QUERY_SECONDS = 5.0, 60.0


def _follow(selection: Selection, choice: LogChoice) -> None:
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
        is_first = self._shown is None
        if self._shown is None:
            attempts = attempts_of(self._selection, self._choice)
        else:  # the attempt that is shown and all later ones
            place, numbers = self._selection.place, [self._shown]
            if self._choice.attempt is None:
                numbers += [number for number in attempt_numbers(place) if number > self._shown]
            attempts = [place.attempt(number) for number in numbers]
        for attempt in attempts:
            start = self._choice.starts(attempt) if is_first else lambda _: 0
            if attempt.number != self._shown:
                self._begin(attempt)
                logs = [] if are_launched else self._choice.of(attempt, self._selection)
                self.printer = Printer(logs, start) if logs else None
            if are_launched:
                self._look_at_launches(attempt, start, over=over and attempt == attempts[-1])
        return attempt

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


class _Awaited:
    """The progress of the data that ranks wait for: a moving line on a terminal, else one note."""

    def __init__(self, selection: Selection) -> None:
        self._selection = selection
        self._line = console.MovingLine(sys.stdout)
        self._stages = selection.record.summary.stages
        self._is_noted = False

    def show(self, attempt: AttemptDirectory | None) -> None:
        text = staging_progress(attempt) if attempt and self._stages else ""
        if not text:
            self._line.clear()
            return
        self._line.update(f"{self._selection}: {text}")
        if not (self._is_noted or console.is_terminal()):
            self.note(f"{self._selection}: {text}; waiting for its output")

    def note(self, text: str) -> None:
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
        if has_ended_by_file(self._selection) or (only is not None and only.exit.exists()):
            return True
        if time.monotonic() < self._next:
            return False
        status = statuses_of([self._selection])[0]
        self._next = time.monotonic() + self._interval
        self._interval = min(self._interval * 1.5, _LONGEST_QUERY_SECONDS)
        if status.state in (names.PENDING, names.UNKNOWN) and status.state != self._printed_state:
            console.say(f"{run_lines.how(status)}; waiting for its {self._awaits}")
        self._printed_state = status.state
        return is_over(status)


@dataclass(frozen=True)
class LogChoice:
    """The ranks of an attempt to print, or the launchers that start them, and from where on."""

    rank: int | None
    node: int | None
    attempt: int | None
    launcher: bool = False
    beside: int | None = None
    """The index of a command of `beside`."""
    launch: str | None = None
    """The id of a launch of a job script."""
    tail: int | None = None
    """How many of the last lines of each rank."""
    all_attempts: bool = False
    since: float | None = None
    """Seconds since 1970."""

    def starts(self, attempt: AttemptDirectory) -> Callable[[RankLog], int]:
        """The first byte to print of each log. A note says once if `since` cannot be kept."""
        times, notes = None, ["no samples tell when all of these logs grew; such logs follow from their beginning"]
        if self.since is not None:
            from serried.records.logs import LogTimes  # only for --since

            times = LogTimes(attempt, self.since)

        def start(log: RankLog) -> int:
            since = times.start(log) if times else 0
            if since is None and notes:
                console.note(notes.pop())
            last = start_of_last_lines(log.path, self.tail) if self.tail else 0
            return max(since or 0, last)

        return start

    def is_of_launch(self, selection: Selection) -> bool:
        """Whether this chooses ranks that a job script launches. They may begin at any time."""
        is_of_rank = (self.rank, self.node, self.launch) != (None, None, None)
        return selection.record.summary.script and is_of_rank and not self.launcher and self.beside is None

    def of(self, attempt: AttemptDirectory, selection: Selection) -> list[RankLog]:
        nodes = range(selection.record.summary.nodes) if self.node is None else (self.node,)
        if self.launcher:
            return [RankLog(node, node, attempt.launcher_log(node)) for node in nodes]
        if self.beside is not None:
            commands = selection.record.plan.beside
            if self.beside >= len(commands):
                known = f"its commands are 0 to {len(commands) - 1}" if commands else ""
                hint = known or "`beside` in an experiment adds commands"
                raise UsageError(f"run `{selection}` has no command {self.beside} of `beside`", hint=hint)
            nodes = (0,) if commands[self.beside].on == names.FIRST_NODE else nodes
            return [RankLog(node, node, attempt.side_log(node, self.beside)) for node in nodes]
        if self.launch is not None and not selection.record.summary.script:
            message = f"run `{selection}` is not a job script, so it has no launches"
            raise UsageError(message, hint="`--rank R` prints one rank")
        if self.is_of_launch(selection):
            return logs_of_launch(attempt, str(selection), launch=self.launch, rank=self.rank, node=self.node)
        logs = rank_logs(attempt, selection.record.summary)
        last = logs[-1].rank + logs[-1].ranks - 1
        if self.rank is not None and self.rank > last:
            raise UsageError(f"run `{selection}` has no rank {self.rank}", hint=f"its ranks are 0 to {last}")
        if self.node is not None and self.node > logs[-1].node:
            raise UsageError(f"run `{selection}` has no node {self.node}", hint=f"its nodes are 0 to {logs[-1].node}")
        logs = [log for log in logs if log.is_of(self.rank) and self.node in (None, log.node)]
        if not logs:
            raise UsageError(f"rank {self.rank} does not run on node {self.node}")
        if self.rank is not None and logs[0].ranks > 1:
            console.note(f"ranks {logs[0].name} share this log")
        return logs


class Printer:
    """Prints the lines of ranks; with several ranks, each line behind its rank."""

    def __init__(self, logs: list[RankLog], start: Callable[[RankLog], int] = lambda _: 0) -> None:
        self._prefixes: dict[str, str] = {}
        self._tails: dict[Path, tuple[str, Tail, Lines]] = {}
        self._moving = console.MovingLine(sys.stdout)
        self.launch = logs[0].launch
        self.has_printed = False
        self.add(logs, start)

    @property
    def logs(self) -> int:
        return len(self._tails)

    def add(self, logs: list[RankLog], start: Callable[[RankLog], int] = lambda _: 0) -> None:
        """Print these logs too, each from byte `start`. Logs that are printed already may be among them."""
        for log in logs:
            if log.path not in self._tails:
                self._tails[log.path] = (log.name, Tail(log.path, start(log)), Lines())
        ranks = {rank for rank, _, _ in self._tails.values()}
        widest = max(map(len, ranks))
        self._prefixes = {rank: f"[{rank:>{widest}}] " if len(self._tails) > 1 else "" for rank in ranks}

    def pump(self) -> bool:
        """Print the output since the last call, also to a pipe; return whether there was any."""
        moved = False
        for rank, tail, lines in self._tails.values():
            while added := tail.read():
                moved = True
                for line in lines.feed(added):
                    self._line(rank, line)
        if moved:
            rests = ((self._prefixes[rank], decode(lines.rest)) for rank, _, lines in self._tails.values())
            self._moving.update(*unfinished_lines(rests))
            sys.stdout.flush()
        return moved

    def finish(self) -> None:
        self._moving.clear()
        for rank, _, lines in self._tails.values():
            for line in lines.finish():
                self._line(rank, line)

    def _line(self, rank: str, line: bytes) -> None:
        self._moving.clear()
        text = overwritten(decode(line))
        console.out(self._prefixes[rank] + (harmless(text) if console.is_terminal() else text))
        self.has_printed = True


def attempts_of(selection: Selection, choice: LogChoice) -> list[AttemptDirectory]:
    """The requested attempts, else the latest; none before the first attempt. Raises UsageError."""
    directory = selection.place
    numbers = attempt_numbers(directory)
    if choice.attempt is not None and choice.attempt not in numbers:
        known = ", ".join(map(str, numbers)) or "none yet"
        raise UsageError(f"run `{selection}` has no attempt {choice.attempt}", hint=f"its attempts are: {known}")
    if choice.attempt is not None:
        numbers = [choice.attempt]
    elif not choice.all_attempts and len(numbers) > 1:
        numbers = numbers[-1:]
        console.note(f"this is attempt {numbers[0]}, the latest; `--all-attempts` prints all of them")
    return [directory.attempt(number) for number in numbers]


def heading(attempt: AttemptDirectory) -> str:
    """The line above the output of one of several attempts, with how it ended if it has."""
    end = End.read_known(attempt.exit)
    how = f": {end.state}" if end and end.state else ""
    took = f" after {duration(end.seconds)}" if how and end and end.seconds is not None else ""
    return console.style(f"==> attempt {attempt.number}{how}{took} <==", "head")


def to_failed_rank(selection: Selection, choice: LogChoice) -> list[tuple[str, str]]:
    """Below the output of a job script, in which those of all ranks are mixed."""
    chosen = (choice.rank, choice.node, choice.attempt, choice.beside, choice.launch)
    is_of_all_ranks = not choice.launcher and all(number is None for number in chosen)
    return run_view.logs_of_failed_rank(selection) if is_of_all_ranks else []


def nothing_written(selection: Selection, choice: LogChoice) -> None:
    """Print why there is no output, and the output of the job script if there is any."""
    status = statuses_of([selection])[0]
    record = selection.record
    if choice.since is not None:
        console.note(f"no output since {local_time(choice.since)}")
        run_view.say_how(status)
        return
    if choice.launcher:
        if record.summary.script:
            console.note(f"the output of launchers in a job script is in that of the script: serried logs {selection}")
        else:
            console.note(f"no launcher output; `{record.plan.launch.kind}` started the ranks")
        return
    if choice.beside is not None:
        console.note(f"no output of command {choice.beside} of `beside`")
        return
    if status.has_ended and not record.where.path.is_dir():
        why = f"serried why {status.id} has the last lines of the rank that failed"
        message = f"the run directory and its logs do not exist any more: {record.where.path}"
        raise SerriedError(message, hint=why if status.verdict.exit_code else None)
    console.note("no output" if status.has_ended else "no output yet")
    run_view.say_how(status)
    printer = Printer([RankLog(0, 0, record.scheduler_log(selection.task))])
    if printer.pump():
        console.note("output of the job script (scheduler.log)")
    printer.finish()
    run_view.warn_if_stale([status])


@click.command(epilog=run_view.HELP)
@run_view.last_run
@click.option("-f", "--follow", is_flag=True, help="Follow until the run ends, through all attempts.")
@click.option("--rank", type=click.IntRange(0), metavar="R", help="Only rank R.")
@click.option("--node", type=click.IntRange(0), metavar="N", help="Only the ranks of node N.")
@click.option("--launcher", is_flag=True, help="Output of the launcher, such as torchrun, on each [node].")
@click.option("--beside", type=click.IntRange(0), metavar="I", help="Output of command I of `beside` on each [node].")
@click.option("--step", "launch", metavar="STEP", help="Ranks of this launch in a job script: 1 is its first srun.")
@click.option("--attempt", type=click.IntRange(1), metavar="K", help="Attempt K instead of the latest.")
@click.option("--all-attempts", is_flag=True, help="All attempts in their order, each below a heading.")
@click.option("--tail", type=click.IntRange(1), metavar="N", help="Only the last N lines of each rank.")
@click.option("--since", metavar="TIME", help="Only output since: 10m, 2h, 2026-11-20T08:00.")
def command(*, run: str, follow: bool, since: str | None, **chosen: Any) -> None:
    r"""Print or follow the output of the ranks, or of a job script.

    With several ranks each line starts with its `[rank]`. Without --attempt or --all-attempts, the latest
    attempt is printed, and a note names it. If the run has ended and no rank printed anything, the output
    of the job script is printed instead. For an array, the last lines of the first failures are printed.

    \b
    serried logs -f last
    serried logs last --tail 20
    serried logs -f last --since 10m
    serried logs k3f9q2 --rank 3
    serried logs lr-sweep/17 --attempt 1 > log.txt
    serried logs -f last --beside 0
    serried logs last --step 2 --rank 3       of a job script's second srun
    """
    choice = LogChoice(**chosen, since=run_view.moment("--since", since, time.time()) if since else None)
    if choice.all_attempts and choice.attempt is not None:
        raise UsageError("`--attempt` and `--all-attempts` contradict each other", hint="leave one of them out")
    selection = run_view.select(run, of_others=True)
    if len(selection.tasks) == 1:
        selection = Selection(selection.record, selection.tasks[0])
    if selection.is_array:
        _show_array(selection, is_overview=not follow and choice == LogChoice(None, None, None))
    elif follow:
        _follow(selection, choice)
    else:
        _print(selection, choice)


def _show_array(selection: Selection, *, is_overview: bool) -> None:
    """Print how the tasks stand, and the last lines of the first that failed.

    Raises UsageError without `is_overview`, because only the output of one task can be selected or followed.
    """
    from serried.records.why import failures_of

    status = statuses_of([selection])[0]
    indices = selection.record.plan.array.indices if selection.record.plan.array else (0,)
    running = next((index for index, it in (status.tasks or {}).items() if it.state == names.RUNNING), None)
    follow = "" if running is None else "-f "
    one = f"serried logs {follow}{selection}/{indices[0] if running is None else running}"
    if not is_overview:
        raise UsageError(f"run `{selection}` is an array of {len(indices):,} tasks", hint=f"name one: {one}")
    lines = [*run_lines.headline(status), "", *(f"  {line}" for line in run_lines.task_counts(status))]
    if failures := run_lines.failure_lines(status, failures_of(status), with_tail=True):
        lines += ["", console.style("first failures", "head"), *failures]
    console.out("\n".join(lines))
    console.say()
    console.next_steps([(one, "the output of a task")])
    run_view.warn_if_stale([status])
    run_view.insist([status])


def _print(selection: Selection, choice: LogChoice) -> None:
    has_printed = False
    for attempt in attempts_of(selection, choice):
        logs, start = choice.of(attempt, selection), choice.starts(attempt)
        if choice.all_attempts:
            console.out(heading(attempt))
        elif len(logs) == 1 and not console.is_terminal():
            has_printed = _copy(logs[0], start(logs[0]))
            continue
        printer = Printer(logs, start)
        printer.pump()
        printer.finish()
        has_printed |= printer.has_printed
    if not has_printed:
        nothing_written(selection, choice)
    elif steps := to_failed_rank(selection, choice):
        console.say()
        console.next_steps(steps)


def _copy(log: RankLog, start: int) -> bool:
    """Copy the log of one rank to a pipe or a file, byte for byte; return whether there was any output."""
    tail, copied = Tail(log.path, start), False
    sys.stdout.flush()
    while added := tail.read():
        sys.stdout.buffer.write(added)
        copied = True
    sys.stdout.buffer.flush()
    return copied
