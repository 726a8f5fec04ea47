"""`serried metrics`: what a run logged and what was measured of it, for other programs."""

from __future__ import annotations

import csv
import io
import json
import math
import sys
from collections.abc import Iterable, Sequence
from typing import Any, Union

import click

from serried.base.errors import UsageError
from serried.cli import run_view
from serried.records.index import Selection
from serried.records.samples import GPUS, NODES, RANKS, STEPS, MeasuredRows, Row
from serried.schema import SCHEMA
from serried.views import console
from serried.views.text import harmless

CSV, JSON, JSONL = "csv", "json", "jsonl"
_PAUSE_SECONDS = 1.0


class Csv:
    """A header, and a line for each row. What is unknown is empty."""

    def __init__(self, columns: Sequence[str]) -> None:
        self._columns = columns
        self._left_out: set[str] = set()
        self.header = self._text(columns)

    def line(self, row: Row) -> str:
        return self._text([self._cell(row.get(name)) for name in self._columns])

    def left_out(self, row: Row) -> list[str]:
        names = [name for name in row if name not in self._columns and name not in self._left_out]
        self._left_out.update(names)
        return names

    @staticmethod
    def _text(cells: Sequence[Any]) -> str:
        line = io.StringIO()
        csv.writer(line, lineterminator="").writerow(cells)
        return line.getvalue()

    @staticmethod
    def _cell(value: Any) -> Any:
        if isinstance(value, list):
            return " ".join(map(str, value))
        is_whole = isinstance(value, float) and value.is_integer() and abs(value) < 1e15
        return int(value) if is_whole else "" if value is None else value


class JsonLines:
    """An object for each row. JSON has no NaN: such a number is a text."""

    header = ""

    @staticmethod
    def line(row: Row) -> str:
        is_odd = {name: isinstance(value, float) and not math.isfinite(value) for name, value in row.items()}
        return json.dumps({name: str(value) if is_odd[name] else value for name, value in row.items()})


Writer = Union[Csv, JsonLines]


@click.command()
@run_view.last_run
@click.option("--what", type=click.Choice([STEPS, GPUS, NODES, RANKS]), help="Subject of each row. Default: steps.")
@click.option("--format", "form", type=click.Choice([CSV, JSON, JSONL]), help="Format. Default: csv.")
@click.option("-f", "--follow", is_flag=True, help="Print rows as they come, until the run ends.")
@click.option("--rank", type=click.IntRange(0), metavar="R", help="Rank of the steps, or only rank R.")
@click.option("--node", type=click.IntRange(0), metavar="N", help="Only what node N measured.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON; with --follow an object on each line.")
def command(
    *, run: str, what: str | None, form: str | None, follow: bool, rank: int | None, node: int | None, as_json: bool
) -> None:
    r"""Export what a run logged and what its nodes measured.

    \b
    serried metrics last > steps.csv             steps, as the program logged them
    serried metrics last --what gpus > gpus.csv  GPUs: means, minima and maxima
    serried metrics last --what ranks --json -f  as they come, one object a line
    """
    form = form or (JSON if as_json else CSV)
    if as_json and form not in (JSON, JSONL):
        raise UsageError(f"`--json` and `--format {form}` contradict each other", hint="leave one of them out")
    selection = run_view.select(run, of_others=True)
    if len(selection.tasks) == 1:
        selection = Selection(selection.record, selection.tasks[0])
    if selection.is_array:
        hint = f"name one: serried metrics {selection}/{(selection.tasks or (0,))[0]}"
        raise UsageError(f"run `{selection}` is an array; its tasks have metrics of their own", hint=hint)
    measured = MeasuredRows(selection.place, what or STEPS, node=node, rank=rank)
    if follow:
        has_rows = _follow(selection, measured, form)
    elif form == JSON:
        has_rows = _out_json(selection, measured.what, measured.rows())
    else:
        writer, has_rows = _writer(form, measured), False
        for row in measured.rows():
            _out("" if has_rows else writer.header)
            _out(writer.line(row))
            has_rows = True
        _out("" if has_rows else writer.header)
    if has_rows:
        return
    if measured.what != STEPS:
        console.note(f"the nodes of run `{selection}` have measured no {measured.what}")
        return
    console.note(f"rank {measured.rank_of_steps} of run `{selection}` has logged no steps")
    if any(True for _ in MeasuredRows(selection.place, RANKS).rows()):
        console.note(f"its nodes have measured: serried metrics {selection} --what ranks")


def _out_json(selection: Selection, what: str, rows: Iterable[Row]) -> bool:
    """One value, in pieces: samples of a long run do not fit into memory. Returns whether there are rows."""
    begin = json.dumps({"schema": SCHEMA, "run": str(selection), "what": what})
    console.out(f'{begin[:-1]}, "rows": [')
    previous = ""
    for row in rows:
        if previous:
            console.out(f"{previous},")
        previous = JsonLines.line(row)
    if previous:
        console.out(previous)
    console.out("]}")
    return bool(previous)


def _follow(selection: Selection, measured: MeasuredRows, form: str) -> bool:
    """Print rows until the run ends. Returns whether there were any."""
    from serried.cli.logs import RunClock

    clock = RunClock(selection, awaits="measurements")
    writer: Writer | None = None
    while True:
        is_over = clock.is_run_over()  # before the files, which may grow between two looks
        has_new = False
        for row in measured.new_rows():
            if writer is None:
                writer = _writer(JSONL if form == JSON else form, measured)
                _out(writer.header)
            _out(writer.line(row))
            if isinstance(writer, Csv) and (names := writer.left_out(row)):
                console.note(f"without a column, which the first rows decide: {', '.join(names)}; `--json -f` has all")
            has_new = True
        if has_new:
            sys.stdout.flush()
        elif is_over:
            return writer is not None
        else:
            console.await_more(_PAUSE_SECONDS)


def _writer(form: str, measured: MeasuredRows) -> Writer:
    if form == CSV:
        return Csv(measured.columns(measured.rows()))  # a look at all rows: the header comes first
    return JsonLines()


def _out(line: str) -> None:
    if line:
        console.out(harmless(line) if console.is_terminal() else line)
