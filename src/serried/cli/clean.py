"""`serried clean`: measure what runs have on disks, and delete what no run needs, after showing it."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import click

from serried.base.errors import SerriedError, UsageError
from serried.base.text import ago, counted, spell
from serried.cleanup import disk_items, removal
from serried.cleanup.disk_items import KnownRuns, Size, Thing
from serried.cleanup.removal import Left, RemovalChoice
from serried.cli import run_view
from serried.schema.layout import RunDirectory, TaskDirectory
from serried.views import console
from serried.views.text import printable

_SHOWN = 20
_USAGE_HEADS = ("WHAT", "NAME", "SIZE", "FILES", "CHECKPOINTS", "RESULTS", "OUTPUTS", "CHANGED")
_OF_ONE = ("RUN", "PART", "SIZE", "FILES", "NEWEST", "OLDEST")
_PARTS_AT = 4, 7
_PARTS = ("checkpoints", "results", "outputs")
_REST = "rest"


@dataclass(frozen=True)
class UsageRow:
    thing: Thing
    size: Size
    parts: dict[str, Size] = field(default_factory=dict)


def _list(runs: Sequence[str], *, everything: bool, as_json: bool) -> None:
    """Print how much disk space is used, the largest first; for named runs the parts of each."""
    now = time.time()
    found = _measure_all(runs)
    if as_json:
        things = [
            {
                **row.thing.to_json(),
                **row.size.to_json(),
                "parts": {part: size.to_json() for part, size in row.parts.items()},
            }
            for row in found
        ]
        console.out_json(things=things, **_sum(found).to_json())
    elif runs:
        lines = [
            [row.thing.run, part, *_amount(size), _ago(now, size.newest), _ago(now, size.oldest)]
            for row in found
            for part, size in [*row.parts.items(), ("all", row.size)]
            if size.files or part == "all"
        ]
        console.out_table(_OF_ONE, lines)
    else:
        _out_usage(found, now, None if everything else _SHOWN)


def _measure_all(runs: Sequence[str]) -> list[UsageRow]:
    with console.status_line("measuring") as line:
        known = KnownRuns.load()
        things = _named(known, runs) if runs else disk_items.everything(known)
        rows = [_measure_row(thing, known, _teller(line, thing)) for thing in things]
    if runs:
        return rows
    used = [row for row in rows if row.size.files]
    return sorted(used, key=lambda row: (-row.size.bytes, -row.size.files, row.thing.name))


def _teller(line: console.MovingLine, thing: Thing) -> Callable[[int], None]:
    return lambda files: line.update(f"measuring {thing.name}: {files:,} files")


def _named(known: KnownRuns, runs: Sequence[str]) -> Iterator[Thing]:
    there = {thing.run: thing for thing in disk_items.runs(known) if thing.has_record}
    for selection in run_view.select_all(runs):
        record = selection.record
        if record.id not in there:
            message = f"the run directory of `{record.id}` does not exist any more"
            raise UsageError(message, hint=f"it was {record.where.path}")
        yield there[record.id]


def _measure_row(thing: Thing, known: KnownRuns, tell: Callable[[int], None]) -> UsageRow:
    if thing.kind != disk_items.RUN:
        return UsageRow(thing, disk_items.measure(thing.path, tell))
    where = RunDirectory(thing.path)
    tasks: list[TaskDirectory] = [where]
    with contextlib.suppress(OSError):
        tasks += [where.task(int(name)) for name in os.listdir(where.tasks) if name.isdecimal()]  # noqa: PTH208 - a thousand, perhaps
    folders = {"checkpoints": [one.checkpoints for one in tasks], "results": [one.results for one in tasks]}
    parts = {part: sum((disk_items.measure(path, tell) for path in paths), Size()) for part, paths in folders.items()}
    trees = disk_items.trees(known, thing) or []
    apart = [*(path for paths in folders.values() for path in paths), *(tree.path for tree in trees)]
    parts["outputs"], source = disk_items.measure_trees(trees, tell)
    parts[_REST] = disk_items.measure(thing.path, tell, apart) + source
    return UsageRow(thing, sum(parts.values(), Size()), parts)


def _sum(rows: Sequence[UsageRow]) -> Size:
    return sum((row.size for row in rows), Size())


def _amount(size: Size) -> list[str]:
    return [spell(size.bytes), f"{size.files:,}"]


def _ago(now: float, moment: float | None) -> str:
    return "" if moment is None else ago(now - moment)


def _out_usage(rows: Sequence[UsageRow], now: float, shown: int | None) -> None:
    if not rows:
        console.say("no disk space is used yet")
        return
    lines = []
    for row in rows[:shown]:
        parts = [row.parts.get(part, Size()) for part in _PARTS]
        of_parts = [spell(part.bytes) if part.files else "" for part in parts]
        name, changed = printable(row.thing.name), _ago(now, row.size.newest)
        lines.append([row.thing.kind, name, *_amount(row.size), *of_parts, changed])
    if rest := rows[len(lines) :]:
        lines.append(["", f"{len(rest)} more: serried clean --list --all", *_amount(_sum(rest)), "", "", "", ""])
    total = _sum(rows)
    lines.append(["all", "", *_amount(total), "", "", "", ""])
    heads: Sequence[str] = _USAGE_HEADS
    widths = [max(map(len, column)) for column in zip(heads, *lines)]
    if console.is_terminal() and sum(widths) + 2 * (len(widths) - 1) > console.columns():
        # Names matter more than the parts, which `serried clean --list RUN` lists.
        heads, *lines = ([*line[: _PARTS_AT[0]], *line[_PARTS_AT[1] :]] for line in (heads, *lines))
    console.out_table(heads, lines, shrink=1)
    if total.unread:
        console.warning(f"{total.unread} folders could not be read")


Measured = list[tuple[Thing, Size]]


@click.command()
@click.argument("runs", metavar="[RUN...]", nargs=-1, shell_complete=run_view.complete_runs)
@click.option("--list", "lists", is_flag=True, help="Show disk usage, the largest first, and delete nothing.")
@click.option("--all", "everything", is_flag=True, help=f"With --list: all, not only the {_SHOWN} largest.")
@click.option("--older-than", "age", metavar="TIME", help="Also runs that ended before: 30d, 2026-09-01.")
@click.option(
    "--host",
    "hosts",
    metavar="NAME",
    multiple=True,
    help="Delete files of dead jobs on a node's disk, with a job there.",
)
@click.option("--outputs", is_flag=True, help="Also runs with outputs that were not fetched.")
@click.option("--records", is_flag=True, help="Delete records too: `ps --all` no longer lists these runs.")
@click.option("--dry-run", is_flag=True, help="Print the files to delete and delete nothing.")
@run_view.without_asking
@click.option("--json", "as_json", is_flag=True, help="Print JSON; with --dry-run or --yes.")
def command(
    *,
    runs: tuple[str, ...],
    lists: bool,
    everything: bool,
    age: str | None,
    hosts: tuple[str, ...],
    outputs: bool,
    records: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    r"""Delete files that no run needs, after showing their sizes and asking for confirmation.

    \b
    serried clean --list               what takes disk space
    serried clean --list last          one run: checkpoints, results, outputs …
    serried clean                      files that no run needs
    serried clean --older-than 30d     also runs, environments and images so old
    serried clean k3f9q2 lr-sweep      these runs, with their checkpoints
    serried clean --host n017          what dead jobs have left on that node

    Without RUN or --older-than, no run is deleted: only the remains of interrupted deletions and builds,
    and archives of code that no run has. A run that may still run, or that another run needs, always
    stays. The record of a run stays for `ps --all` and `show`. Jobs delete their own files on the disks of
    compute nodes, or your next job there does.
    A run with outputs (files that it wrote by relative paths) that were not fetched stays without --outputs.
    In a list, FILES includes folders and links, as an inode quota does. SIZE is the size of the files' content.
    """
    kinds = {"older_than": age, "outputs": outputs, "records": records}
    if lists:
        hint = "`--list` deletes nothing: serried clean --list [RUN]..."
        run_view.exclude("--list", hint, host=hosts, **kinds, dry_run=dry_run, yes=yes)
        _list(runs, everything=everything, as_json=as_json)
        return
    run_view.need("--list", "serried clean --list --all", all=everything)
    if hosts:
        run_view.exclude("--host", "serried clean --host NAME [--host NAME]", RUN=runs, **kinds)
        _sweep(hosts, dry_run=dry_run, as_json=as_json)
        return
    now = time.time()
    older = run_view.moment("--older-than", age, now) if age else None
    choice = _choose(runs, now, older, records=records, with_outputs=outputs)
    with console.status_line("measuring") as line:
        found = [(thing, disk_items.measure(thing.path, _teller(line, thing))) for thing in choice.go]
    if as_json and not (dry_run or yes):
        raise UsageError("`--json` cannot ask for confirmation", hint="--dry-run lists the files, --yes removes them")
    if not as_json:
        _show(found, choice, now)
    if found and not dry_run and (yes or run_view.agreed("remove", "removed", _total(found))):
        again = _choose(runs, now, older, records=records, with_outputs=outputs)  # a run may need some by now
        left = _remove(found, {thing.path for thing in again.go})
    else:
        left = {thing.path: "" for thing, _ in found}
    if as_json:
        things = []
        for thing, size in found:
            done = {"removed": not dry_run and thing.path not in left, "problem": left.get(thing.path) or None}
            things.append({**thing.to_json(), **size.to_json(), **done})
        stay = [{**thing.to_json(), "needed": thing.needed} for thing in choice.stay]
        console.out_json(dry_run=dry_run, things=things, stay=stay)
    if not dry_run and any(left.values()):
        sys.exit(1)


def _choose(
    runs: Sequence[str], now: float, older: float | None, *, records: bool, with_outputs: bool
) -> RemovalChoice:
    if runs and older is not None:
        raise UsageError("`--older-than` and named runs are mutually exclusive")
    selections = run_view.select_all(runs, own=True)
    for selection in selections:
        if selection.task is not None:
            raise UsageError(f"`{selection}` is a task: a run is removed whole", hint=f"serried clean {runs[0]}")
    known = KnownRuns.load()
    with console.status_line("looking for outputs") as line:

        def tell(name: str, looked: int) -> None:
            line.update(f"looking for outputs of {name}: {looked:,} files")

        if runs:
            ids = [selection.record.id for selection in selections]
            return removal.choose_runs(known, ids, records=records, with_outputs=with_outputs, tell=tell)
        return removal.choose_all(known, now, older, records=records, with_outputs=with_outputs, tell=tell)


def _sweep(hosts: Sequence[str], *, dry_run: bool, as_json: bool) -> None:
    """Without confirmation: nothing can use the files of a dead job."""
    wanted = list(dict.fromkeys(hosts))
    by_host: dict[str, list[Left]] = {}
    failed: list[SerriedError] = []

    def report(host: str, came: list[Left] | SerriedError) -> None:
        if isinstance(came, SerriedError):
            failed.append(came)
            console.print_error(came)
        else:
            by_host[host] = came

    with console.status_line("") as line:
        removal.sweep_nodes(KnownRuns.load(), wanted, report, line.update, dry=dry_run)
    found = [left for host in wanted for left in by_host.get(host, [])]
    if as_json:
        console.out_json(dry_run=dry_run, left=[dataclasses.asdict(left) for left in found])
    elif found:
        gone = "would be removed" if dry_run else "removed"
        rows = [[left.host, printable(left.name), f"stays: {left.stays}" if left.stays else gone] for left in found]
        console.out_table(("NODE", "LEFT BY", ""), rows)
    elif not failed:
        console.say("dead jobs have left no files there")
    if failed:
        sys.exit(failed[0].exit_code)


def _show(found: Measured, choice: RemovalChoice, now: float) -> None:
    rows = []
    for thing, size in found:
        notes = [thing.state, "" if thing.has_record else "no record"]
        notes += [counted(thing.checkpoints, "checkpoint") if thing.checkpoints else "", thing.note]
        used = ago(now - thing.used) if thing.used else "?"
        rows.append([thing.kind, printable(thing.name), *_amount(size), used, ", ".join(filter(None, notes))])
    if rows:
        console.out_table(("WHAT", "NAME", "SIZE", "FILES", "USED", "NOTE"), rows, shrink=1)
    else:
        console.say("nothing to remove")
    for thing in choice.stay:
        console.note(f"{thing.name} stays: {thing.needed}")
    unfetched = [thing.run for thing in choice.stay if thing.unfetched]
    if unfetched:
        console.note(removal.TO_FETCH.format(run=unfetched[0] if len(unfetched) == 1 else "RUN"))


def _total(found: Measured) -> str:
    size = sum((size for _, size in found), Size())
    count = sum(thing.checkpoints for thing, _ in found)
    ones = f"{counted(len(found), 'thing')}, {spell(size.bytes)} in {counted(size.files, 'file')}"
    ones += f", {counted(count, 'checkpoint')} among them" if count else ""
    unfetched = sum(thing.unfetched for thing, _ in found)
    return ones + (f", {counted(unfetched, 'output')} never fetched" if unfetched else "")


def _remove(found: Measured, still: set[Path]) -> dict[object, str]:
    """Delete the things whose paths are in `still`. Returns, for each path that stays, why."""
    left: dict[object, str] = {}
    gone: Measured = []
    with console.status_line("removing") as line:
        for thing, size in found:
            line.update(f"removing {thing.name}")
            is_meant = thing.path in still or not os.path.lexists(thing.path)
            why = removal.remove(thing) if is_meant else "it is needed by now"
            if why is None:
                gone.append((thing, size))
            else:
                left[thing.path] = why
                console.warning(f"{thing.name} stays: {why}")
    if gone:
        console.say(f"removed {_total(gone)}")
    return left
