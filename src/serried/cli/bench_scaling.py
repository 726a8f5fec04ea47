"""`serried bench scaling`: a run for each point of a grid."""

from __future__ import annotations

import inspect
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import click

from serried.bench import measure, points, store, submitting
from serried.bench.store import Bench, PointRun
from serried.bench.submitting import BenchRequest
from serried.cli import bench_continue, options
from serried.errors import UsageError
from serried.protocol import printed_metric
from serried.protocol.times import iso
from serried.submission.request import Request, decide

Function = Callable[..., Any]


class TakesProgram(options.TakesCommand):
    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return ["[OPTIONS]", "[EXPERIMENT | -- COMMAND...]"]


def counts(ctx: click.Context, param: click.Parameter, text: str) -> tuple[int, ...]:  # noqa: ARG001
    """`1,2,4` as numbers."""
    try:
        found = tuple(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError:
        found = ()
    if not found or min(found) < 1:
        raise UsageError(
            f"`{param.opts[0]} {text}` is not a list of numbers", hint=f"for example `{param.opts[0]} 1,2,4`"
        )
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


repeat_option = click.option(
    "--repeat", "repeats", type=click.IntRange(1), default=1, metavar="N", help="Runs of each point.  [default: 1]"
)
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
        default=points.DDP,
        metavar="dp,ddp",
        callback=words(points.METHODS),
        help="ddp: a process for each rank; dp: DataParallel, one process on one node.  [default: ddp]",
    ),
    repeat_option,
    click.option(
        "--communication",
        is_flag=True,
        help="Also run each point without exchanging gradients, for the share of the communication.",
    ),
    click.option(
        "--scaling",
        "scalings",
        default=points.WEAK,
        metavar="weak,strong",
        callback=words(points.SCALINGS),
        help="weak: each rank has the whole batch; strong: all ranks share it.  [default: weak]",
    ),
    click.option("--batch", type=click.IntRange(1), metavar="N", help="Samples of one rank in a step."),
)
"""The arguments of `points.grid`."""
submit_options = options.together(
    options.resources_of_points,
    click.option(
        "--parallel",
        type=click.IntRange(1),
        metavar="N",
        help="Most points that run at once.  [default: all; on this machine 1]",
    ),
    click.option("--cluster", metavar="NAME", help="Where to run; `serried clusters` lists them."),
    click.option("--name", metavar="NAME", help="Name of the bench, and of its runs."),
    click.option(
        "--set", "settings", metavar="KEY=VALUE", multiple=True, help="Any setting, as in `--set config.epochs=1`."
    ),
    bench_continue.send_options,
)


@click.command(cls=TakesProgram)
@click.argument("experiment", required=False)
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
@submit_options
def command(
    *,
    warm_up: str,
    passed: tuple[str, ...],
    source: str | None,
    parallel: int | None,
    cluster: str | None,
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
    sizes = {name: values.pop(name) for name in inspect.signature(points.grid).parameters}
    base = options.request(values, cluster)
    if base.is_script:
        raise UsageError("a job script has a size of its own", hint="name an experiment, or a command after `--`")
    request = BenchRequest(
        str(Path.cwd()),
        base.experiment,
        base.command,
        base.overrides,
        cluster,
        passed=_passed(passed, has_batch=sizes["batch"] is not None),
        parallel=parallel,
    )
    grid = points.grid(**sizes)
    submitting.check_passed(request.passed, grid)
    bench = new_bench(request, grid, name=base.name, warm_up=warm_up, source=source)
    bench_continue.send(bench, **bench_continue.how(values))


def _passed(texts: Iterable[str], *, has_batch: bool) -> dict[str, str]:
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise UsageError(f"`--pass {text}` is not `NAME=TEXT`", hint="for example `--pass batch_size={batch}`")
        found[name.strip()] = value
    takes_batch = any("batch}" in value for value in found.values())
    return found if takes_batch or not has_batch else {"batch_size": "{batch}", **found}


def new_bench(
    request: BenchRequest,
    grid: Iterable[points.GridPoint],
    *,
    name: str | None,
    warm_up: str,
    source: str | None = None,
) -> Bench:
    """A bench that is not written yet."""
    measure.warm_up_steps(warm_up, 1)
    plain = Request(request.experiment, request.command, overrides=request.overrides, cluster=request.cluster)
    plan = decide(plain, Path(request.directory), os.environ).plan
    own = {
        **request.to_json(),
        "name": name or plan.name,
        "on_gpus": plan.allocation.gpus > 0,
    }
    metric = plan.metric
    if source is None and metric and metric.name == measure.RATE and metric.source:
        source = metric.source
    return Bench(
        store.new_id(),
        own["name"],
        iso(time.time()),
        own,
        tuple(map(PointRun, grid)),
        warm_up,
        source or "",
    )
