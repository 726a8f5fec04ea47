"""`serried bench` and `serried bench show`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from serried.bench import reading, store
from serried.bench.measure import RunFigures
from serried.bench.results import BenchResults
from serried.cli import bench_view
from serried.errors import UsageError
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
        (
            bench.id,
            printable(bench.name),
            f"{len(bench.entries) - len(bench.missing)}/{len(bench.entries)}",
            bench.created.replace("T", " ")[:16],
        )
        for bench in found
    ]
    console.out_table(("BENCH", "NAME", "SUBMITTED", "CREATED"), rows, shrink=1)


@click.command()
@click.argument("bench", metavar="[BENCH]", default=store.LAST)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--csv", "as_csv", is_flag=True, help="Print all runs as CSV.")
@click.option("--markdown", "as_markdown", is_flag=True, help="Print a table for a README.")
@click.option(
    "--plot",
    "picture",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Also draw throughput and efficiency into FILE: .png, .svg or .pdf.",
)
def command(*, bench: str, as_json: bool, as_csv: bool, as_markdown: bool, picture: Path | None) -> None:
    r"""Show a bench: speed, speed-up, efficiency and cost of each point. BENCH is an id, a name, or `last`.

    \b
    serried bench show
    serried bench show b-k3f9 --plot scaling.png
    serried bench show b-k3f9 --markdown >> README.md

    Runs that wait, run or have failed are rows too.
    """
    if as_json + as_csv + as_markdown > 1:
        raise UsageError("`--json`, `--csv` and `--markdown` exclude each other", hint="leave all but one out")
    found = store.find(bench)
    results, figures = reading.read(found)
    if as_csv:
        console.out(bench_view.as_csv(found, figures).rstrip("\n"))
    elif as_markdown:
        console.out(bench_view.markdown(found, results))
    else:
        print_results(found, results, figures, as_json=as_json)
    if picture is not None:
        from serried.ui import bench_picture

        bench_picture.write(found, results, picture)
        console.note(f"wrote {picture}")


def print_results(bench: store.Bench, results: BenchResults, figures: list[RunFigures], *, as_json: bool) -> None:
    """Print the tables, or the JSON document."""
    if as_json:
        console.out_json(**document(bench, results, figures))
    else:
        bench_view.show(bench, results)


def document(bench: store.Bench, results: BenchResults, figures: list[RunFigures]) -> dict[str, Any]:
    """The bench with its rows, and each point's run with its state."""
    found = bench.to_json()
    points = [
        {**point, "state": run.state, "reason": run.reason or None}
        for point, run in zip(found["points"], figures, strict=True)
    ]
    rows = [row.to_json() for row in results.rows]
    return {
        **found,
        "points": points,
        "rows": rows,
        "device": results.device,
        "notes": [*results.notes, *results.notes_on_steps],
        "advice": results.advice,
    }
