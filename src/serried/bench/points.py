"""The grid of a bench: which sizes, launchers and methods, in which order. Pure."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from serried.base.errors import UsageError

SINGLE, DP, DDP = "single", "dp", "ddp"
METHODS = (DP, DDP)
WEAK, STRONG = "weak", "strong"
SCALINGS = (WEAK, STRONG)
MOST_POINTS = 500


@dataclass(frozen=True)
class GridPoint:
    """One run of a bench."""

    nodes: int
    ranks: int
    """On each node; with `dp` the GPUs of its only process."""
    launch: str
    method: str
    """`ddp` or `dp`; `single` for one rank."""
    scaling: str = WEAK
    batch: int | None = None
    """Samples of one rank, or GPU of `dp`, in a step; None if the program decides."""
    repeat: int = 0
    without_sync: bool = False
    """Ranks do not exchange gradients: the difference is the share of the communication."""

    @property
    def world(self) -> int:
        return self.nodes * self.ranks

    @property
    def processes(self) -> int:
        """On each node."""
        return 1 if self.method == DP else self.ranks

    @property
    def shape(self) -> str:
        return f"{self.nodes}x{self.ranks}"

    @property
    def row(self) -> GridPoint:
        """The same for all repeats, with and without synchronisation."""
        return dataclasses.replace(self, repeat=0, without_sync=False)

    @property
    def words(self) -> dict[str, int | str]:
        """The values that `--pass NAME={word}` can pass to the program."""
        batches: dict[str, int | str] = {}
        if self.batch is not None:
            per_process = self.batch * self.ranks // self.processes
            batches = {"batch": per_process, "global_batch": self.batch * self.world}
        return {"method": self.method, "nodes": self.nodes, "ranks": self.ranks, **batches}

    def __str__(self) -> str:
        return " ".join([self.shape, *self.labels])

    @property
    def labels(self) -> list[str]:
        """Launcher, method and scaling, where they say something."""
        strong = [STRONG] if self.scaling == STRONG else []
        return [self.launch if self.method == DDP else self.method, *strong]

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def grid(
    *,
    nodes: Sequence[int],
    ranks: Sequence[int],
    launches: Sequence[str],
    methods: Sequence[str] = (DDP,),
    scalings: Sequence[str] = (WEAK,),
    batch: int | None = None,
    repeats: int = 1,
    communication: bool = False,
) -> list[GridPoint]:
    """The points, small ones first, and all of them before the second repeat.

    One rank is one point, whatever starts it: `single`. `dp` is one process on one node. With `communication`, each
    point that exchanges gradients is followed by one that does not.

    Raises UsageError for too many points, and for a batch that `strong` cannot divide.
    """
    if STRONG in scalings and batch is None:
        raise UsageError("`--scaling strong` needs `--batch`", hint="--batch N: the samples of all ranks in one step")
    points: dict[GridPoint, None] = {}
    for node_count, rank_count in sorted(itertools.product(nodes, ranks), key=lambda pair: (pair[0] * pair[1], pair)):
        for scaling in scalings:
            world = node_count * rank_count
            if scaling == STRONG and batch is not None and batch % world:
                raise UsageError(
                    f"`--batch {batch}` cannot be divided among {world} ranks", hint="`--scaling strong` divides it"
                )
            own = batch // world if scaling == STRONG and batch is not None else batch
            for method, launch in _ways(node_count, rank_count, methods, launches):
                known = WEAK if method == SINGLE else scaling
                points[GridPoint(node_count, rank_count, launch, method, known, own)] = None
    ordered = list(_repeated(list(points), repeats, communication=communication))
    if not ordered:
        raise UsageError("no point is left", hint="`--method dp` runs on one node only")
    if len(ordered) > MOST_POINTS:
        raise UsageError(f"these are {len(ordered)} runs, and a bench has at most {MOST_POINTS}")
    return ordered


def _ways(nodes: int, ranks: int, methods: Sequence[str], launches: Sequence[str]) -> list[tuple[str, str]]:
    if nodes * ranks == 1:
        return [(SINGLE, launches[0])]
    of_dp = [(DP, SINGLE)] if DP in methods and nodes == 1 else []
    return [*of_dp, *((DDP, launch) for launch in launches if DDP in methods)]


def _repeated(points: Sequence[GridPoint], repeats: int, *, communication: bool) -> Iterator[GridPoint]:
    for repeat in range(repeats):
        for point in points:
            yield dataclasses.replace(point, repeat=repeat)
            if communication and point.method == DDP:
                yield dataclasses.replace(point, repeat=repeat, without_sync=True)
