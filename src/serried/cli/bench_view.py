"""The results of a bench as text: tables of 80 columns, Markdown and CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Sequence

from serried.base.text import counted, duration, fine_time
from serried.bench.results import CPU, SHOWN_SHARE, BenchResults, RowResult, RunFigures, figure
from serried.bench.store import Bench
from serried.views import console
from serried.views.text import printable, wrapped

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


Column = tuple[str, str, Callable[[RowResult], str]]


def columns(results: BenchResults) -> list[Column]:
    """The head of a column on a terminal and in Markdown, and its cells."""
    per, of_hours = ("GPU", "GPU") if results.device != CPU else ("rank", "core")
    return [
        ("SIZE", "nodes x ranks", lambda row: row.point.shape),
        ("HOW", "how", lambda row: " ".join(row.point.labels)),
        ("SAMPLES/S", "samples/s", rate),
        (f"PER {per.upper()}", f"per {per}", lambda row: figure(row.per_rank)),
        ("SPEED-UP", "speed-up", lambda row: figure(row.speed_up)),
        ("EFF/RANK", "efficiency, 1 rank", lambda row: share(row.efficiency)),
        ("EFF/NODE", "efficiency, 1 node", lambda row: share(row.node_efficiency)),
        ("STEP", "step", lambda row: seconds(row.step_median)),
        ("P95", "95% of steps", lambda row: seconds(row.step_p95)),
        ("DIFF", "difference of ranks", lambda row: share(row.spread)),
        ("DATA", "waiting for data", lambda row: share(row.data_wait)),
        ("COMM", "communication", lambda row: share(row.communication)),
        ("START", "start", lambda row: "-" if row.startup_seconds is None else duration(row.startup_seconds)),
        (f"{of_hours.upper()}-H/1M", f"{of_hours}-hours per 1M samples", lambda row: figure(row.cost)),
    ]


def cells(chosen: Sequence[Column], rows: Iterable[RowResult]) -> list[list[str]]:
    return [[cell(row) for _, _, cell in chosen] for row in rows]


def show(bench: Bench, results: BenchResults) -> None:
    """Print the tables, then what does not compare, and the advice."""
    console.out(f"{bench.id} {printable(bench.name)}: {about(bench, results)}")
    if results.open_runs:
        console.out(f"{results.open_runs} of {len(bench.entries)} runs have not ended")
    console.out()
    every = columns(results)
    speed, steps = every[:7], [*every[:2], *every[7:]]
    console.out_table([head for head, _, _ in speed], cells(speed, results.rows))
    if measured := [row for row in results.rows if row.is_measured]:
        console.out()
        console.out_table([head for head, _, _ in steps], cells(steps, measured))
    show_remarks([*problems(results), *results.notes, *results.notes_on_steps, *results.advice])


def problems(results: BenchResults) -> list[str]:
    return [f"{row.point}: {printable(problem)}" for row in results.rows for problem in row.problems]


def show_remarks(texts: Iterable[str]) -> None:
    console.out()
    for text in texts:
        first, *more = wrapped(text, 76)
        console.out("\n".join([f"- {first}", *(f"  {line}" for line in more)]))


def about(bench: Bench, results: BenchResults) -> str:
    """`3 repeats on NVIDIA V100, the first 10% left out`."""
    repeats = 1 + max((entry.point.repeat for entry in bench.entries), default=0)
    count = counted(repeats, "repeat")
    left_out = bench.warm_up if bench.warm_up.endswith("%") else f"{bench.warm_up} steps"
    return f"{count} on {printable(results.device)}, the first {left_out} left out"


def markdown(bench: Bench, results: BenchResults) -> str:
    """A table for a README, with its facts above and the problems below."""
    every = columns(results)
    heads, rows = [head for _, head, _ in every], cells(every, results.rows)
    lines = [f"- {_in_markdown(text)}" for text in [*problems(results), *results.notes]]
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
    writer = csv.DictWriter(text, _CSV, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for entry, run in zip(bench.entries, figures, strict=True):
        point = entry.point
        own = {"world": point.world, "without_sync": int(point.without_sync), "batch_per_rank": run.batch}
        writer.writerow({**vars(point), **vars(run), **own})
    return text.getvalue()
