"""`serried du`: show the disk usage of runs and of everything kept for them."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from serried.base.errors import UsageError
from serried.base.text import ago, spell
from serried.cleanup import disk_items
from serried.cleanup.disk_items import KnownRuns, Size, Thing
from serried.cli import run_view
from serried.schema.layout import RunDirectory
from serried.views import console
from serried.views.text import printable

_SHOWN = 20
_HEADS = ("WHAT", "NAME", "SIZE", "FILES", "CHECKPOINTS", "RESULTS", "OUTPUTS", "CHANGED")
_OF_ONE = ("RUN", "PART", "SIZE", "FILES", "NEWEST", "OLDEST")
_NAME = 1
_PARTS_AT = 4, 7
_PARTS = ("checkpoints", "results", "outputs")
_REST = "rest"


@dataclass(frozen=True)
class Row:
    thing: Thing
    size: Size
    parts: dict[str, Size] = field(default_factory=dict)


@click.command()
@click.argument("runs", metavar="[RUN...]", nargs=-1, shell_complete=run_view.complete_runs)
@click.option("--all", "everything", is_flag=True, help=f"List all, not only the {_SHOWN} largest.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(*, runs: tuple[str, ...], everything: bool, as_json: bool) -> None:
    r"""Show disk usage: of runs and everything kept for them, the largest first.

    \b
    serried du             everything
    serried du last        one run: checkpoints, results, outputs, the rest

    Outputs are files that a run wrote by relative paths. FILES includes folders and links, as an inode
    quota does. SIZE is the size of the files' content.
    """
    now = time.time()
    found = _look(runs)
    if as_json:
        console.out_json(things=[_document(row) for row in found], **_sum(found).to_json())
    elif runs:
        console.out_table(_OF_ONE, [line for row in found for line in _parts(row, now)])
    else:
        _draw(found, now, None if everything else _SHOWN)


def _look(runs: Sequence[str]) -> list[Row]:
    with console.status_line("measuring") as line:

        def tell(name: str, files: int) -> None:
            line.update(f"measuring {name}: {files:,} files")

        known = KnownRuns.load()
        chosen = _named(known, runs) if runs else _everything(known)
        rows = [_row(thing, known, lambda files, name=thing.name: tell(name, files)) for thing in chosen]
    return (
        rows
        if runs
        else sorted(
            (row for row in rows if row.size.files), key=lambda row: (-row.size.bytes, -row.size.files, row.thing.name)
        )
    )


def _named(known: KnownRuns, runs: Sequence[str]) -> list[Thing]:
    there = {thing.run: thing for thing in disk_items.runs(known) if thing.has_record}
    chosen = []
    for selection in run_view.select_all(runs):
        if selection.record.id not in there:
            raise UsageError(
                f"the run directory of `{selection.record.id}` does not exist any more",
                hint=f"it was {selection.record.where.path}",
            )
        chosen.append(there[selection.record.id])
    return chosen


def _everything(known: KnownRuns) -> Iterable[Thing]:
    yield from disk_items.runs(known)
    yield from disk_items.remains(known)
    yield from disk_items.sources(known)
    yield from disk_items.built(known)
    yield from disk_items.staged(known)
    yield from disk_items.kept(known)


def _row(thing: Thing, known: KnownRuns, tell: Any) -> Row:
    if thing.kind != disk_items.RUN:
        return Row(thing, disk_items.measure(thing.path, tell))
    where = RunDirectory(thing.path)
    tasks = [where, *(where.task(int(name)) for name in _numbers(where.tasks))]
    folders = {"checkpoints": [one.checkpoints for one in tasks], "results": [one.results for one in tasks]}
    parts = {part: sum((disk_items.measure(path, tell) for path in paths), Size()) for part, paths in folders.items()}
    trees = disk_items.trees(known, thing) or []
    apart = [*(path for paths in folders.values() for path in paths), *(tree.path for tree in trees)]
    parts["outputs"], source = disk_items.measure_trees(trees, tell)
    parts[_REST] = disk_items.measure(thing.path, tell, apart) + source
    return Row(thing, sum(parts.values(), Size()), parts)


def _numbers(folder: Path) -> list[str]:
    try:
        return [name for name in os.listdir(folder) if name.isdecimal()]  # noqa: PTH208 - a thousand, perhaps
    except OSError:
        return []


def _sum(rows: Sequence[Row]) -> Size:
    return sum((row.size for row in rows), Size())


def _draw(rows: Sequence[Row], now: float, shown: int | None) -> None:
    if not rows:
        console.say("no disk space is used yet")
        return
    lines = [_line(row, now) for row in rows[:shown]]
    if rest := rows[len(lines) :]:
        size = _sum(rest)
        lines.append(["", f"{len(rest)} more: serried du --all", spell(size.bytes), f"{size.files:,}", "", "", "", ""])
    total = _sum(rows)
    lines.append(["all", "", spell(total.bytes), f"{total.files:,}", "", "", "", ""])
    heads: Sequence[str] = _HEADS
    widths = [max(map(len, column)) for column in zip(heads, *lines, strict=True)]
    if console.is_terminal() and sum(widths) + 2 * (len(widths) - 1) > console.columns():
        # Names matter more than the parts, which `serried du RUN` lists.
        heads, *lines = ([*line[: _PARTS_AT[0]], *line[_PARTS_AT[1] :]] for line in (heads, *lines))
    console.out_table(heads, lines, shrink=_NAME)
    if total.unread:
        console.warning(f"{total.unread} folders could not be read")


def _line(row: Row, now: float) -> list[str]:
    parts = [spell(row.parts[part].bytes) if row.parts.get(part) and row.parts[part].files else "" for part in _PARTS]
    changed = ago(now - row.size.newest) if row.size.newest is not None else ""
    name = printable(row.thing.name)
    return [row.thing.kind, name, spell(row.size.bytes), f"{row.size.files:,}", *parts, changed]


def _parts(row: Row, now: float) -> list[list[str]]:
    def moment(seconds: float | None) -> str:
        return "" if seconds is None else ago(now - seconds)

    named = [(part, size) for part, size in row.parts.items() if size.files]
    return [
        [row.thing.run, part, spell(size.bytes), f"{size.files:,}", moment(size.newest), moment(size.oldest)]
        for part, size in [*named, ("all", row.size)]
    ]


def _document(row: Row) -> dict[str, Any]:
    parts = {part: size.to_json() for part, size in row.parts.items()}
    return {**row.thing.to_json(), **row.size.to_json(), "parts": parts}
