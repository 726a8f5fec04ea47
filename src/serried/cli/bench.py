"""`serried bench`: a run for each point of a grid, and the results as a table, picture, CSV or JSON."""

from __future__ import annotations

import csv
import inspect
import io
import itertools
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from serried.base.errors import UsageError
from serried.base.text import counted, duration, fine_time, iso
from serried.bench import results, store, submitting
from serried.bench.results import (
    CPU,
    SHOWN_SHARE,
    BenchResults,
    RowResult,
    RunFigures,
    failed_runs,
    figure,
    read,
    records,
)
from serried.bench.store import Bench, PointRun
from serried.bench.submitting import BenchRequest
from serried.cli import GroupWithHelp, options, run_view
from serried.records import status
from serried.records.index import Selection
from serried.schema import printed_metric
from serried.submission.prepare import prepare
from serried.submission.request import Decided, Request, decide
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


_COLUMNS = 78
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


def out_bench(bench: Bench, results: BenchResults) -> None:
    """Print the tables, then what does not compare, and the advice."""
    console.out(f"{bench.id} {printable(bench.name)}: {about(bench, results)}")
    if results.open_runs:
        console.out(f"{results.open_runs} of {len(bench.entries)} runs have not ended")
    every = columns(results)
    measured = [row for row in results.rows if row.is_measured]
    for chosen, rows in (every[:7], results.rows), ([*every[:2], *every[7:]], measured):
        if rows:
            console.out()
            console.out_table([head for head, _, _ in chosen], cells(chosen, rows))
    console.out()
    for text in [*problems(results), *results.notes, *results.notes_on_steps, *results.advice]:
        console.out("\n  ".join(wrapped(f"- {text}", _COLUMNS)))


def problems(results: BenchResults) -> list[str]:
    return [f"{row.point}: {printable(problem)}" for row in results.rows for problem in row.problems]


def about(bench: Bench, results: BenchResults) -> str:
    """`3 repeats on NVIDIA V100, the first 10% left out`."""
    count = counted(1 + max((entry.point.repeat for entry in bench.entries), default=0), "repeat")
    left_out = bench.warm_up if bench.warm_up.endswith("%") else f"{bench.warm_up} steps"
    return f"{count} on {printable(results.device)}, the first {left_out} left out"


def markdown(bench: Bench, results: BenchResults) -> str:
    """A table for a README, with its facts above and the problems below."""

    def escaped(text: str) -> str:
        return printable(text).replace("|", "\\|")

    every = columns(results)
    lines = [f"- {escaped(text)}" for text in [*problems(results), *results.notes]]
    title = f"`{bench.name}`: {about(bench, results)} (serried bench, {bench.created[:10]})."
    rows = [[head for _, head, _ in every], *cells(every, results.rows)]
    head, *table = ["| " + " | ".join(map(escaped, row)) + " |" for row in rows]
    return "\n".join([title, "", head, "|" + "---|" * len(every), *table, *([""] if lines else []), *lines])


def bench_csv(bench: Bench, figures: Sequence[RunFigures]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, _CSV, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for entry, run in zip(bench.entries, figures):
        point = entry.point
        own = {"world": point.world, "without_sync": int(point.without_sync), "batch_per_rank": run.batch}
        writer.writerow({**vars(point), **vars(run), **own})
    return text.getvalue()


@click.group(cls=GroupWithHelp, invoke_without_command=True)
@run_view.as_json
@click.pass_context
def command(ctx: click.Context, *, as_json: bool) -> None:
    """Measure a training on more and more ranks; without a command, list the benches."""
    if ctx.invoked_subcommand is not None:
        return
    benches = store.benches()
    if as_json:
        console.out_json(benches=[bench.to_json() for bench in benches])
    elif benches:
        heads = ("BENCH", "NAME", "SUBMITTED", "CREATED")
        rows = []
        for bench in benches:
            submitted = f"{len(bench.entries) - len(bench.missing)}/{len(bench.entries)}"
            rows.append((bench.id, printable(bench.name), submitted, bench.created.replace("T", " ")[:16]))
        console.out_table(heads, rows, shrink=1)
    else:
        console.note("no benches yet: serried bench --help")


class TakesProgram(options.TakesCommand):
    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return ["[OPTIONS]", "[EXPERIMENT | -- COMMAND...]"]


def counts(ctx: click.Context, param: click.Parameter, text: str) -> tuple[int, ...]:  # noqa: ARG001
    """`1,2,4` as numbers."""
    try:
        found = tuple(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError:
        found = ()
    flag = param.opts[0]
    if not found or min(found) < 1:
        raise UsageError(f"`{flag} {text}` is not a list of numbers", hint=f"for example `{flag} 1,2,4`")
    return found


def words(known: Iterable[str] = ()) -> Callable[[click.Context, click.Parameter, str], tuple[str, ...]]:
    """`dp,ddp` as words, each one of `known`."""

    def parse(ctx: click.Context, param: click.Parameter, text: str) -> tuple[str, ...]:  # noqa: ARG001
        found = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
        for word in found:
            if not word or (known and word not in known):
                hint = f"there are {' and '.join(f'`{each}`' for each in known)}" if known else "for example `agent`"
                raise UsageError(f"`{param.opts[0]}` does not know `{word}`", hint=hint)
        return found

    return parse


grid_options = options.together(
    click.option("--nodes", default="1", metavar="N,N,…", callback=counts, help="Numbers of nodes.  [default: 1]"),
    click.option(
        "--ranks",
        default="1",
        metavar="N,N,…",
        callback=counts,
        help="Numbers of ranks on each node, each with a GPU if there are any.  [default: 1]",
    ),
    click.option(
        "--launch", "launches", default="agent", metavar="KIND,…", callback=words(), help="Launchers.  [default: agent]"
    ),
    click.option(
        "--method",
        "methods",
        default=store.DDP,
        metavar="dp,ddp",
        callback=words(store.METHODS),
        help="ddp: a process for each rank; dp: DataParallel, one process on one node.  [default: ddp]",
    ),
    click.option(
        "--repeat", "repeats", type=click.IntRange(1), default=1, metavar="N", help="Runs of each point.  [default: 1]"
    ),
    click.option(
        "--communication",
        is_flag=True,
        help="Also run each point without exchanging gradients, for the share of the communication.",
    ),
    click.option(
        "--scaling",
        "scalings",
        default=store.WEAK,
        metavar="weak,strong",
        callback=words(store.SCALINGS),
        help="weak: each rank has the whole batch; strong: all ranks share it.  [default: weak]",
    ),
    click.option("--batch", type=click.IntRange(1), metavar="N", help="Samples of one rank in a step."),
)
"""The arguments of `store.grid`."""
send_options = options.together(
    click.option("--wait", is_flag=True, help="Wait for all runs, and show the bench."),
    options.yes,
    click.option("--dry-run", is_flag=True, help="Print the points, their sizes and the cost; submit nothing."),
    run_view.as_json,
)


@command.command(cls=TakesProgram, short_help="Measure a training on more and more ranks.")
@options.experiment
@grid_options
@click.option("--warm-up", default="10%", metavar="N|N%", help="Steps to leave out at the beginning.  [default: 10%]")
@click.option(
    "--pass",
    "passed",
    metavar="NAME=TEXT",
    multiple=True,
    help="A setting of the program: `batch_size={batch}`, {global_batch}, {method}, {nodes}, {ranks}."
    "  [default: the first, with --batch]",
)
@click.option(
    "--metric-from",
    "source",
    metavar="stdout:REGEX|file:PATH:KEY",
    help="Where a program without the training library reports samples per second.",
)
@options.resources_of_points
@click.option(
    "--parallel",
    type=click.IntRange(1),
    metavar="N",
    help="Most points that run at once.  [default: all; on this machine 1]",
)
@options.cluster
@click.option("--name", metavar="NAME", help="Name of the bench, and of its runs.")
@options.any_setting("Any setting, as in `--set config.epochs=1`.")
@send_options
def scaling(
    *,
    warm_up: str,
    passed: tuple[str, ...],
    source: str | None,
    parallel: int | None,
    cluster: str | None,
    wait: bool,
    yes: bool,
    dry_run: bool,
    as_json: bool,
    **values: Any,
) -> None:
    r"""Measure a training on more and more ranks: a right-sized job for each point.

    \b
    serried bench scaling train --nodes 1,2,4 --ranks 1,2,4
    serried bench scaling train --ranks 1,4 --launch agent,mpirun --method dp,ddp
    serried bench scaling train --ranks 1,2,4 --batch 256 --scaling weak,strong
    serried bench scaling --metric-from 'stdout:(\S+) images/s' -- python train.py
    serried bench show                           speed-up, efficiency, cost

    Steps come from `run.log` of the training library, or from `--metric-from`. Each job ends with the program or with
    its time limit, whichever comes first.
    """
    if source is not None:
        try:
            printed_metric.check(source)
        except ValueError as error:
            raise UsageError(f"`--metric-from` {error}", hint=r"for example `stdout:(\S+) images/s`") from None
    sizes = {name: values.pop(name) for name in inspect.signature(store.grid).parameters}
    base = options.request(values, cluster)
    if base.is_script:
        raise UsageError("a job script has a size of its own", hint="name an experiment, or a command after `--`")
    settings: dict[str, str] = {}
    for text in passed:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise UsageError(f"`--pass {text}` is not `NAME=TEXT`", hint="for example `--pass batch_size={batch}`")
        settings[name.strip()] = value
    if sizes["batch"] is not None and not any("batch}" in value for value in settings.values()):
        settings = {"batch_size": "{batch}", **settings}
    request = BenchRequest(
        str(Path.cwd()), base.experiment, base.command, base.overrides, cluster, passed=settings, parallel=parallel
    )
    grid = store.grid(**sizes)
    submitting.check_passed(settings, grid)
    bench = _new_bench(request, grid, base.name, warm_up, source, is_sent=not dry_run)
    send(bench, wait=wait, yes=yes, dry_run=dry_run, as_json=as_json)


def _new_bench(
    request: BenchRequest,
    grid: Iterable[store.GridPoint],
    name: str | None,
    warm_up: str,
    source: str | None,
    *,
    is_sent: bool = True,
) -> Bench:
    results.warm_up_steps(warm_up, 1)
    plain = Request(
        request.experiment, request.command, overrides=request.overrides, cluster=request.cluster, is_sent=is_sent
    )
    plan = decide(plain, Path(request.directory), os.environ).plan
    own = {**request.to_json(), "name": name or plan.name, "on_gpus": plan.allocation.gpus > 0}
    metric = plan.metric
    if source is None and metric and metric.name == results.RATE and metric.source:
        source = metric.source
    return Bench(store.new_id(), own["name"], iso(time.time()), own, tuple(map(PointRun, grid)), warm_up, source or "")


def send(bench: Bench, *, dry_run: bool, as_json: bool, yes: bool, wait: bool, failed: Sequence[str] = ()) -> None:
    """Print the points, and submit those that have no run; `failed` are runs that are replaced."""
    left = [at for at, entry in enumerate(bench.entries) if not entry.is_submitted or entry.run in failed]
    request = submitting.request_of(bench)
    plans: dict[int, Decided] = {}
    refused: dict[int, UsageError] = {}
    for at in left:
        try:
            plans[at] = request.decide(bench.entries[at].point, os.environ)
        except UsageError as error:
            refused[at] = error
    if refused and not plans:
        raise refused[min(refused)]
    if dry_run and as_json:
        console.out_json(**bench.to_json(), hours=_cost(plans.values()))
        return
    _show_points(bench, plans, refused)
    first = plans[min(plans)]
    with options.progress(dry_run=dry_run) as observe:
        prepared = prepare(first.plan, first.resolved, os.environ, jobs=first.jobs, observe=observe)
    warnings = dict.fromkeys([*prepared.warnings, *(text for one in plans.values() for text in one.resolved.warnings)])
    options.say_about(prepared.notes, warnings)
    if dry_run:
        return
    if not yes:
        options.agree(warnings)
    bench = _submit(bench, failed, len(left))
    for entry in bench.entries:
        if entry.refusal:
            console.warning(f"{entry.point} is refused: {entry.refusal}")
    runs = sum(entry.is_submitted for entry in bench.entries)
    console.say(f"submitted {bench.id} as {counted(runs, 'run')}")
    show = (f"serried bench show {bench.id}", "the results so far")
    console.next_steps([show, ("serried ps", "the states of the runs")])
    finish(bench, as_json=as_json, wait=wait)


def finish(bench: Bench, *, as_json: bool, wait: bool) -> None:
    """Print the bench; with `wait`, its results once no run of it waits or runs."""
    if wait:
        chosen = [Selection(record) for record in records(bench).values()]
        with console.status_line("waiting for the runs") as line:

            def observe(found: Any) -> None:
                line.update(f"{sum(one.has_ended for one in found)} of {len(found)} runs have ended")

            if chosen:
                status.wait(chosen, observe=observe)
        print_results(bench, *read(bench), as_json=as_json)
    elif as_json:
        console.out_json(**bench.to_json())
    else:
        console.out(bench.id)


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


def _show_points(bench: Bench, plans: Mapping[int, Decided], refused: Mapping[int, UsageError]) -> None:
    """A line for each point with its repeats, and the cost of all."""
    rows: Counter[tuple[str, ...]] = Counter()
    for at in sorted([*plans, *refused]):
        point, size = bench.entries[at].point, ("-", "refused")
        if at in plans:
            each, unit = submitting.devices(plans[at].plan)
            size = counted(each, unit), duration(plans[at].plan.allocation.time_seconds)
        how = " ".join([*point.labels, *([submitting.NO_SYNC] if point.without_sync else [])])
        row = (point.shape, how, "-" if point.batch is None else str(point.batch), *size)
        rows[row] += 1
    shown = [(*row, str(count)) for row, count in rows.items()]
    for line in console.table(("SIZE", "HOW", "BATCH", "EACH NODE", "LIMIT", "RUNS"), shown):
        console.say(line)
    for text in sorted({f"{bench.entries[at].point}: {error.message}" for at, error in refused.items()}):
        console.say("\n  ".join(wrapped(f"- {printable(text)}", _COLUMNS)))
    total = " and ".join(f"{figure(hours)} {unit}-hours" for unit, hours in _cost(plans.values()).items())
    console.say(f"\n{counted(len(plans), 'run')}, {f'at most {total}' if total else 'without a time limit'}")


def _cost(plans: Iterable[Decided]) -> dict[str, float]:
    """Hours of GPUs and of CPUs if every run reaches its limit."""
    found: dict[str, float] = {}
    for one in plans:
        each, unit = submitting.devices(one.plan)
        if limit := one.plan.allocation.time_seconds:
            found[unit] = found.get(unit, 0.0) + one.plan.allocation.nodes * each * limit / 3600
    return found


@command.command("continue", short_help="Submit the points that a bench still lacks.")
@click.argument("bench", metavar="[BENCH]", default=store.LAST)
@click.option("--failed", is_flag=True, help="Also repeat points whose run failed.")
@send_options
def continue_command(*, bench: str, failed: bool, **values: bool) -> None:
    r"""Submit the points of BENCH that have no run, refused ones too. No point is submitted twice.

    \b
    serried bench continue
    serried bench continue b-k3f9 --failed
    """
    found = store.find(bench)
    again = failed_runs(found) if failed else []
    if not again and all(entry.is_submitted for entry in found.entries):
        more = "" if failed else "; `--failed` repeats failed ones"
        console.note(f"all points of `{found.id}` are submitted{more}")
        finish(found, as_json=values["as_json"], wait=values["wait"])
        return
    send(found, **values, failed=again)


@command.command(short_help="Show a bench as a table, picture, CSV or JSON.")
@click.argument("bench", metavar="[BENCH]", default=store.LAST)
@run_view.as_json
@click.option("--csv", "as_csv", is_flag=True, help="Print all runs as CSV.")
@click.option("--markdown", "as_markdown", is_flag=True, help="Print a table for a README.")
@click.option(
    "--plot",
    "picture",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Also draw throughput and efficiency into FILE: .png, .svg or .pdf.",
)
def show(*, bench: str, as_json: bool, as_csv: bool, as_markdown: bool, picture: Path | None) -> None:
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
    results, figures = read(found)
    if as_csv:
        console.out(bench_csv(found, figures).rstrip("\n"))
    elif as_markdown:
        console.out(markdown(found, results))
    else:
        print_results(found, results, figures, as_json=as_json)
    if picture is not None:
        from serried.bench.picture import write as write_picture

        write_picture(found, results, picture)
        console.note(f"wrote {picture}")


def print_results(bench: Bench, results: BenchResults, figures: list[RunFigures], *, as_json: bool) -> None:
    """Print the tables, or as JSON the bench with its rows, and each point's run with its state."""
    if not as_json:
        out_bench(bench, results)
        return
    document = bench.to_json()
    for point, run in zip(document["points"], figures):
        point |= {"state": run.state, "reason": run.reason or None}
    rows, notes = [row.to_json() for row in results.rows], [*results.notes, *results.notes_on_steps]
    console.out_json(**document, rows=rows, device=results.device, notes=notes, advice=results.advice)
