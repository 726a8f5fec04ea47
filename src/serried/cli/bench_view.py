"""The results of a bench as text: tables of 80 columns, Markdown and CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from serried.bench import hpc_helper
from serried.bench.measure import CPU, RunFigures
from serried.bench.results import SHOWN_SHARE, BenchResults, RowResult, figure
from serried.bench.store import HPC_HELPER, Bench
from serried.protocol.sizes import counted
from serried.ui import console
from serried.ui.text import duration, fine_time, printable, wrapped

_CSV = (
    "nodes", "ranks", "world", "launch", "method", "scaling", "repeat", "without_sync", "run", "state", "device",
    "steps", "batch_per_rank", "samples_per_second", "step_median", "step_p95", "spread", "data_wait",
    "startup_seconds", "reason",
)  # fmt: skip


def share(value: float | None) -> str:
    """`12%`, and `0%` for a small share below zero too."""
    return "-" if value is None else f"{0.0 if abs(value) <= SHOWN_SHARE else value:.0%}"


def seconds(value: float | None) -> str:
    return "-" if value is None else fine_time(value)


def rate(row: RowResult) -> str:
    """`6,384 ±1.2%`, or why there is none."""
    if row.samples_per_second is None:
        return next((run.state for run in row.runs if run.state), "-")
    spread = "" if row.deviation is None else f" ±{100 * row.deviation:.1f}%"
    return figure(row.samples_per_second) + spread + ("" if row.is_comparable else " !")


def speed(row: RowResult) -> list[str]:
    """The cells up to efficiencies."""
    return [
        row.point.shape,
        " ".join(row.point.labels),
        rate(row),
        figure(row.per_rank),
        figure(row.speed_up),
        share(row.efficiency),
        share(row.node_efficiency),
    ]


def start(row: RowResult) -> str:
    return "-" if row.startup_seconds is None else duration(row.startup_seconds)


def units(results: BenchResults) -> tuple[str, str]:
    """What samples per second are divided by, and what has hours."""
    return ("GPU", "GPU") if results.device != CPU else ("rank", "core")


def show(bench: Bench, results: BenchResults) -> None:
    """Print the tables, then what does not compare, and the advice."""
    console.out(f"{bench.id} {printable(bench.name)}: {about(bench, results)}")
    if results.open_runs:
        console.out(f"{results.open_runs} of {len(bench.entries)} runs have not ended")
    console.out()
    if bench.kind == HPC_HELPER:
        show_comparison(bench, results)
        return
    per, of_hours = (unit.upper() for unit in units(results))
    heads = ("SIZE", "HOW", "SAMPLES/S", f"PER {per}", "SPEED-UP", "EFF/RANK", "EFF/NODE")
    console.out_table(heads, map(speed, results.rows))
    measured = [row for row in results.rows if row.is_measured]
    if measured:
        console.out()
        console.out_table(
            ("SIZE", "HOW", "STEP", "P95", "DIFF", "DATA", "COMM", "START", f"{of_hours}-H/1M"),
            [
                (
                    *speed(row)[:2],
                    seconds(row.step_median),
                    seconds(row.step_p95),
                    share(row.spread),
                    share(row.data_wait),
                    share(row.communication),
                    start(row),
                    figure(row.cost),
                )
                for row in measured
            ],
        )
    show_remarks(results)


def show_comparison(bench: Bench, results: BenchResults) -> None:
    """Print HPC_helper's settings: our seconds and images per second beside its published ones."""
    heads = ("SIZE", "HOW", "SECONDS", "IMAGES/S", "EFF.", *hpc_helper.SYSTEMS)
    console.out_table(heads, comparison(results))
    console.out()
    for text in [*sources(bench), *problems(results), *results.notes]:
        _out_item(text)


def comparison(results: BenchResults) -> list[list[str]]:
    """The cells of the table, for terminals and Markdown."""
    return [
        [
            each.point.shape,
            " ".join(each.point.labels),
            each.state if each.seconds is None else f"{each.seconds:.1f}",
            figure(each.rate),
            share(each.efficiency),
            *(
                "-" if rate is None else f"{figure(rate)} ({share(efficiency)})"
                for rate, efficiency in zip(each.published, each.published_efficiency, strict=True)
            ),
        ]
        for each in hpc_helper.compare(results)
    ]


def sources(bench: Bench) -> list[str]:
    """What the figures are, ours and the published ones."""
    data, scale = bench.about.get("data"), bench.about.get("scale", 1.0)
    of = f"MNIST from `{data}`" if data else "noise of MNIST's size: the speed is that of MNIST, the accuracy is not"
    systems = ", ".join(f"{name} ({gpu})" for name, gpu in hpc_helper.SYSTEMS.items())
    small = [] if scale == 1 else [f"`--scale {scale:g}`: do not compare it with the published figures"]
    published = f"published images/s of {systems}: computed from the seconds in the README of DSL-Lab/HPC_helper"
    return [
        *small,
        f"data: {of}",
        "seconds of training alone in 5 epochs, first step and loading included; efficiency against one rank",
        f"{published}, one run each; VECTOR had smaller batches",
        "one difference: images are scaled on the device, so loaders need no workers",
    ]


def _out_item(text: str) -> None:
    first, *more = wrapped(text, 76)
    console.out("\n".join([f"- {first}", *(f"  {line}" for line in more)]))


def problems(results: BenchResults) -> list[str]:
    return [f"{row.point}: {printable(problem)}" for row in results.rows for problem in row.problems]


def show_remarks(results: BenchResults) -> None:
    """Print problems of single points, notes about all, and the advice."""
    console.out()
    for text in [*problems(results), *results.notes, *results.notes_on_steps, *results.advice]:
        _out_item(text)


def about(bench: Bench, results: BenchResults) -> str:
    """`3 repeats on NVIDIA V100, the first 10% left out`."""
    repeats = 1 + max((entry.point.repeat for entry in bench.entries), default=0)
    count = counted(repeats, "repeat")
    place = f"{count} on {printable(results.device)}"
    if bench.kind == HPC_HELPER:  # its seconds are all of the training
        return place
    return f"{place}, the first {bench.warm_up}{'' if bench.warm_up.endswith('%') else ' steps'} left out"


def markdown(bench: Bench, results: BenchResults) -> str:
    """A table for a README, with its facts above and the problems below."""
    per, of_hours = units(results)
    heads = [
        "nodes x ranks", "how", "samples/s", f"per {per}", "speed-up", "efficiency, 1 rank", "efficiency, 1 node",
        "step (p95)", "communication", "start", f"{of_hours}-hours per 1M samples",
    ]  # fmt: skip
    rows = [
        [
            *speed(row),
            f"{seconds(row.step_median)} ({seconds(row.step_p95)})" if row.is_measured else "-",
            share(row.communication),
            start(row),
            figure(row.cost),
        ]
        for row in results.rows
    ]
    remarks = problems(results)
    if bench.kind == HPC_HELPER:
        heads = ["nodes x ranks", "how", "seconds", "images/s", "efficiency", *hpc_helper.SYSTEMS]
        rows = comparison(results)
        remarks = [*sources(bench), *remarks]
    lines = [f"- {_in_markdown(text)}" for text in [*remarks, *results.notes]]
    title = f"`{bench.name}`: {about(bench, results)} (serried bench, {bench.created[:10]})."
    table = [_markdown_row(heads), "|" + "---|" * len(heads), *map(_markdown_row, rows)]
    return "\n".join([title, "", *table, *([""] if lines else []), *lines])


def _markdown_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(map(_in_markdown, cells)) + " |"


def _in_markdown(text: str) -> str:
    return printable(text).replace("|", "\\|")


def as_csv(bench: Bench, figures: Sequence[RunFigures]) -> str:
    """A line for each run, with all digits."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_CSV)
    for entry, run in zip(bench.entries, figures, strict=True):
        point = entry.point
        writer.writerow([
            point.nodes, point.ranks, point.world, point.launch, point.method, point.scaling, point.repeat,
            int(point.without_sync), run.run, run.state, run.device, run.steps, run.batch, run.samples_per_second,
            run.step_median, run.step_p95, run.spread, run.data_wait, run.startup_seconds, run.reason,
        ])  # fmt: skip
    return text.getvalue()
