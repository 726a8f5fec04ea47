"""`serried bench hpc-helper`: HPC_helper's benchmark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from serried.bench import hpc_helper, store
from serried.bench.submitting import BenchRequest
from serried.cli import bench_continue, bench_scaling, options


@click.command(cls=options.Sorted)
@click.option(
    "--nodes", default="1,2", metavar="N,N,…", callback=bench_scaling.counts, help="Numbers of nodes.  [default: 1,2]"
)
@click.option("--ranks", type=click.IntRange(1), default=4, metavar="N", help="Ranks on each node.  [default: 4]")
@click.option(
    "--launch",
    default=",".join(hpc_helper.LAUNCHES),
    metavar="KIND,…",
    callback=bench_scaling.words(),
    help="Launchers of several nodes; the first also starts the ranks of one.  [default: torchrun,mpirun]",
)
@bench_scaling.repeat_option
@click.option(
    "--data",
    type=click.Path(resolve_path=True, path_type=Path),
    metavar="DIR",
    help="MNIST's four files.  [default: noise of the same size]",
)
@click.option(
    "--scale",
    type=float,
    default=1.0,
    metavar="SHARE",
    help="Fewer and smaller images and a narrower network: 0.01 for CPUs.  [default: 1]",
)
@bench_scaling.submit_options
def command(
    *,
    nodes: tuple[int, ...],
    ranks: int,
    launch: tuple[str, ...],
    repeats: int,
    data: Path | None,
    scale: float,
    parallel: int | None,
    cluster: str | None,
    name: str | None,
    settings: tuple[str, ...],
    **values: Any,
) -> None:
    r"""Repeat HPC_helper's benchmark: ResNet-50 on one GPU, by DataParallel, and by DDP on one node and on several.

    \b
    serried bench hpc-helper                            2 nodes with 4 GPUs each
    serried bench hpc-helper --nodes 1 --ranks 8 --data ~/mnist
    serried bench hpc-helper --scale 0.01 --ranks 2     a minute on CPUs
    serried bench show                                  and the published figures

    Images of 128 x 128, Adam with 1e-4, float32 without TF32, 768 images per GPU, five epochs. The time is that of
    training alone.
    """
    size = hpc_helper.scale(scale)
    if data is not None:
        hpc_helper.check_data(data)
    own = {**size.settings, **({"data": str(data)} if data else {})}
    overrides = {f"config.{key}": value for key, value in own.items()}
    base = options.overrides(values, settings)
    request = BenchRequest(
        str(hpc_helper.PROJECT),
        store.HPC_HELPER,
        overrides={**overrides, **base},
        cluster=cluster,
        passed={"batch_size": "{batch}"},
        parallel=parallel,
    )
    grid = hpc_helper.points(nodes, ranks, launch, size.batch, repeats)
    about = {"data": str(data) if data else None, "scale": scale}
    bench = bench_scaling.new_bench(store.HPC_HELPER, request, grid, name=name, warm_up="10%", about=about)
    bench_continue.send(bench, **bench_continue.how(values))
