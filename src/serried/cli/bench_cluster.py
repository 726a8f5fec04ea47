"""`serried bench launch`, `checkpoint`, `stage`, `submit` and `allreduce`: what runs pay on a cluster."""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from serried import shell
from serried.bench import cluster as bench
from serried.cli import options
from serried.errors import SerriedError, UsageError
from serried.processes import age
from serried.protocol.sizes import counted, spell
from serried.submission.deliver import Prepared
from serried.submission.request import Request
from serried.ui import console
from serried.ui.text import fine_time, fit, printable

_LOCAL = "local"
_CHECKPOINT_EVERY = 300.0
_LEAST_SHARE = 0.0001
_PATH_COLUMNS = 26
_MOST_BYTES = 10**15
_LEAST_STATE = 10**5


def _size(context: click.Context, parameter: click.Parameter, text: str) -> int:  # noqa: ARG001
    """`100k`, `1.5G`: decimal, as sizes are printed."""
    match = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]{1,6})?)([kMGT]?)B?", text)
    value = int(float(match[1]) * 1000 ** " kMGT".index(match[2] or " ")) if match else 0
    if not 0 < value <= _MOST_BYTES:
        raise UsageError(f"`{parameter.opts[0]} {text}` is not a size", hint="for example `100k`, `64M` or `1.5G`")
    return value


def _bench(*own: Any) -> Callable[[Any], Any]:
    """A bench that runs as a job: its own options, then those of every run."""
    return options.together(
        click.command(cls=options.Sorted),
        click.argument("experiment", required=False),
        *own,
        options.resources,
        options.common,
        click.option("--dry-run", is_flag=True, help="Print the plan and submit nothing."),
        click.option("--json", "as_json", is_flag=True, help="Print JSON."),
    )


_python = click.option("--python", default="python", metavar="PATH", help="A Python with torch.  [default: python]")


def _request(values: dict[str, Any]) -> Request:
    request = options.request(values, values["cluster"])
    if request.is_script:
        raise UsageError("a job script has a program of its own", hint="name an experiment, for its resources")
    return request


def _rate(per_second: float) -> str:
    return f"{spell(int(per_second))}/s"


@_bench(_python)
def launch_command(*, python: str, dry_run: bool, as_json: bool, **values: Any) -> None:
    r"""Measure the time from `serried submit` to the first step of a small model.

    \b
    serried bench launch                    the only experiment's resources
    serried bench launch train --nodes 4    with its environment and its data
    """
    began = time.time() - age()
    prepared = bench.prepare_probe(_request(values), "launch", {}, python, keeps_data=True)
    if dry_run:
        options.dry_run(prepared, as_json=as_json)
        return
    with console.status_line(f"run {prepared.plan.run}: from submit to the first step"):
        run, stages = bench.run_launch(prepared, began)
    total = sum(stage.seconds for stage in stages)
    if as_json:
        console.out_json(run=run, seconds=total, stages=[vars(stage) for stage in stages])
        return
    reached, rows = 0.0, []
    for stage in stages:
        reached += stage.seconds
        rows.append([stage.name, fine_time(stage.seconds), f"{stage.seconds / (total or 1):.0%}", fine_time(reached)])
    console.out_table(["UNTIL", "TAKES", "SHARE", "AFTER"], rows)
    longest = max(stages, key=lambda stage: stage.seconds).name
    console.out(f"\n{_LAUNCH_ADVICE.get(longest, f'most of the time passes before: {longest}')}")


_LAUNCH_ADVICE = {
    "queue and job script": "most of the time is the queue: `serried queue` shows what would start sooner",
    "imports": "most of the time is imports: a container or a node's own disk helps",
    "ranks connected": "most of the time is connecting ranks: a DNS server that does not answer delays torch there",
    "first step": "most of the time is the first step: torch loads the rest of itself there",
    "data staged": "most of the time is staging: see `serried bench stage`",
}


@_bench(
    _python,
    click.option("--to", multiple=True, metavar="DIR", help="A folder; `local`: the node's disk. May be repeated."),
    click.option("--size", default="256M", callback=_size, metavar="SIZE", help="Bytes of state.  [default: 256M]"),
    click.option("--rounds", type=click.IntRange(1), default=3, metavar="N", help="Saves of each.  [default: 3]"),
)
def checkpoint_command(
    *, python: str, to: tuple[str, ...], size: int, rounds: int, dry_run: bool, as_json: bool, **values: Any
) -> None:
    r"""Measure what a checkpoint costs on each file system: stall of the training, and bandwidth.

    \b
    serried bench checkpoint --size 4G      the root of runs, the node's disk
    serried bench checkpoint --to /project/ada --to local
    """
    if size < _LEAST_STATE:
        raise UsageError(f"a state of {spell(size)} measures nothing", hint="--size 1M or more")
    request = _request(values)
    places = _places(to, bench.prepare_probe(request, "checkpoint", {}, python))
    prepared = bench.prepare_probe(request, "checkpoint", {"to": places, "bytes": size, "rounds": rounds}, python)
    if dry_run:
        options.dry_run(prepared, as_json=as_json)
        return
    with console.status_line(f"run {prepared.plan.run}: checkpoints of {spell(size)}"):
        found = bench.run_probe(prepared, "checkpoint")
    good = [row for row in found["rows"] if "problem" not in row]
    for row in found["rows"]:
        if "problem" in row:
            console.warning(f"cannot write to `{row['to']}`: {printable(row['problem'])}")
    if not good:
        raise SerriedError("no checkpoint was saved", hint=f"serried logs {found['run']}")
    if as_json:
        console.out_json(**found, bytes=size)
    else:
        _print_checkpoints(good, size)


def _places(to: Sequence[str], draft: Prepared) -> list[str]:
    """Folders, or `local`. By default both the root of runs and the node's disk, if the run has one node."""
    is_one = draft.plan.allocation.nodes == 1
    if _LOCAL in to and not is_one:
        raise UsageError("`--to local` measures one node, and the run has several", hint="--nodes 1")
    places = to or [draft.plan.site.root, *([_LOCAL] if is_one else [])]
    return [place if place == _LOCAL else str(Path(place).absolute()) for place in places]


def _print_checkpoints(rows: Sequence[dict[str, Any]], size: int) -> None:
    console.out_table(
        ["TO", "FILE SYSTEM", "STALL", "DURABLE", "BANDWIDTH", "TORCH.SAVE"],
        [
            [
                _LOCAL if row["is_local"] else fit(printable(row["to"]), _PATH_COLUMNS),
                row["file_system"],
                *map(fine_time, (row["stall"], row["durable"])),
                _rate(size / row["durable"]),
                fine_time(row["plain"]),
            ]
            for row in rows
        ],
    )
    share = max(row["stall"] for row in rows) / _CHECKPOINT_EVERY
    most = f"{share:.2%}" if share >= _LEAST_SHARE else "less than 0.01%"
    console.out(f"\na checkpoint every 5 minutes costs a training {most} of its time")


@_bench(
    click.option("--files", type=click.IntRange(1), default=1000, metavar="N", help="Files.  [default: 1000]"),
    click.option("--size", default="100k", callback=_size, metavar="SIZE", help="Size of each.  [default: 100k]"),
)
def stage_command(*, files: int, size: int, dry_run: bool, as_json: bool, **values: Any) -> None:
    r"""Measure how fast data comes from the shared file system to the nodes' own disks.

    \b
    serried bench stage --nodes 2 --files 10000 --size 100k   many small files
    serried bench stage --nodes 2 --files 8 --size 1G         few large ones
    """
    request = _request(values)
    draft = bench.prepare_stage(request, str(Path.cwd()))
    if dry_run:
        options.dry_run(draft, as_json=as_json)
        return
    root = Path(draft.plan.site.root)
    with (
        shell.exit_on_signals(),
        console.status_line(f"staging {counted(files, 'file')} of {spell(size)}"),
        bench.sample_files(root, files, size) as folder,
    ):
        run, nodes = bench.run_stage(bench.prepare_stage(request, str(folder)))
    if not any(node.files for node in nodes):
        raise SerriedError("this cluster copies no data to nodes: ranks read it where it is", hint="serried docs data")
    if as_json:
        console.out_json(run=run, files=files, bytes=files * size, nodes=[vars(node) for node in nodes])
        return
    rows = [
        [printable(node.host), f"{node.files:,}", spell(node.bytes), fine_time(node.seconds), *_rates(node)]
        for node in nodes
    ]
    console.out_table(["NODE", "FILES", "SIZE", "TAKES", "FILES/S", "BANDWIDTH"], rows)
    slowest = max((node.seconds for node in nodes), default=0.0)
    console.out(f"\nstaging delays ranks by {fine_time(slowest)}; it pays off if epochs save more than that")


def _rates(node: bench.NodeStaging) -> list[str]:
    seconds = max(node.seconds, 1e-3)
    return [f"{node.files / seconds:,.0f}", _rate(node.bytes / seconds)]


@_bench(click.option("--rounds", type=click.IntRange(1), default=5, metavar="N", help="Jobs.  [default: 5]"))
def submit_command(*, rounds: int, dry_run: bool, as_json: bool, **values: Any) -> None:
    r"""Measure how fast the scheduler answers, with held jobs that are cancelled at once. None stays.

    \b
    serried bench submit
    serried bench submit --rounds 20 --cluster fir
    """
    prepared = bench.prepare_submit(_request(values))
    if dry_run:
        options.dry_run(prepared, as_json=as_json)
        return
    with console.status_line(f"submitting and cancelling {counted(rounds, 'job')}"):
        taken = bench.measure_scheduler(prepared, rounds)
    kinds = {"submit a job": taken.submit, "query its state": taken.query, "cancel it": taken.cancel}
    if as_json:
        console.out_json(scheduler=prepared.plan.site.scheduler, cluster=prepared.plan.site.name, **vars(taken))
        return
    rows = [[name, *map(fine_time, (statistics.median(each), min(each), max(each)))] for name, each in kinds.items()]
    console.out_table(["COMMAND", "MEDIAN", "LEAST", "MOST"], rows)
    console.out(f"\nthe scheduler needs {fine_time(statistics.median(taken.submit))} of each `serried submit`")


@_bench(
    _python,
    click.option("--from", "least", default="1k", callback=_size, metavar="SIZE", help="Smallest.  [default: 1k]"),
    click.option("--to", "most", default="64M", callback=_size, metavar="SIZE", help="Largest.  [default: 64M]"),
)
def allreduce_command(*, python: str, least: int, most: int, dry_run: bool, as_json: bool, **values: Any) -> None:
    r"""Measure the bus bandwidth of all-reduces by size, as NVIDIA's nccl-tests define it.

    \b
    serried bench allreduce --nodes 2             gloo between two nodes
    serried bench allreduce --nodes 2 --gpus 4    NCCL too, on eight GPUs
    """
    if least > most or least < 4:
        raise UsageError("`--from` must be 4 bytes or more, and not more than `--to`", hint="--from 1k --to 64M")
    prepared = bench.prepare_probe(_request(values), "allreduce", {"from": least, "to": most}, python)
    if prepared.plan.world_size < 2:
        raise UsageError("`serried bench allreduce` needs two ranks or more", hint="--nodes 2, or --ranks 2")
    if dry_run:
        options.dry_run(prepared, as_json=as_json)
        return
    with console.status_line(f"run {prepared.plan.run}: all-reduces on {prepared.plan.world_size} ranks"):
        found = bench.run_probe(prepared, "allreduce")
    factor = bench.bus_factor(found["ranks"])
    rows = [
        {**row, "algbw": row["bytes"] / row["seconds"], "busbw": row["bytes"] / row["seconds"] * factor}
        for row in found["rows"]
    ]
    if as_json:
        console.out_json(run=found["run"], nodes=prepared.plan.allocation.nodes, ranks=found["ranks"], rows=rows)
        return
    console.out_table(
        ["BACKEND", "SIZE", "TIME", "ALGBW", "BUSBW"],
        [
            [row["backend"], spell(row["bytes"]), fine_time(row["seconds"]), _rate(row["algbw"]), _rate(row["busbw"])]
            for row in rows
        ],
    )
    console.out(f"\n{_meaning_of(rows, found['ranks'])}")


def _meaning_of(rows: Sequence[dict[str, Any]], ranks: int) -> str:
    """About the last backend, which is that of the GPUs if there are any."""
    own = [row for row in rows if row["backend"] == rows[-1]["backend"]]
    best = max(own, key=lambda row: row["busbw"])
    return (
        f"{own[0]['backend']} on {ranks} ranks: {_rate(best['busbw'])} at {spell(best['bytes'])}, "
        f"and {fine_time(own[0]['seconds'])} for a small tensor"
    )
