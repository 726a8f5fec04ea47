"""HPC_helper's comparison of one GPU, DataParallel and DistributedDataParallel, and the seconds that it published.

The source is the README of https://github.com/DSL-Lab/HPC_helper: ResNet-50 with one channel and ten classes, MNIST
scaled to 128 x 128, Adam with 1e-4, float32 without TF32, five epochs. The seconds are those of the training loops,
first step and loading included, summed over the epochs, of one run. Batches are 768 per GPU; on Vector 512 on one GPU
and 2,048 on four and on eight.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from serried import templates
from serried.bench.measure import RunFigures
from serried.bench.points import DDP, DP, SINGLE, GridPoint, repeated
from serried.bench.results import BenchResults
from serried.errors import UsageError

PROJECT = Path(templates.__file__).parent / "hpc-helper"
BATCH, EPOCHS, IMAGES = 768, 5, 60_000
LAUNCHES = ("torchrun", "mpirun")
FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
SYSTEMS = {"SOCKEYE": "V100", "CC": "V100", "VECTOR": "RTX 6000"}
"""HPC_helper's names of the three clusters, with their GPUs: V100-SXM2-32GB, and RTX6000-24GB."""
PUBLISHED: Mapping[tuple[str, str], tuple[float | None, float, float]] = {
    ("1x1", SINGLE): (363.4, 309.7, 425.0),
    ("1x4", DP): (103.5, 114.2, 133.9),
    ("1x4", "torchrun"): (93.7, 85.2, 113.4),
    ("2x4", "mpirun"): (55.7, 47.0, 60.9),
    ("2x4", "torchrun"): (None, 47.4, 60.6),  # started by `srun`
}
"""Seconds on the three systems, by shape and way of starting."""


@dataclass(frozen=True)
class Scale:
    """The benchmark as it is (1), or a smaller one with the same parts."""

    share: float

    @property
    def batch(self) -> int:
        return max(4, round(BATCH * self.share))

    @property
    def settings(self) -> dict[str, int]:
        """Settings of the program. A smaller one has smaller images and a narrower network, too."""
        if self.share == 1:
            return {}
        return {"images": max(64, round(IMAGES * self.share)), "size": 32, "width": 16}


def scale(share: float) -> Scale:
    """Raises UsageError unless `share` is above 0 and at most 1."""
    if not 0 < share <= 1:
        raise UsageError(f"`--scale {share:g}` must be above 0, and at most 1", hint="`--scale 0.01` on CPUs")
    return Scale(share)


def check_data(folder: Path) -> None:
    """Raises UsageError if a file of MNIST is missing."""
    missing = [name for name in FILES if not (folder / name).exists() and not (folder / f"{name}.gz").exists()]
    if missing:
        raise UsageError(
            f"`{folder}` does not have `{missing[0]}`, with or without `.gz`",
            hint="without `--data`, the images are noise of the same size",
        )


def points(nodes: Sequence[int], ranks: int, launches: Sequence[str], batch: int, repeats: int) -> list[GridPoint]:
    """HPC_helper's settings: one rank, DataParallel, and DDP on one node, and on several by each launcher."""
    found = [GridPoint(1, 1, launches[0], SINGLE, batch=batch)]
    if ranks > 1:
        found.append(GridPoint(1, ranks, SINGLE, DP, batch=batch))
    for count in sorted(nodes):
        ways = launches if count > 1 else launches[:1]
        found += [GridPoint(count, ranks, launch, DDP, batch=batch) for launch in ways if count * ranks > 1]
    return list(repeated(found, repeats))


class ComparisonRow(NamedTuple):
    """A row of the comparison."""

    point: GridPoint
    seconds: float | None
    """Of training in all epochs; None if no run has trained them all."""
    rate: float | None
    """Images per second, first step and loading included."""
    efficiency: float | None
    published: tuple[float | None, ...]
    """Images per second of each system; None where it was not measured."""
    published_efficiency: tuple[float | None, ...]
    state: str


def compare(results: BenchResults) -> list[ComparisonRow]:
    """Our figures, means over repeats, beside the published ones; then the published settings that we have not run."""
    found: list[ComparisonRow] = []
    one: float | None = None
    for row in results.rows:
        runs = [run for run in row.runs if run.is_measured and _is_whole(run)] if row.is_comparable else []
        seconds = fmean(run.logged["train_seconds"] for run in runs) if runs else None
        rates = [run.logged["train_samples"] / run.logged["train_seconds"] for run in runs]
        rate = fmean(rates) if rates else None
        one = rate if row.point.method == SINGLE else one
        efficiency = rate / one / row.point.world if rate and one and row.speed_up is not None else None
        state = next((run.state for run in row.runs if run.state), "-")
        found.append(ComparisonRow(row.point, seconds, rate, efficiency, *_published(row.point), state))
    known = {_key(setting.point) for setting in found}
    for shape, way in PUBLISHED:
        nodes, ranks = map(int, shape.split("x"))
        point = GridPoint(nodes, ranks, way, way if way in (SINGLE, DP) else DDP)
        if (shape, way) not in known:
            found.append(ComparisonRow(point, None, None, None, *_published(point), "-"))
    return found


def document(results: BenchResults) -> dict[str, Any]:
    """The comparison as JSON, with the published figures of each system."""
    return {
        "comparison": [
            {
                "nodes": row.point.nodes,
                "ranks": row.point.ranks,
                "how": " ".join(row.point.labels),
                "seconds": row.seconds,
                "images_per_second": row.rate,
                "efficiency": row.efficiency,
                "published": {
                    system: {"images_per_second": rate, "efficiency": efficiency}
                    for system, rate, efficiency in zip(SYSTEMS, row.published, row.published_efficiency, strict=True)
                    if rate is not None
                },
            }
            for row in compare(results)
        ],
    }


def _key(point: GridPoint) -> tuple[str, str]:
    return point.shape, point.launch if point.method == DDP else point.method


def _published(point: GridPoint) -> tuple[tuple[float | None, ...], tuple[float | None, ...]]:
    """Images per second and efficiency on each system."""
    seconds = PUBLISHED.get(_key(point), (None, None, None))
    alone = PUBLISHED["1x1", SINGLE]
    rates = tuple(None if each is None else EPOCHS * IMAGES / each for each in seconds)
    efficiencies = [
        one / each / point.world if one and each else None for one, each in zip(alone, seconds, strict=True)
    ]
    return rates, tuple(efficiencies)


def _is_whole(run: RunFigures) -> bool:
    return run.logged.get("epochs", 0) >= EPOCHS and run.logged.get("train_seconds", 0) > 0
