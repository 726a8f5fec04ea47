"""`serried bench` and `serried bench show`."""

from __future__ import annotations

import click

from serried.bench import store
from serried.ui import console
from serried.ui.text import printable


def list_benches(*, as_json: bool) -> None:
    """Print all benches, the newest first."""
    found = store.benches()
    if as_json:
        console.out_json(benches=[bench.to_json() for bench in found])
        return
    if not found:
        console.note("no benches yet: serried bench --help")
        return
    rows = [
        (bench.id, printable(bench.name), bench.kind, f"{len(bench.entries) - len(bench.missing)}/{len(bench.entries)}",
         bench.created)
        for bench in found
    ]  # fmt: skip
    console.out_table(("BENCH", "NAME", "KIND", "POINTS", "CREATED"), rows, shrink=1)


@click.command()
@click.argument("bench", default=store.LAST)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(*, bench: str, as_json: bool) -> None:
    """Show the points of a bench."""
    found = store.find(bench)
    if as_json:
        console.out_json(**found.to_json())
