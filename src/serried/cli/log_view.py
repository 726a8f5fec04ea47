"""The logs that `serried logs` chooses, and how their lines are printed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from serried.base.errors import SerriedError, UsageError
from serried.base.text import duration, local_time
from serried.cli import run_view
from serried.records.evidence import attempt_numbers
from serried.records.index import Selection
from serried.records.logs import Lines, RankLog, Tail, decode, logs_of_launch, rank_logs, start_of_last_lines
from serried.records.record import read_exit
from serried.records.status import statuses_of
from serried.schema import names
from serried.schema.layout import AttemptDirectory
from serried.schema.plan import SideCommand
from serried.views import console
from serried.views.text import harmless, overwritten, printable, unfinished_lines


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

    @property
    def is_of_all_ranks(self) -> bool:
        chosen = (self.rank, self.node, self.attempt, self.beside, self.launch)
        return not self.launcher and all(it is None for it in chosen)

    def starts(self, attempt: AttemptDirectory) -> Callable[[RankLog], int]:
        """The first byte to print of each log. A note says once if `since` cannot be kept."""
        times, notes = None, ["no samples tell when all of these logs grew; such logs follow from their beginning"]
        if self.since is not None:
            from serried.records.log_times import LogTimes  # only for --since

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
            if _side_command(selection, self.beside).on == names.FIRST_NODE:
                nodes = (0,)
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


def _side_command(selection: Selection, index: int) -> SideCommand:
    """Command `index` of `beside`. Raises UsageError if the run has none."""
    commands = selection.record.plan.beside
    if index >= len(commands):
        hint = f"its commands are 0 to {len(commands) - 1}" if commands else "`beside` in an experiment adds commands"
        raise UsageError(f"run `{selection}` has no command {index} of `beside`", hint=hint)
    return commands[index]


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
    end = read_exit(attempt.exit)
    state, seconds = (end.get("state"), end.get("seconds")) if isinstance(end, dict) else (None, None)
    how = f": {state}" if isinstance(state, str) else ""
    took = f" after {duration(seconds)}" if how and isinstance(seconds, (int, float)) else ""
    return console.style(f"==> attempt {attempt.number}{printable(how)}{took} <==", "head")


def to_failed_rank(selection: Selection, choice: LogChoice) -> list[tuple[str, str]]:
    """Below the output of a job script, in which those of all ranks are mixed."""
    return run_view.logs_of_failed_rank(selection) if choice.is_of_all_ranks else []


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
        hint = (
            f"serried why {status.id} has the last lines of the rank that failed" if status.verdict.exit_code else None
        )
        raise SerriedError(f"the run directory and its logs do not exist any more: {record.where.path}", hint=hint)
    console.note("no output" if status.has_ended else "no output yet")
    run_view.say_how(status)
    printer = Printer([RankLog(0, 0, record.scheduler_log(selection.task))])
    if printer.pump():
        console.note("output of the job script (scheduler.log)")
    printer.finish()
    run_view.warn_if_stale([status])
