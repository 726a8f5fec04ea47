"""`serried logs`: print or follow the output of the ranks."""

from __future__ import annotations

import sys
import time

import click

from serried.base.errors import UsageError
from serried.cli import run_view
from serried.cli.log_view import LogChoice, Printer, attempts_of, heading, nothing_written, to_failed_rank
from serried.records.index import Selection
from serried.records.logs import RankLog, Tail
from serried.records.status import statuses_of
from serried.schema import names
from serried.views import console


@click.command(epilog=run_view.HELP)
@run_view.last_run
@click.option("-f", "--follow", is_flag=True, help="Follow until the run ends, through all attempts.")
@click.option("--rank", type=click.IntRange(0), metavar="R", help="Only rank R.")
@click.option("--node", type=click.IntRange(0), metavar="N", help="Only the ranks of node N.")
@click.option("--launcher", is_flag=True, help="Output of the launcher, such as torchrun, on each [node].")
@click.option("--beside", type=click.IntRange(0), metavar="I", help="Output of command I of `beside` on each [node].")
@click.option("--launch", metavar="ID", help="Ranks of launch ID of a job script: 1 is its first srun or torchrun.")
@click.option("--attempt", type=click.IntRange(1), metavar="K", help="Attempt K instead of the latest.")
@click.option("--all-attempts", is_flag=True, help="All attempts in their order, each below a heading.")
@click.option("-n", "--tail", type=click.IntRange(1), metavar="N", help="Only the last N lines of each rank.")
@click.option("--since", metavar="TIME", help="Only output since: 10m, 2h, 2026-11-20T08:00.")
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
    all_attempts: bool,
    tail: int | None,
    since: str | None,
) -> None:
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
    serried logs last --launch 2 --rank 3       of a job script's second srun
    """
    if all_attempts and attempt is not None:
        raise UsageError("`--attempt` and `--all-attempts` contradict each other", hint="leave one of them out")
    oldest = run_view.moment("--since", since, time.time()) if since else None
    selection = run_view.select(run)
    choice = LogChoice(rank, node, attempt, launcher, beside, launch, tail, all_attempts, oldest)
    if len(selection.tasks) == 1:
        selection = Selection(selection.record, selection.tasks[0])
    if selection.is_array:
        _show_array(selection, is_overview=not follow and choice == LogChoice(None, None, None))
    elif follow:
        from serried.cli import log_follow  # only for -f

        log_follow.follow(selection, choice)
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
