"""What a running attempt does now: `live.json` of its head agent (`serried.schema.live`), and the run's progress.

A damaged file, or one of another version, counts as none. A value that is not valid counts as missing.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from serried.base.files import open_regular, read_journal
from serried.base.text import iso, show_minutes
from serried.base.text import progress as progress_text
from serried.schema import SCHEMA, series
from serried.schema.endings import Condition
from serried.schema.events import JournalEvent
from serried.schema.layout import AttemptDirectory
from serried.schema.live import SHORTEST_SECONDS
from serried.schema.reasons import Reason

_SILENT_SECONDS = 300.0
_MUCH_WAITING = 0.2
"""A share of the time."""
MOST_BYTES = 8 << 20
_AFTER_STAGING = frozenset(
    {JournalEvent.STAGED, JournalEvent.STARTING_RANKS, JournalEvent.LAUNCH_FAILED, JournalEvent.STOPPING}
)
_DURATIONS = ("seconds_left", "limit_seconds_left", "notice_seconds_left")
_LATEST = 32_503_680_000.0
"""The year 3000: a later time is damage."""
STALE_INTERVALS, CACHE_SECONDS = 4, 60.0
"""A file is stale after so many of its own intervals. Network file systems may show an old one for another minute."""
STALLED_STEPS, STALLED_SECONDS, STALLED_INTERVALS = 10, 60.0, 4
"""A training stalls that has made no step for so many times the usual, for at least this long, and for several
intervals of the file, in which nobody looked."""


@dataclass(frozen=True)
class LiveGpu:
    gpu: int
    name: str
    busy: float | None = None
    """Percent."""
    memory: float | None = None
    memory_total: float | None = None
    power: float | None = None
    power_cap: float | None = None
    temperature: float | None = None


@dataclass(frozen=True)
class LiveRank:
    rank: int
    cpu: float | None = None
    memory: float | None = None
    output_age: float | None = None
    step: float | None = None
    total_steps: float | None = None
    step_age: float | None = None
    step_gap: float | None = None
    """Seconds between two reported steps, before they stopped coming."""
    usual_pause: float | None = None
    """Seconds without a step that are usual, by the head agent."""
    steps_per_second: float | None = None
    samples_per_second: float | None = None
    data_wait: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    """May have values that are not finite: a loss of NaN is worth knowing."""


@dataclass(frozen=True)
class LiveNode:
    node: int
    host: str
    age: float | None = None
    cpu: float | None = None
    cpus: float | None = None
    memory: float | None = None
    memory_limit: float | None = None
    memory_scope: str = ""
    disk_free: float | None = None
    gpus: tuple[LiveGpu, ...] = ()
    ranks: tuple[LiveRank, ...] = ()


@dataclass(frozen=True)
class Live:
    t: float
    interval: float
    nodes: tuple[LiveNode, ...]
    ranks: int
    """Of all nodes, also of those that are not listed; so are `gpus`, `gpu_busy` and `samples_per_second`."""
    gpus: int
    gpu_busy: float | None = None
    samples_per_second: float | None = None
    limit_seconds_left: float | None = None
    notice_seconds_left: float | None = None
    continues: bool = False
    """Another attempt may follow this one."""
    checking: bool = False
    """Checks hold the ranks back."""
    warnings: tuple[Mapping[str, Any], ...] = ()
    """Each with a `code` and a `message`."""

    def age(self, now: float) -> float:
        """Seconds since it was written. A time in the future, by another clock, is now."""
        return max(now - self.t, 0.0)

    @property
    def recoveries(self) -> int:
        """How often ranks have started again in the attempt."""
        counts = (one.get("rounds") for one in self.warnings if one.get("code") == Reason.RECOVERED)
        return next((count for count in counts if isinstance(count, int)), 0)

    @property
    def listed_ranks(self) -> list[LiveRank]:
        return sorted((rank for node in self.nodes for rank in node.ranks), key=lambda rank: rank.rank)


@dataclass(frozen=True)
class RunProgress:
    """What a run does now. Ages are those at the time `live.t`, unless the file is stale."""

    live: Live
    age: float
    """Of the file, in seconds."""
    metric: str = ""
    """The metric that the plan names; empty for none."""

    @property
    def is_stale(self) -> bool:
        """Whether the head agent should have written since: nothing is known of the present."""
        return self.age > STALE_INTERVALS * self.live.interval + CACHE_SECONDS

    @property
    def lead(self) -> LiveRank:
        """The first rank with a step, which speaks for all: they train together. Without steps, the first rank."""
        ranks = self.live.listed_ranks or [LiveRank(0)]
        return next((rank for rank in ranks if rank.step is not None), ranks[0])

    @property
    def step(self) -> int | None:
        return None if self.lead.step is None else int(self.lead.step)

    @property
    def total_steps(self) -> int | None:
        return int(self.lead.total_steps) if self.lead.total_steps else None

    @property
    def has_all_steps(self) -> bool:
        return self.total_steps is not None and self.step is not None and self.step >= self.total_steps

    @property
    def is_stalled(self) -> bool:
        """Whether no step has come for much longer than usual. After all steps there is other work."""
        age, gap, rate = self.lead.step_age, self.lead.step_gap, self.lead.steps_per_second
        usual = gap if gap is not None else 1 / rate if rate else 0.0
        least = max(STALLED_STEPS * usual, STALLED_SECONDS, STALLED_INTERVALS * self.live.interval)
        return age is not None and age > least and not self.has_all_steps

    @property
    def may_hang(self) -> bool:
        """Whether it stalls for longer than evaluations and checkpoints have taken before."""
        return self.is_stalled and (self.lead.step_age or 0.0) > (self.lead.usual_pause or 0.0)

    @property
    def steps_per_second(self) -> float | None:
        """None if it stalls, because the last rate says nothing about the next step then."""
        return None if self.is_stalled else self.lead.steps_per_second

    @property
    def samples_per_second(self) -> float | None:
        """Of all ranks."""
        return None if self.is_stalled else self.live.samples_per_second

    @property
    def silent_seconds(self) -> float | None:
        """How long no rank has written anything, as far as ranks are listed."""
        return min((rank.output_age for rank in self.live.listed_ranks if rank.output_age is not None), default=None)

    @property
    def data_wait(self) -> float | None:
        waits = [rank.data_wait for rank in self.live.listed_ranks if rank.data_wait is not None]
        return sum(waits) / len(waits) if waits else None

    @property
    def shown_metric(self) -> tuple[str, float] | None:
        name = main_metric(self.lead.metrics, self.metric)
        return None if name is None else (name, self.lead.metrics[name])

    @property
    def seconds_left(self) -> float | None:
        """By the rate of its steps; None if the rate or the number of steps is unknown."""
        rate = self.steps_per_second
        if self.step is None or self.total_steps is None or not rate or self.is_stale or self.has_all_steps:
            return None
        left = max((self.total_steps - self.step) / rate - self.age, 0.0)
        return left if left < _LATEST else None  # a number of steps from a line of output can be anything

    @property
    def limit_seconds_left(self) -> float | None:
        """Until the scheduler ends the job."""
        return self._left(self.live.limit_seconds_left)

    @property
    def notice_seconds_left(self) -> float | None:
        """Until ranks receive the stop notice."""
        return self._left(self.live.notice_seconds_left)

    def _left(self, seconds: float | None) -> float | None:
        return None if seconds is None else max(seconds - self.age, 0.0)

    @property
    def is_cut_short(self) -> bool:
        """Whether the stop notice, or the limit, comes before the last step."""
        ends = [left for left in (self.notice_seconds_left, self.limit_seconds_left) if left is not None]
        return self.seconds_left is not None and bool(ends) and min(ends) < self.seconds_left

    @property
    def is_too_slow(self) -> bool:
        """Whether the limit comes before the last step, and no further attempt can take the rest."""
        steps, limit = self.seconds_left, self.limit_seconds_left
        return steps is not None and limit is not None and limit < steps and not self.live.continues

    def to_json(self) -> dict[str, Any]:
        """The object `progress` in --json. Durations are seconds."""
        metrics = {name: value if math.isfinite(value) else str(value) for name, value in self.lead.metrics.items()}
        return {
            "at": iso(self.live.t),
            "stale": self.is_stale,
            "step": self.step,
            "total_steps": self.total_steps,
            "step_age": self.lead.step_age,
            "stalled": self.may_hang,
            "checking": self.live.checking,
            "metrics": metrics,
            "samples_per_second": self.samples_per_second,
            "steps_per_second": self.steps_per_second,
            "output_age": self.silent_seconds,
            "data_wait": self.data_wait,
            "gpu_busy": self.live.gpu_busy,
            **{name: None if (left := getattr(self, name)) is None else round(left, 1) for name in _DURATIONS},
            "ranks": self.live.ranks,
            "warnings": [dict(warning) for warning in self.live.warnings],
        }


def main_metric(metrics: Collection[str], wanted: str) -> str | None:
    """The one of several to show: the plan's, else the loss, else the first."""
    if wanted in metrics:
        return wanted
    names = [name for name in metrics if not name.startswith("serried/")]
    losses = [name for name in names if "loss" in name.lower()]
    return next(iter(sorted(losses, key=len) or names), None)


def doubts(progress: RunProgress) -> list[Condition]:
    """Those of the agents, and those that the progress itself shows."""
    stated = [Condition(str(one.get("code") or ""), str(one["message"])) for one in progress.live.warnings]
    codes = {one.code for one in stated}
    return [*stated, *(Condition(code, text) for code, text in _own_doubts(progress) if code not in codes)]


def _own_doubts(progress: RunProgress) -> Iterator[tuple[Reason, str]]:
    if progress.is_stale:
        yield Reason.HEAD_SILENT, f"its head agent has written nothing for {show_minutes(progress.age)}"
        return
    step_age, silent = progress.lead.step_age, progress.silent_seconds
    if progress.may_hang and step_age is not None:
        yield Reason.STALLED, f"no step for {show_minutes(step_age)}"
    elif progress.step is None and silent is not None and silent > _SILENT_SECONDS:
        yield Reason.NO_OUTPUT, f"no rank has written anything for {show_minutes(silent)}"
    for name, value in sorted(progress.lead.metrics.items()):
        if not math.isfinite(value):
            yield Reason.NOT_FINITE, f"`{name}` is {value}"
    if progress.is_too_slow and progress.seconds_left is not None and progress.limit_seconds_left is not None:
        left, needed = show_minutes(progress.limit_seconds_left), show_minutes(progress.seconds_left)
        yield Reason.LIMIT_TOO_NEAR, f"the limit comes in {left}, and the steps need {needed}"
    if not progress.is_stalled and (progress.data_wait or 0.0) > _MUCH_WAITING:
        yield Reason.WAITS_FOR_DATA, f"ranks wait for data {progress.data_wait:.0%} of the time"


def progress_of(path: Path, metric: str, now: float) -> RunProgress | None:
    """The progress that a live.json shows; None if it cannot be read."""
    live = read(path)
    return None if live is None else RunProgress(live, live.age(now), metric)


def read(path: Path) -> Live | None:
    try:
        with open_regular(path) as file:
            # NaN is not JSON: a text, as agents write.
            return parse(json.loads(file.read(MOST_BYTES), parse_constant=str))
    except (OSError, ValueError, RecursionError):
        return None


def parse(value: Any) -> Live | None:
    """None for a document of another version, and for one without a time."""
    t = _number(value.get("t")) if isinstance(value, dict) and value.get("schema") == SCHEMA else None
    if t is None or t > _LATEST:
        return None
    nodes = tuple(_node(at, entry) for at, entry in enumerate(_entries(value, "nodes")))
    ranks, gpus = _number(value.get("ranks")), _number(value.get("gpus"))
    return Live(
        t=t,
        interval=max(_number(value.get("interval")) or 0.0, SHORTEST_SECONDS),
        nodes=nodes,
        ranks=int(ranks) if ranks else sum(len(node.ranks) for node in nodes),
        gpus=int(gpus) if gpus else sum(len(node.gpus) for node in nodes),
        continues=value.get("continues") is True,
        checking=value.get("checking") is True,
        warnings=tuple(entry for entry in _entries(value, "warnings") if isinstance(entry.get("message"), str)),
        **_numbers(Live, value),
    )


def _node(at: int, entry: Mapping[str, Any]) -> LiveNode:
    gpus = [
        LiveGpu(gpu=_index(gpu, "gpu", place), name=str(gpu.get("name") or ""), **_numbers(LiveGpu, gpu))
        for place, gpu in enumerate(_entries(entry, "gpus"))
    ]
    ranks = []
    for place, rank in enumerate(_entries(entry, "ranks")):
        metrics = rank.get("metrics")
        logged = metrics.items() if isinstance(metrics, dict) else ()
        kept = {str(name): number for name, value in logged if (number := series.logged_number(value)) is not None}
        ranks.append(LiveRank(rank=_index(rank, "rank", place), metrics=kept, **_numbers(LiveRank, rank)))
    return LiveNode(
        node=_index(entry, "node", at),
        host=str(entry.get("host") or f"node {at}"),
        memory_scope=str(entry.get("memory_scope") or ""),
        gpus=tuple(gpus),
        ranks=tuple(ranks),
        **_numbers(LiveNode, entry),
    )


def _entries(value: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    entries = value.get(name)
    return [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []


def _index(entry: Mapping[str, Any], name: str, otherwise: int) -> int:
    number = _number(entry.get(name))
    return otherwise if number is None else int(number)


def _numbers(kind: Any, entry: Mapping[str, Any]) -> dict[str, Any]:
    """The values of the fields that may be missing."""
    return {field.name: _number(entry.get(field.name)) for field in fields(kind) if field.type == "float | None"}


def _number(value: Any) -> float | None:
    """A finite number that is not negative; None for anything else. No quantity here can be negative."""
    number = series.number(value)
    return number if number is not None and number >= 0 else None


def staging_progress(attempt: AttemptDirectory) -> str:
    """`staging 41 % of 12.0 GB at 102.1 MB/s, 2 min left`; empty if no rank waits for data."""
    last = ""
    for entry in read_journal(attempt.events):
        if entry.get("event") == JournalEvent.STAGING:
            last = f"staging {progress_text(entry)}".rstrip()
        elif entry.get("event") in _AFTER_STAGING:
            last = ""
    return last
