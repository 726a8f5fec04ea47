"""`serried logs`: print or follow the output of the ranks."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path

import click

from serried.cli import run_view
from serried.errors import SerriedError, UsageError
from serried.plan import SideCommand
from serried.protocol import names
from serried.protocol.layout import AttemptDirectory
from serried.records.evidence import attempt_numbers
from serried.records.index import Selection
from serried.records.logs import Lines, RankLog, Tail, logs_of_launch, rank_logs
from serried.records.status import has_ended_by_file, is_over, statuses_of
from serried.records.timeline import staging_progress
from serried.ui import console
from serried.ui.text import harmless, overwritten

_PAUSE_SECONDS = 0.5
_QUERY_SECONDS, _LONGEST_QUERY_SECONDS = 5.0, 60.0


@dataclass(frozen=True)
class LogChoice:
    """The ranks of an attempt to print, or the launchers that start them."""

    rank: int | None
    node: int | None
    attempt: int | None
    launcher: bool = False
    beside: int | None = None
    """The index of a command of `beside`."""
    launch: str | None = None
    """The id of a launch of a job script."""

    def is_of_launch(self, selection: Selection) -> bool:
        """Whether this chooses ranks that a job script launches. They may begin at any time."""
        is_of_rank = (self.rank, self.node, self.launch) != (None, None, None)
        return selection.record.summary.script and is_of_rank and not self.launcher and self.beside is None

    def of(self, attempt: AttemptDirectory, selection: Selection) -> list[RankLog]:
        nodes = range(selection.record.summary.nodes) if self.node is None else (self.node,)
        if self.launcher:
            return [RankLog(node, node, attempt.launcher_log(node)) for node in nodes]
        if self.beside is not None:
            if _side_command(selection, self.beside).on == names.FIRST_NODE:
                nodes = (0,)
            return [RankLog(node, node, attempt.side_log(node, self.beside)) for node in nodes]
        if self.launch is not None and not selection.record.summary.script:
            message = f"run `{selection}` is not a job script, so it has no launches"
            raise UsageError(message, hint="`--rank R` prints one rank")
        if self.is_of_launch(selection):
            return logs_of_launch(attempt, str(selection), launch=self.launch, rank=self.rank, node=self.node)
        logs = rank_logs(attempt, selection.record.summary)
        if self.rank is not None and self.rank >= len(logs):
            raise UsageError(f"run `{selection}` has no rank {self.rank}", hint=f"its ranks are 0 to {len(logs) - 1}")
        if self.node is not None and self.node > logs[-1].node:
            raise UsageError(f"run `{selection}` has no node {self.node}", hint=f"its nodes are 0 to {logs[-1].node}")
        logs = [log for log in logs if self.rank in (None, log.rank) and self.node in (None, log.node)]
        if not logs:
            raise UsageError(f"rank {self.rank} does not run on node {self.node}")
        return logs


@click.command()
@run_view.last_run
@click.option("-f", "--follow", is_flag=True, help="Follow until the run ends, through all attempts.")
@click.option("--rank", type=click.IntRange(0), metavar="R", help="Only rank R.")
@click.option("--node", type=click.IntRange(0), metavar="N", help="Only the ranks of node N.")
@click.option("--launcher", is_flag=True, help="Output of the launcher, such as torchrun, on each [node].")
@click.option("--beside", type=click.IntRange(0), metavar="I", help="Output of command I of `beside` on each [node].")
@click.option("--launch", metavar="ID", help="Ranks of launch ID of a job script: 1 is its first srun or torchrun.")
@click.option("--attempt", type=click.IntRange(1), metavar="K", help="Attempt K instead of the latest.")
def command(
    *,
    run: str,
    follow: bool,
    rank: int | None,
    node: int | None,
    launcher: bool,
    beside: int | None,
    launch: str | None,
    attempt: int | None,
) -> None:
    r"""Print or follow the output of the ranks, or of a job script.

    With several ranks each line starts with its `[rank]`. If the run has ended and no rank printed
    anything, the output of the job script is printed instead. For an array, the last lines of the first
    failures are printed.

    \b
    serried logs -f last
    serried logs k3f9q2 --rank 3
    serried logs lr-sweep/17 --attempt 1 > log.txt
    serried logs -f last --beside 0
    serried logs last --launch 2 --rank 3       of a job script's second srun
    """
    selection = run_view.select(run)
    choice = LogChoice(rank, node, attempt, launcher, beside, launch)
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
    from serried.cli import array_view  # only for arrays
    from serried.records.explain import failures_of

    status = statuses_of([selection])[0]
    indices = selection.record.plan.array.indices if selection.record.plan.array else (0,)
    running = next((index for index, it in (status.tasks or {}).items() if it.state == names.RUNNING), None)
    follow = "" if running is None else "-f "
    one = f"serried logs {follow}{selection}/{indices[0] if running is None else running}"
    if not is_overview:
        raise UsageError(f"run `{selection}` is an array of {len(indices):,} tasks", hint=f"name one: {one}")
    for line in (*run_view.headline(status), "", *(f"  {line}" for line in array_view.counts(status))):
        console.out(line)
    failures = array_view.failure_lines(status, failures_of(status), with_tail=True)
    for line in ("", console.style("first failures", "head"), *failures) if failures else ():
        console.out(line)
    console.say()
    console.next_steps([(one, "the output of a task")])
    run_view.warn_if_stale([status])
    run_view.insist([status])


def _side_command(selection: Selection, index: int) -> SideCommand:
    """Command `index` of `beside`. Raises UsageError if the run has none."""
    commands = selection.record.plan.beside
    if index >= len(commands):
        hint = f"its commands are 0 to {len(commands) - 1}" if commands else "`beside` in an experiment adds commands"
        raise UsageError(f"run `{selection}` has no command {index} of `beside`", hint=hint)
    return commands[index]


class Printer:
    """Prints the lines of ranks; with several ranks, each line behind its rank."""

    def __init__(self, logs: list[RankLog]) -> None:
        self._prefixes: dict[int, str] = {}
        self._tails: dict[Path, tuple[int, Tail, Lines]] = {}
        self._moving = console.MovingLine(sys.stdout)
        self.launch = logs[0].launch
        self.has_printed = False
        self.add(logs)

    def add(self, logs: list[RankLog]) -> None:
        """Print these logs too. Logs that are printed already may be among them."""
        for log in logs:
            self._tails.setdefault(log.path, (log.rank, Tail(log.path), Lines()))
        ranks = sorted({rank for rank, _, _ in self._tails.values()})
        widest = len(str(ranks[-1]))
        self._prefixes = {rank: f"[{rank:>{widest}}] " if len(self._tails) > 1 else "" for rank in ranks}

    def pump(self) -> bool:
        """Print the output since the last call, also to a pipe; return whether there was any."""
        moved = False
        unfinished = ""
        for rank, tail, lines in self._tails.values():
            while added := tail.read():
                moved = True
                for line in lines.feed(added):
                    self._line(rank, line)
            if lines.rest:
                unfinished = self._prefixes[rank] + harmless(overwritten(lines.rest))
        if unfinished and moved:
            self._moving.update(unfinished)
        if moved:
            sys.stdout.flush()
        return moved

    def finish(self) -> None:
        for rank, _, lines in self._tails.values():
            for line in lines.finish():
                self._line(rank, line)
        self._moving.clear()

    def _line(self, rank: int, line: str) -> None:
        self._moving.clear()
        text = overwritten(line)
        console.out(self._prefixes[rank] + (harmless(text) if console.is_terminal() else text))
        self.has_printed = True


def _attempt(selection: Selection, choice: LogChoice) -> AttemptDirectory | None:
    """The requested attempt, else the latest; None before the first attempt."""
    directory = selection.place
    numbers = attempt_numbers(directory)
    if choice.attempt is None:
        return directory.attempt(numbers[-1]) if numbers else None
    if choice.attempt not in numbers:
        known = ", ".join(map(str, numbers)) or "none yet"
        raise UsageError(f"run `{selection}` has no attempt {choice.attempt}", hint=f"its attempts are: {known}")
    return directory.attempt(choice.attempt)


def _since(shown: int | None, selection: Selection, choice: LogChoice) -> list[AttemptDirectory]:
    """The attempt that is shown and all later ones; at first the requested attempt, or the latest."""
    if shown is None or choice.attempt is not None:
        attempt = _attempt(selection, choice)
        return [attempt] if attempt is not None else []
    return [selection.place.attempt(number) for number in attempt_numbers(selection.place) if number >= shown]


def _print(selection: Selection, choice: LogChoice) -> None:
    attempt = _attempt(selection, choice)
    if attempt is None:
        has_printed = False
    elif len(logs := choice.of(attempt, selection)) == 1 and not console.is_terminal():
        has_printed = _copy(logs[0])
    else:
        printer = Printer(logs)
        printer.pump()
        printer.finish()
        has_printed = printer.has_printed
    if not has_printed:
        _nothing_written(selection, choice)
    elif steps := _to_failed_rank(selection, choice):
        console.say()
        console.next_steps(steps)


def _to_failed_rank(selection: Selection, choice: LogChoice) -> list[tuple[str, str]]:
    """Below the output of a job script, in which those of all ranks are mixed."""
    return run_view.logs_of_failed_rank(selection) if choice == LogChoice(None, None, None) else []


def _copy(log: RankLog) -> bool:
    """Copy the log of one rank to a pipe or a file, byte for byte; return whether there was any output."""
    tail, copied = Tail(log.path), False
    sys.stdout.flush()
    while added := tail.read():
        sys.stdout.buffer.write(added)
        copied = True
    sys.stdout.buffer.flush()
    return copied


def _nothing_written(selection: Selection, choice: LogChoice) -> None:
    """Print why there is no output, and the output of the job script if there is any."""
    status = statuses_of([selection])[0]
    record = selection.record
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
        hint = (
            f"serried why {status.id} has the last lines of the rank that failed" if status.verdict.exit_code else None
        )
        raise SerriedError(f"the run directory and its logs do not exist any more: {record.where.path}", hint=hint)
    console.note("no output yet")
    run_view.say_how(status)
    printer = Printer([RankLog(0, 0, record.scheduler_log(selection.task))])
    if printer.pump():
        console.note("output of the job script (scheduler.log)")
    printer.finish()
    run_view.warn_if_stale([status])


def _follow(selection: Selection, choice: LogChoice) -> None:
    clock, awaited = _Clock(selection), _Awaited(selection)
    followed = _Followed(selection, choice, awaited)
    while True:
        # The state before the files: an attempt may begin and end between two looks.
        over = clock.is_run_over(_attempt(selection, choice) if choice.attempt is not None else None)
        attempt = followed.look(over=over)
        printer = followed.printer
        awaited.show(None if over or printer is None or printer.has_printed else attempt)
        moved = printer.pump() if printer else False
        if over and not moved:
            break
        if not moved:
            time.sleep(_PAUSE_SECONDS)
    if printer is not None:
        printer.finish()
    if printer is None or not printer.has_printed:
        _nothing_written(selection, choice)
        return
    status = statuses_of([selection])[0]
    run_view.say_how(status)
    if status.has_ended and status.state != names.COMPLETED:
        steps = [(f"serried why {status.id}", "what happened, and what to do")]
        console.next_steps([*_to_failed_rank(selection, choice), *steps])


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
        for attempt in _since(self._shown, self._selection, self._choice):
            if attempt.number == self._shown:
                continue
            if self.printer is not None:
                self._finish()
                console.note(f"attempt {attempt.number} begins")
            self._shown = attempt.number
            self.printer = None if are_launched else Printer(self._choice.of(attempt, self._selection))
        if attempt is not None and are_launched:
            self._look_at_launches(attempt, over=over)
        return attempt

    def _look_at_launches(self, attempt: AttemptDirectory, *, over: bool) -> None:
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
        self.printer = Printer(logs)

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


class _Clock:
    """Decides whether a run is over: by its file each time, by all evidence less and less often."""

    def __init__(self, selection: Selection) -> None:
        self._selection = selection
        self._interval = _QUERY_SECONDS
        self._next = time.monotonic()
        self._printed_state = ""

    def is_run_over(self, only: AttemptDirectory | None) -> bool:
        """Whether the run is over, or the one attempt that was requested."""
        if has_ended_by_file(self._selection) or (only is not None and only.exit.exists()):
            return True
        if time.monotonic() < self._next:
            return False
        status = statuses_of([self._selection])[0]
        self._next = time.monotonic() + self._interval
        self._interval = min(self._interval * 1.5, _LONGEST_QUERY_SECONDS)
        if status.state in (names.PENDING, names.UNKNOWN) and status.state != self._printed_state:
            console.say(f"{run_view.how(status)}; waiting for its output")
        self._printed_state = status.state
        return is_over(status)
