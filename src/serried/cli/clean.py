"""`serried clean`: delete files that no run needs, after showing them."""

from __future__ import annotations

import dataclasses
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import click

from serried.base.errors import SerriedError, UsageError
from serried.base.text import ago, counted, spell
from serried.cleanup import disk_items, removal
from serried.cleanup.disk_items import KnownRuns, Size, Thing
from serried.cleanup.removal import Left, RemovalChoice
from serried.cli import run_view
from serried.views import console
from serried.views.text import printable

_HEADS = ("WHAT", "NAME", "SIZE", "FILES", "USED", "NOTE")
_NAME = _HEADS.index("NAME")

Measured = list[tuple[Thing, Size]]


@click.command()
@click.argument("runs", metavar="[RUN...]", nargs=-1, shell_complete=run_view.complete_runs)
@click.option("--older-than", "age", metavar="TIME", help="Also runs that ended before: 30d, 2026-09-01.")
@click.option(
    "--node",
    "hosts",
    metavar="NAME",
    multiple=True,
    help="Delete files of dead jobs on a node's disk, with a job there.",
)
@click.option("--outputs", is_flag=True, help="Also runs with outputs that were not fetched.")
@click.option("--records", is_flag=True, help="Delete records too: `ps --all` no longer lists these runs.")
@click.option("--dry-run", is_flag=True, help="Print the files to delete and delete nothing.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON; with --dry-run or --yes.")
def command(
    *,
    runs: tuple[str, ...],
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
    serried clean                      files that no run needs
    serried clean --older-than 30d     also runs, environments and images so old
    serried clean k3f9q2 lr-sweep      these runs, with their checkpoints
    serried clean --node n017          what dead jobs have left on that node

    Without RUN or --older-than, no run is deleted: only the remains of interrupted deletions and builds,
    and archives of code that no run has. A run that may still run, or that another run needs, always
    stays. The record of a run stays for `ps --all` and `show`. Jobs delete their own files on the disks of
    compute nodes, or your next job there does.
    A run with outputs (files that it wrote by relative paths) that were not fetched stays without --outputs.
    """
    if hosts:
        if runs or age or records or outputs:
            raise UsageError("`--node` excludes runs and other options", hint="serried clean --node NAME [--node NAME]")
        _sweep(hosts, dry_run=dry_run, as_json=as_json)
        return
    now = time.time()
    older = run_view.moment("--older-than", age, now) if age else None
    choice = _choose(runs, now, older, records=records, with_outputs=outputs)
    found = _measured(choice.go)
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
        _answer(found, choice, left, dry_run=dry_run)
    if not dry_run and any(left.values()):
        sys.exit(1)


def _choose(
    runs: Sequence[str], now: float, older: float | None, *, records: bool, with_outputs: bool
) -> RemovalChoice:
    if runs and older is not None:
        raise UsageError("`--older-than` and named runs are mutually exclusive")
    selections = run_view.select_all(runs)
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
        console.out_json(dry_run=dry_run, left=[dataclasses.asdict(each) for each in found])
    elif found or not failed:
        _show_left(found, dry_run=dry_run)
    if failed:
        sys.exit(failed[0].exit_code)


def _show_left(found: Sequence[Left], *, dry_run: bool) -> None:
    gone = "would be removed" if dry_run else "removed"
    rows = [[each.host, printable(each.name), f"stays: {each.stays}" if each.stays else gone] for each in found]
    if rows:
        console.out_table(("NODE", "LEFT BY", ""), rows)
    else:
        console.say("dead jobs have left no files there")


def _measured(found: Sequence[Thing]) -> Measured:
    measured: Measured = []
    with console.status_line("measuring") as line:
        for thing in found:

            def tell(files: int, name: str = thing.name) -> None:
                line.update(f"measuring {name}: {files:,} files")

            measured.append((thing, disk_items.measure(thing.path, tell)))
    return measured


def _show(found: Measured, choice: RemovalChoice, now: float) -> None:
    if not found:
        console.say("nothing to remove")
    else:
        console.out_table(_HEADS, [_row(thing, size, now) for thing, size in found], shrink=_NAME)
    for thing in choice.stay:
        console.note(f"{thing.name} stays: {thing.needed}")
    unfetched = [thing.run for thing in choice.stay if thing.unfetched]
    if unfetched:
        console.note(removal.TO_FETCH.format(run=unfetched[0] if len(unfetched) == 1 else "RUN"))


def _row(thing: Thing, size: Size, now: float) -> list[str]:
    used = ago(now - thing.used) if thing.used else "?"
    return [thing.kind, printable(thing.name), spell(size.bytes), f"{size.files:,}", used, _note(thing)]


def _note(thing: Thing) -> str:
    parts = [thing.state, "" if thing.has_record else "no record"]
    if thing.checkpoints:
        parts.append(counted(thing.checkpoints, "checkpoint"))
    return ", ".join(filter(None, (*parts, thing.note)))


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


def _answer(found: Measured, choice: RemovalChoice, left: dict[object, str], *, dry_run: bool) -> None:
    listed = [
        {
            **thing.to_json(),
            **size.to_json(),
            "removed": not dry_run and thing.path not in left,
            "problem": left.get(thing.path) or None,
        }
        for thing, size in found
    ]
    stay = [{**thing.to_json(), "needed": thing.needed} for thing in choice.stay]
    console.out_json(dry_run=dry_run, things=listed, stay=stay)
