"""`serried bench continue`, and how all benches are shown, submitted and waited for."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click

from serried.bench import reading, store, submitting
from serried.bench.results import figure
from serried.bench.store import Bench, PointRun
from serried.cli import bench_show, options
from serried.errors import UsageError
from serried.protocol.sizes import counted
from serried.records import status
from serried.submission.prepare import prepare
from serried.submission.request import Decided
from serried.ui import console
from serried.ui.text import duration, printable, wrapped

_COLUMNS = 78

send_options = options.together(
    click.option("--wait", is_flag=True, help="Wait for all runs, and show the bench."),
    click.option("-y", "--yes", is_flag=True, help="Submit without confirmation, also after warnings."),
    click.option("--dry-run", is_flag=True, help="Print the points, their sizes and the cost; submit nothing."),
    click.option("--json", "as_json", is_flag=True, help="Print JSON."),
)


def how(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of `send_options`."""
    return {name: values[name] for name in ("wait", "yes", "dry_run", "as_json")}


def send(bench: Bench, *, dry_run: bool, as_json: bool, yes: bool, wait: bool, failed: Sequence[str] = ()) -> None:
    """Print the points, and submit those that have no run; `failed` are runs that are replaced."""
    left = [at for at, entry in enumerate(bench.entries) if not entry.is_submitted or entry.run in failed]
    decided = _decide(bench, left)
    if dry_run and as_json:
        console.out_json(**bench.to_json(), hours=_cost(decided.values()))
        return
    _show_points(bench, left, decided)
    first = next(one for one in decided.values() if isinstance(one, Decided))
    with options.progress(dry_run=dry_run) as observe:
        prepared = prepare(first.plan, first.resolved, os.environ, jobs=first.jobs, observe=observe)
    plans = [one for one in decided.values() if isinstance(one, Decided)]
    warnings = dict.fromkeys([*prepared.warnings, *(text for one in plans for text in one.resolved.warnings)])
    options.say_about(prepared.notes, warnings)
    if dry_run:
        return
    if warnings and not yes and console.can_ask() and not console.confirm("submit anyway?"):
        raise click.Abort
    bench = _submit(bench, failed, len(left))
    _say_submitted(bench)
    finish(bench, as_json=as_json, wait=wait)


def finish(bench: Bench, *, as_json: bool, wait: bool) -> None:
    """Print the bench; with `wait`, once all of its runs have ended."""
    if not wait and as_json:
        console.out_json(**bench.to_json())
    elif not wait:
        console.out(bench.id)
    if wait:
        wait_for(bench)
        bench_show.print_results(bench, *reading.read(bench), as_json=as_json)


def _decide(bench: Bench, left: Iterable[int]) -> dict[int, Decided | UsageError]:
    """The plan of each point that is left, or why it has none. Raises the first reason if no point has one."""
    request = submitting.request_of(bench)
    found: dict[int, Decided | UsageError] = {}
    for at in left:
        try:
            found[at] = request.decide(bench.entries[at].point, os.environ)
        except UsageError as error:
            found[at] = error
    first = next(iter(found.values()), None)
    if isinstance(first, UsageError) and all(isinstance(one, UsageError) for one in found.values()):
        raise first
    return found


def _submit(bench: Bench, failed: Sequence[str], count: int) -> Bench:
    bench = bench if bench.path.exists() else bench.write()
    with options.progress() as observe, console.status_line("submitting") as line:
        done = itertools.count(1)

        def submitted(entry: PointRun) -> None:
            line.update(f"submitted {next(done)} of {count}: {entry.point}")

        try:
            return submitting.submit_missing(bench, os.environ, failed=failed, observe=observe, submitted=submitted)
        except BaseException:
            console.note(f"`serried bench continue {bench.id}` submits the points that are left")
            raise


def wait_for(bench: Bench) -> None:
    """Wait until no run of the bench waits or runs."""
    chosen = reading.selections(bench)
    with console.status_line("waiting for the runs") as line:

        def observe(found: Any) -> None:
            line.update(f"{sum(one.has_ended for one in found)} of {len(found)} runs have ended")

        if chosen:
            status.wait(chosen, observe=observe)


def _say_submitted(bench: Bench) -> None:
    for entry in bench.entries:
        if entry.refusal:
            console.warning(f"{entry.point} is refused: {entry.refusal}")
    runs = sum(entry.is_submitted for entry in bench.entries)
    console.say(f"submitted {bench.id} as {counted(runs, 'run')}")
    console.next_steps(
        [(f"serried bench show {bench.id}", "the results so far"), ("serried ps", "the states of the runs")]
    )


def _show_points(bench: Bench, left: Iterable[int], decided: Mapping[int, Decided | UsageError]) -> None:
    """A line for each point with its repeats, and the cost of all."""
    rows: dict[tuple[str, ...], int] = {}
    for at in left:
        point, one = bench.entries[at].point, decided[at]
        how = " ".join([*point.labels, *([submitting.NO_SYNC] if point.without_sync else [])])
        size = ("-", "refused") if isinstance(one, UsageError) else _size(one)
        row = (point.shape, how, "-" if point.batch is None else str(point.batch), *size)
        rows[row] = rows.get(row, 0) + 1
    shown = [(*row, str(count)) for row, count in rows.items()]
    for line in console.table(("SIZE", "HOW", "BATCH", "EACH NODE", "LIMIT", "RUNS"), shown):
        console.say(line)
    refused = {
        f"{bench.entries[at].point}: {one.message}" for at, one in decided.items() if isinstance(one, UsageError)
    }
    for text in sorted(refused):
        console.say("\n  ".join(wrapped(f"- {printable(text)}", _COLUMNS)))
    cost = _cost(decided.values())
    total = " and ".join(f"{figure(hours)} {unit}-hours" for unit, hours in cost.items())
    runs = sum(isinstance(one, Decided) for one in decided.values())
    console.say(f"\n{counted(runs, 'run')}, {f'at most {total}' if total else 'without a time limit'}")


def _size(decided: Decided) -> tuple[str, str]:
    each, unit = submitting.devices(decided.plan)
    return counted(each, unit), duration(decided.plan.allocation.time_seconds)


def _cost(decided: Iterable[Decided | UsageError]) -> dict[str, float]:
    """Hours of GPUs and of CPUs if every run reaches its limit."""
    found: dict[str, float] = {}
    for one in decided:
        hours, unit = submitting.hours_at_most(one.plan) if isinstance(one, Decided) else (None, "")
        if hours is not None:
            found[unit] = found.get(unit, 0.0) + hours
    return found


@click.command()
@click.argument("bench", metavar="[BENCH]", default=store.LAST)
@click.option("--failed", is_flag=True, help="Also repeat points whose run failed.")
@send_options
def command(*, bench: str, failed: bool, **values: bool) -> None:
    r"""Submit the points of BENCH that have no run, refused ones too. No point is submitted twice.

    \b
    serried bench continue
    serried bench continue b-k3f9 --failed
    """
    found = store.find(bench)
    again = reading.failed(found) if failed else []
    if not again and all(entry.is_submitted for entry in found.entries):
        console.note(
            f"all points of `{found.id}` are submitted" + ("" if failed else "; `--failed` repeats failed ones")
        )
        finish(found, as_json=values["as_json"], wait=values["wait"])
        return
    send(found, **how(values), failed=again)
