"""The grid of a bench (sizes, launchers, methods), and its file, which has the run of each point.

Only the command that submits writes it. A point gets its run, durably, before that is submitted. So a command that was
killed leaves either no run for a point, or one whose record tells whether the scheduler has it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from serried.base.errors import UsageError, did_you_mean
from serried.base.files import claim, make_directory, read_json, write_json
from serried.base.processes import Process, myself
from serried.schema import SCHEMA
from serried.schema.layout import state_directory

SINGLE, DP, DDP = "single", "dp", "ddp"
METHODS = (DP, DDP)
WEAK, STRONG = "weak", "strong"
SCALINGS = (WEAK, STRONG)
MOST_POINTS = 500


@dataclass(frozen=True)
class GridPoint:
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
    sizes = sorted(itertools.product(nodes, ranks), key=lambda pair: (pair[0] * pair[1], pair))
    for (node_count, rank_count), scaling in itertools.product(sizes, scalings):
        world, own = node_count * rank_count, batch
        if scaling == STRONG and batch is not None:
            own, rest = divmod(batch, world)
            if rest:
                message = f"`--batch {batch}` cannot be divided among {world} ranks"
                raise UsageError(message, hint="`--scaling strong` divides it")
        ways = [(DP, SINGLE)] if DP in methods and node_count == 1 else []
        ways += [(DDP, launch) for launch in launches if DDP in methods]
        for method, launch in ways if world > 1 else [(SINGLE, launches[0])]:
            known = WEAK if method == SINGLE else scaling
            points[GridPoint(node_count, rank_count, launch, method, known, own)] = None
    ordered = [
        dataclasses.replace(point, repeat=repeat, without_sync=without_sync)
        for repeat, point, without_sync in itertools.product(range(repeats), points, (False, True)[: 1 + communication])
        if point.method == DDP or not without_sync
    ]
    if not ordered:
        raise UsageError("no point is left", hint="`--method dp` runs on one node only")
    if len(ordered) > MOST_POINTS:
        raise UsageError(f"these are {len(ordered)} runs, and a bench has at most {MOST_POINTS}")
    return ordered


_LETTERS = "abcdefghjkmnpqrstuvwxyz23456789"
LAST = "last"


@dataclass(frozen=True)
class PointRun:
    point: GridPoint
    run: str | None = None
    """Written before the run is submitted."""
    is_submitted: bool = False
    refusal: str = ""
    """Why it has no run."""

    def to_json(self) -> dict[str, Any]:
        own = {"run": self.run, "submitted": self.is_submitted, "refusal": self.refusal or None}
        return {**dataclasses.asdict(self.point), **own}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> PointRun:
        point = GridPoint(**{each.name: value[each.name] for each in dataclasses.fields(GridPoint)})
        return cls(point, value["run"], bool(value["submitted"]), value["refusal"] or "")


@dataclass(frozen=True)
class Bench:
    id: str
    name: str
    created: str
    request: Mapping[str, Any]
    """What to submit at each point: see `submitting.py`."""
    entries: tuple[PointRun, ...]
    warm_up: str = "10%"
    """The steps that are left out at the beginning of each run: a number, or a share."""
    source: str = ""
    """Where a program without the training library reports samples per second: `stdout:REGEX`, `file:PATH:KEY`."""

    @property
    def path(self) -> Path:
        return folder() / f"{self.id}.json"

    @property
    def figures_path(self) -> Path:
        """The figures of ended runs, by run: they outlive the runs' directories."""
        return folder() / self.id / "figures.json"

    @property
    def missing(self) -> list[int]:
        """The points that no command has begun to submit."""
        return [at for at, entry in enumerate(self.entries) if entry.run is None and not entry.refusal]

    def with_entry(self, at: int, entry: PointRun) -> Bench:
        return dataclasses.replace(self, entries=(*self.entries[:at], entry, *self.entries[at + 1 :]))

    def write(self) -> Bench:
        make_directory(folder())
        write_json(self.path, self.to_json())
        return self

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "bench": self.id,
            "name": self.name,
            "created": self.created,
            "request": dict(self.request),
            "warm_up": self.warm_up,
            "metric_from": self.source or None,
            "points": [entry.to_json() for entry in self.entries],
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Bench:
        return cls(
            id=value["bench"],
            name=value["name"],
            created=value["created"],
            request=value["request"],
            entries=tuple(map(PointRun.from_json, value["points"])),
            warm_up=value["warm_up"],
            source=value["metric_from"] or "",
        )


def folder() -> Path:
    return state_directory(os.environ) / "benches"


def new_id() -> str:
    """`b-` and four letters: no run is called so."""
    while True:
        name = "b-" + "".join(secrets.choice(_LETTERS) for _ in range(4))
        if not (folder() / f"{name}.json").exists():
            return name


def benches() -> list[Bench]:
    """All benches, the newest first. Damaged files are left out."""
    found = []
    for path in folder().glob("*.json"):
        with contextlib.suppress(UsageError):
            found.append(_read(path))
    return sorted(found, key=lambda bench: (bench.created, bench.id), reverse=True)


def find(word: str) -> Bench:
    """The bench of an id, a name (the newest with it) or `last`. Raises UsageError."""
    path = folder() / f"{word}.json"
    if path.parent == folder() and path.is_file():
        return _read(path)
    known = benches()
    chosen = [bench for bench in known if word in (LAST, bench.name)]
    if chosen:
        return chosen[0]
    if not known:
        raise UsageError("no bench has run yet", hint="serried bench --help")
    ids = [bench.id for bench in known]
    raise UsageError(f"no bench is called `{word}`", hint=did_you_mean(word, ids) or "`serried bench` lists them")


def _read(path: Path) -> Bench:
    try:
        return Bench.from_json(read_json(path) or {})
    except (KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"`{path}` is not the file of a bench ({error!r})") from error


@contextlib.contextmanager
def only_writer(bench: str) -> Iterator[None]:
    """No other command submits points of the bench meanwhile. Raises UsageError if one does.

    Each writer takes the next number, by a link that only one process can create. The number of a process that has
    ended is free. That of another machine's process is not: processes elsewhere cannot be seen.
    """
    make_directory(folder())
    mine = json.dumps({"host": os.uname().nodename, **myself()._asdict()})
    found = [path.name.rpartition("-")[2] for path in folder().glob(f".{bench}.writer-*")]
    taken = [int(number) for number in found if number.isdecimal()]
    number = max(taken, default=0)
    if number:
        owner = json.loads(_claim(bench, number).read_text(encoding="utf-8"))
        _check_ended(owner, _claim(bench, number))
    holder = claim(_claim(bench, number + 1), mine)
    if holder != mine:
        _check_ended(json.loads(holder), _claim(bench, number + 1))
        raise UsageError(f"another command has just submitted points of `{bench}`", hint=f"serried bench show {bench}")
    for older in taken:
        _claim(bench, older).unlink(missing_ok=True)
    try:
        yield
    finally:
        write_json(_claim(bench, number + 1), {"host": "", "pid": 0, "started": ""})


def _check_ended(owner: Mapping[str, Any], path: Path) -> None:
    here = os.uname().nodename
    if not owner["host"] or (owner["host"] == here and not Process(int(owner["pid"]), str(owner["started"])).is_alive):
        return
    hint = "wait until it is done" + ("" if owner["host"] == here else f"; if it has ended, delete `{path}`")
    raise UsageError(f"process {owner['pid']} on `{owner['host']}` is submitting points of this bench", hint=hint)


def _claim(bench: str, number: int) -> Path:
    return folder() / f".{bench}.writer-{number}"
