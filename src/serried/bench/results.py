"""What the runs of a bench did, and all points together: speed-up, efficiency, cost, and what does not compare.

The training library writes a line for each step and rank, with its time. A line of the same step that comes later,
after an evaluation for example, ends a pause: the time between the two lines is no training. A program without the
library prints or writes samples per second itself.

Points are compared with the point of one rank, and with the same way of starting as many ranks on one node. A run on
another GPU, or with another batch than its neighbours, is named and compared with nothing. `results` is pure; `read`
takes the runs as they are now.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import re
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from serried.base.errors import UsageError
from serried.base.files import make_directory, read_json, write_json
from serried.base.text import counted
from serried.bench.store import DDP, DP, SINGLE, STRONG, WEAK, Bench, GridPoint, PointRun
from serried.records import samples
from serried.records.record import Record, RecordUnreadable
from serried.records.status import RunStatus, latest_attempt, statuses
from serried.schema import names, printed_metric, series
from serried.schema.layout import AttemptDirectory
from serried.schema.series import OWN, Entry, number
from serried.submission.reconcile import find_out

MOST_RANKS = 64
"""How many ranks are read. Of more, these are spread over all."""
FEWEST_STEPS = 10
"""Below, a note says that they are few."""
RATE = "samples_per_second"
STEP_SECONDS, STEPS_RATE = "step_seconds", "steps_per_second"
"""Named groups of `stdout:REGEX`, beside that of samples per second or in its place."""
CPU = "CPU"
UNKNOWN = "unknown GPU"
"""No sampler has reported a GPU."""
OPEN = (names.PENDING, names.RUNNING, names.UNKNOWN)
NO_STEP = "it reported no step (`run.log`, or `--metric-from`)"
UNKNOWN_BATCH = "the size of its batch is unknown: give it as `--batch`"


@dataclass(frozen=True)
class RankSteps:
    steps: int = 0
    seconds: float = 0.0
    step_seconds: tuple[float, ...] = ()
    """Of each line; a line may stand for several steps."""
    batch: float | None = None
    """Samples that the library's loader gave the process for each step."""
    data_wait: float | None = None
    without_sync: bool = False
    first_at: float | None = None
    """When it reported its first step, in seconds since the epoch."""

    @property
    def steps_per_second(self) -> float | None:
        return self.steps / self.seconds if self.seconds > 0 else None


@dataclass(frozen=True)
class RunFigures:
    """The figures of one run, or the reason why it has none."""

    run: str | None
    state: str
    """Of the run; `results` has those of points without one."""
    reason: str = ""
    """Why there are no figures."""
    steps: int = 0
    samples_per_second: float | None = None
    """Of all ranks together."""
    batch: float | None = None
    """Samples of one rank, or GPU of `dp`, in a step."""
    step_median: float | None = None
    step_p95: float | None = None
    """Seconds."""
    spread: float | None = None
    """The slowest rank's median step above the fastest rank's, as a share of the median."""
    data_wait: float | None = None
    """Share of the time that ranks waited for data."""
    startup_seconds: float | None = None
    """From the start of the job to the first step."""
    device: str = CPU
    """The names of its GPUs."""
    gpus: int = 0
    cpus: int = 0
    """Of all nodes."""
    without_sync: bool = False
    """The library confirms that ranks exchanged no gradients."""
    code: str = ""
    """The archive of its code."""
    gpu_type: str = ""
    """As requested, in the scheduler's word: `v100l`."""

    @property
    def is_open(self) -> bool:
        return self.state in OPEN

    @property
    def is_measured(self) -> bool:
        return not self.reason and self.samples_per_second is not None


def warm_up_steps(text: str, steps: int) -> int:
    """How many of so many steps `10%` or `20` leaves out. Raises UsageError for another text."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)%|(\d+)", text.strip())
    if not found or float(found[1] or 0) >= 100:
        raise UsageError(f"`--warm-up {text}` is neither a share nor a number of steps", hint="`10%`, or `20`")
    return int(found[2]) if found[2] else math.ceil(steps * float(found[1]) / 100)


def rank_steps(lines: Sequence[Entry], warm_up: str) -> RankSteps:
    moments: dict[int, tuple[float, float]] = {}
    rates: list[Mapping[str, Any]] = []
    without_sync = False
    for line in lines:
        step, at = line.step, line.t
        if step is None or at is None:
            continue
        if f"{OWN}steps_per_second" in line.values:
            rates.append(line.values)
            without_sync = without_sync or bool(line.values.get(f"{OWN}without_sync"))
        else:
            moments[step] = (moments[step][0] if step in moments else at, at)
    ordered = sorted(moments)
    if not ordered:
        return RankSteps()
    left_out = warm_up_steps(warm_up, ordered[-1] - ordered[0] + 1)
    steps, seconds = 0, 0.0
    each: list[float] = []
    for before, after in zip(ordered, ordered[1:]):
        took = moments[after][0] - moments[before][1]
        if before - ordered[0] + 1 < left_out or took < 0:  # a clock that was set back
            continue
        steps, seconds = steps + after - before, seconds + took
        each.append(took / (after - before))
    per_second = ((number(line.get(f"{OWN}{RATE}")), number(line[f"{OWN}steps_per_second"])) for line in rates)
    batches = [samples_ / steps_ for samples_, steps_ in per_second if samples_ and steps_]
    waits = [wait for line in rates if (wait := number(line.get(f"{OWN}wait_share"))) is not None]
    return RankSteps(
        steps,
        seconds,
        tuple(each),
        statistics.median(batches) if batches else None,
        statistics.fmean(waits) if waits else None,
        without_sync,
        moments[ordered[0]][0],
    )


def combined(ranks: Sequence[RankSteps], point: GridPoint) -> RunFigures:
    """The figures of all ranks. `reason` says what is missing."""
    measured = [rank for rank in ranks if rank.steps_per_second]
    if not measured:
        few = "too few steps after the warm-up" if any(rank.first_at for rank in ranks) else NO_STEP
        return RunFigures(None, "", few)
    processes = point.nodes * point.processes
    own = [rank.batch for rank in measured if rank.batch is not None]
    per_process = statistics.fmean(own) if own else None
    batch = point.batch if per_process is None else per_process * processes / point.world
    steps_per_second = statistics.fmean(rank.steps_per_second or 0.0 for rank in measured)
    medians = [statistics.median(rank.step_seconds) for rank in measured]
    every = sorted(seconds for rank in measured for seconds in rank.step_seconds)
    waits = [rank.data_wait for rank in measured if rank.data_wait is not None]
    median = statistics.median(medians)
    return RunFigures(
        None,
        "",
        "" if batch else UNKNOWN_BATCH,
        min(rank.steps for rank in measured),
        batch * point.world * steps_per_second if batch else None,
        batch,
        median,
        every[math.ceil(0.95 * len(every)) - 1],
        (max(medians) - min(medians)) / median if len(medians) > 1 and median else None,
        statistics.fmean(waits) if waits else None,
        without_sync=all(rank.without_sync for rank in measured),
    )


def printed(rates: Sequence[float], seconds: Sequence[float], warm_up: str, point: GridPoint) -> RunFigures:
    """The figures of a program that reports samples per second, and perhaps the seconds of its steps."""
    kept = [rate for rate in rates[_left_out(warm_up, len(rates)) :] if math.isfinite(rate) and rate > 0]
    if not kept:
        few = "too few values after the warm-up" if rates else "it reported no samples per second"
        return RunFigures(None, "", few)
    steps = sorted(seconds[_left_out(warm_up, len(seconds)) :])
    return RunFigures(
        None,
        "",
        "",
        len(kept),
        statistics.median(kept),
        point.batch,
        statistics.median(steps) if steps else None,
        steps[math.ceil(0.95 * len(steps)) - 1] if len(steps) >= FEWEST_STEPS else None,
    )


def _left_out(warm_up: str, values: int) -> int:
    """A share leaves the only value: a program may print its mean at the end."""
    left_out = warm_up_steps(warm_up, values)
    return min(left_out, values - 1) if values and warm_up.endswith("%") else left_out


def measure(status: RunStatus, point: GridPoint, *, warm_up: str, source: str = "") -> RunFigures:
    """Read the files of a run. Its state decides whether its figures count."""
    record, place = status.record, status.record.where.task(None)
    allocation = record.plan.allocation
    attempt = latest_attempt(place)
    found = RunFigures(None, "", "it has not started" if place.path.is_dir() else "its run directory was deleted")
    first: float | None = None
    if attempt is not None:
        found, first = _read(attempt, place.results, point, warm_up, source)
    started = (read_json(attempt.claim) or {}).get("started") if attempt else None
    if status.state in (names.COMPLETED, names.TIMEOUT):
        reason = found.reason
    elif status.has_ended:
        reason = status.verdict.message or f"it ended {status.state}"
    else:
        reason = "it waits" if status.state == names.PENDING else f"it is {status.state}"
    device = CPU
    if allocation.gpus:
        nodes = samples.read(place, most_lines=1).nodes
        gpus = {str(gpu.get("name") or "?") for node in nodes for gpu in node.gpus.values()}
        device = " and ".join(sorted(gpus)) or UNKNOWN
    return dataclasses.replace(
        found,
        run=record.id,
        state=status.state,
        reason=reason,
        samples_per_second=None if reason else found.samples_per_second,
        startup_seconds=max(0.0, first - started) if first and isinstance(started, (int, float)) else None,
        device=device,
        gpu_type=allocation.gpu_type or "",
        gpus=allocation.nodes * allocation.gpus,
        cpus=allocation.nodes * allocation.cpus,
        code=record.plan.source.archive or "",
    )


def _read(
    attempt: AttemptDirectory, written: Path, point: GridPoint, warm_up: str, source: str
) -> tuple[RunFigures, float | None]:
    if source:
        return _reported(source, [attempt.rank_log(0, 0)], written, point, warm_up), None
    paths = {int(path.stem.removeprefix("metrics-")): path for path in attempt.path.glob("node-*/metrics-*.jsonl")}
    count, ordered = min(len(paths), MOST_RANKS), sorted(paths)
    spread = [ordered[at * len(ordered) // count] for at in range(count)]
    ranks = [rank_steps(series.read(paths[rank]), warm_up) for rank in spread]
    found = [rank.first_at for rank in ranks if rank.first_at is not None]
    return combined(ranks, point), min(found, default=None)


def _reported(source: str, logs: Sequence[Path], written: Path, point: GridPoint, warm_up: str) -> RunFigures:
    """The figures of a program that reports samples per second, or its steps and takes a known batch."""
    kind, _, rest = source.partition(":")
    pattern = re.compile(rest) if kind == printed_metric.STDOUT else re.compile("")
    groups = [name for name in (STEP_SECONDS, STEPS_RATE) if name in pattern.groupindex]
    has_rate = not groups or RATE in pattern.groupindex or pattern.groups > len(pattern.groupindex)
    found = {name: printed_metric.values(source, name, logs, written) for name in (RATE, *groups)}
    per_second = found.get(STEPS_RATE, [])
    seconds = found.get(STEP_SECONDS) or [1 / value for value in per_second if value > 0]
    if has_rate:
        return printed(found[RATE], seconds, warm_up, point)
    if point.batch is None:
        return RunFigures(None, "", UNKNOWN_BATCH)
    return printed([point.batch * point.world / value for value in seconds if value > 0], seconds, warm_up, point)


GOOD_EFFICIENCY = 0.7
"""As the rule `scaling-poor` of reports."""
NOISY = 0.1
SHOWN_SHARE = 0.005
"""Tables show a smaller share as 0%."""
_SAME = 0.01
"""Two batches that differ by less are the same: the last batch of an epoch may be smaller."""


@dataclass(frozen=True)
class RowResult:
    point: GridPoint
    runs: tuple[RunFigures, ...]
    """All of its runs with synchronisation."""
    samples_per_second: float | None = None
    deviation: float | None = None
    """The sample standard deviation as a share of the mean; None for one repeat."""
    speed_up: float | None = None
    efficiency: float | None = None
    """Against one rank."""
    node_efficiency: float | None = None
    """Against one node with as many ranks, started in the same way."""
    step_median: float | None = None
    step_p95: float | None = None
    spread: float | None = None
    data_wait: float | None = None
    communication: float | None = None
    """Below zero if the runs without synchronisation were slower: noise."""
    startup_seconds: float | None = None
    cost: float | None = None
    """GPU-hours for a million samples; hours of a CPU core without GPUs."""
    repeats: int = 0
    """How many runs the means are of."""
    problems: tuple[str, ...] = ()
    """Why runs are missing, or do not compare."""
    is_comparable: bool = True

    @property
    def is_measured(self) -> bool:
        return self.samples_per_second is not None

    @property
    def per_rank(self) -> float | None:
        return None if self.samples_per_second is None else self.samples_per_second / self.point.world

    def to_json(self) -> dict[str, Any]:
        value = dataclasses.asdict(self)
        point = value.pop("point")
        del point["repeat"], point["without_sync"]
        return {**point, **value, "per_rank": self.per_rank}


@dataclass(frozen=True)
class BenchResults:
    rows: tuple[RowResult, ...]
    device: str = CPU
    """That of most runs."""
    notes: tuple[str, ...] = ()
    notes_on_steps: tuple[str, ...] = ()
    """About the second table: steps, spread between ranks, communication."""
    open_runs: int = 0
    """Points that have not ended."""

    @property
    def compared(self) -> list[RowResult]:
        return [row for row in self.rows if row.is_measured and row.is_comparable]

    @property
    def advice(self) -> list[str]:
        """The cheapest point, the fastest one, and the largest one that still scales well."""
        rows = self.compared
        if len(rows) < 2:
            return []
        unit = "GPU" if self.device != CPU else "core"
        cheapest = min(rows, key=lambda row: (row.cost or 0.0, row.point.world))
        fastest = max(rows, key=lambda row: row.samples_per_second or 0.0)
        times = (fastest.cost or 0.0) / (cheapest.cost or 1.0)
        found = [
            f"cheapest: {cheapest.point}, {figure(cheapest.cost)} {unit}-hours for a million samples",
            f"fastest: {fastest.point}, {figure(fastest.samples_per_second)} samples/s for {times:.2f} times the cost",
        ]
        good = [row for row in rows if (row.efficiency or 0.0) >= GOOD_EFFICIENCY]
        if good:
            largest = max(good, key=lambda row: (row.point.world, row.samples_per_second or 0.0))
            found.append(f"largest with an efficiency of {GOOD_EFFICIENCY:.0%} or more: {largest.point}")
        return found


def figure(value: float | None) -> str:
    """Three or more digits: `6,384`, `97.3`, `0.0120`."""
    if value is None:
        return "-"
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:#.3g}"


def results(runs: Iterable[tuple[GridPoint, RunFigures]]) -> BenchResults:
    synced: dict[GridPoint, list[RunFigures]] = {}
    unsynced: dict[GridPoint, list[RunFigures]] = {}
    for point, figures in runs:
        for group in (synced, unsynced):
            group.setdefault(point.row, [])
        (unsynced if point.without_sync else synced)[point.row].append(figures)
    every = [figures for group in (*synced.values(), *unsynced.values()) for figures in group]
    measured = [figures for group in synced.values() for figures in group if figures.is_measured]
    devices = [figures.device for figures in measured]
    known = [figures for figures in measured if figures.device not in (UNKNOWN, CPU)]
    requested = [figures.device for figures in known if _is_of_type(figures.device, figures.gpu_type)]
    device = _most_common(requested or [figures.device for figures in known] or devices) or CPU
    weak = [run for point, group in synced.items() if point.scaling == WEAK for run in group if run.is_measured]
    batch = _most_common([round(run.batch) for run in weak if run.batch])
    rows = [_row(point, group, unsynced[point], device, batch) for point, group in synced.items()]
    compared = [_compared(row, rows, device) for row in rows]
    return BenchResults(
        tuple(compared),
        device,
        tuple(_notes(compared, device)),
        tuple(_notes_on_steps(compared, [run for group in unsynced.values() for run in group])),
        sum(run.is_open for run in every),
    )


def _is_of_type(device: str, gpu_type: str) -> bool:
    """Is a `Tesla V100-SXM2-32GB` a `v100l`? By the first letters that a number follows; True if there are none."""
    model = re.search(r"[a-z]+\d+", gpu_type.lower())
    return model is None or all(model[0] in re.sub(r"\W", "", each.lower()) for each in device.split(" and "))


_MEANS = ("step_median", "step_p95", "data_wait", "startup_seconds")
"""Figures of a row that are the means of its runs' figures of the same name."""


def _most_common(values: Sequence[Any]) -> Any:
    return Counter(values).most_common(1)[0][0] if values else None


def _row(
    point: GridPoint, synced: Sequence[RunFigures], unsynced: Sequence[RunFigures], device: str, batch: int | None
) -> RowResult:
    expected = point.batch or (batch if point.scaling == WEAK else None)
    problems = [
        f"{run.run}: {mark}{run.reason}" if run.run else f"{mark}{run.reason}"
        for runs, mark in ((synced, ""), (unsynced, "no-sync: "))
        for run in runs
        if run.reason and not run.is_open
    ]
    measured = [run for run in synced if run.is_measured]
    unsynced = [run for run in unsynced if run.is_measured and run.without_sync]
    strange: dict[int, str] = {}
    """Why a run does not compare with the others."""
    for run in (*measured, *unsynced):
        if run.device not in (device, UNKNOWN):
            strange[id(run)] = f"ran on {run.device}, not on {device}"
        elif expected and run.batch and abs(run.batch - expected) > _SAME * expected:
            strange[id(run)] = f"had {run.batch:.4g} samples per rank and step, not {expected:.4g}"
    problems += [f"{run.run} {strange[id(run)]}" for run in (*measured, *unsynced) if id(run) in strange]
    kept = [run for run in measured if id(run) not in strange]
    unsynced = [run for run in unsynced if id(run) not in strange] if kept else []
    used = kept or measured
    if not used:
        return RowResult(point, tuple(synced), problems=tuple(problems), is_comparable=False)
    rates = [run.samples_per_second or 0.0 for run in used]
    rate = statistics.fmean(rates)
    few = min(run.steps for run in used)
    if few < FEWEST_STEPS:
        problems.append(f"only {counted(few, 'step')} measured")
    units = used[0].gpus or used[0].cpus
    without = _mean([run.samples_per_second for run in unsynced])
    return RowResult(
        point,
        tuple(synced),
        rate,
        statistics.stdev(rates) / rate if len(rates) > 1 else None,
        spread=_mean([run.spread for run in unsynced or used]),
        communication=1 - rate / without if without else None,
        cost=units * 1e6 / rate / 3600,
        **{name: _mean([getattr(run, name) for run in used]) for name in _MEANS},
        repeats=len(used),
        problems=tuple(problems),
        is_comparable=bool(kept),
    )


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def _compared(row: RowResult, rows: Sequence[RowResult], device: str) -> RowResult:
    """With speed-up and efficiencies. DataParallel without GPUs has none: one process does all the work."""
    if row.samples_per_second is None or not row.is_comparable or (row.point.method == DP and device == CPU):
        return row
    point, comparable = row.point, [each for each in rows if each.is_comparable]
    one = next((each for each in comparable if each.point.method == SINGLE), None)
    on_node = dataclasses.replace(point, nodes=1, batch=None)
    node = next((each for each in comparable if dataclasses.replace(each.point, batch=None) == on_node), None)
    if point.ranks == 1:  # one rank is the same in all ways
        node = one
    speed_up = row.samples_per_second / one.samples_per_second if one and one.samples_per_second else None
    by_node = row.samples_per_second / node.samples_per_second if node and node.samples_per_second else None
    return dataclasses.replace(
        row,
        speed_up=speed_up,
        efficiency=None if speed_up is None else speed_up / point.world,
        node_efficiency=None if by_node is None else by_node / point.nodes,
    )


def _notes(rows: Sequence[RowResult], device: str) -> Iterator[str]:
    measured = [row for row in rows if row.is_measured]
    if measured and all(row.repeats == 1 for row in measured):
        yield "one repeat each: the spread is unknown, and small differences mean nothing (`--repeat 3`)"
    if any((row.deviation or 0.0) > NOISY for row in measured):
        yield f"repeats differ by more than {NOISY:.0%}: do others use the same nodes? (`--exclusive`)"
    if measured and not any(row.point.method == SINGLE and row.is_comparable for row in measured):
        yield "no point has one rank: speed-up and efficiency against it are unknown"
    if device == CPU and any(row.point.method == DP for row in measured):
        yield "dp without GPUs is one process that does the work of all ranks: it has no speed-up"
    used = [run for row in measured for run in row.runs if run.device == device]
    if used and device not in (UNKNOWN, CPU) and not _is_of_type(device, used[0].gpu_type):
        yield f"GPUs of the type {used[0].gpu_type} were requested, and no run had them"
    code = {run.code for row in rows for run in row.runs if run.code}
    if len(code) > 1:
        yield f"the runs have {len(code)} different versions of the code"
    if any(row.point.scaling == STRONG for row in measured):
        yield "strong: all ranks share the batch of one rank; the others keep their own (weak)"


def _notes_on_steps(rows: Sequence[RowResult], unsynced: Sequence[RunFigures]) -> Iterator[str]:
    if any(run.is_measured and not run.without_sync for run in unsynced):
        yield "the share of the communication is unknown: only `run.wrap` of the library can leave it out"
    if any(row.communication is not None and row.communication < -SHOWN_SHARE for row in rows):
        slower = "runs without exchange were slower, so shares of that size mean nothing"
        yield f"COMM below 0% is noise: {slower} (`--repeat 3`)"
    if not unsynced and any(row.spread is not None and row.point.method == DDP for row in rows):
        yield "ranks wait for each other in each step, which hides their differences; `--communication` shows them"


MISSING, REFUSED, DELETED = "MISSING", "REFUSED", "DELETED"
"""In place of a state: no run yet, no run possible, and no record any more."""


def records(bench: Bench) -> dict[str, Record]:
    found = {}
    for entry in bench.entries:
        try:
            if entry.run:
                found[entry.run] = Record.load(entry.run)
        except RecordUnreadable:
            continue
    return found


def read(bench: Bench) -> tuple[BenchResults, list[RunFigures]]:
    """The results, and the figures of each point in the order of the bench. One query for all runs.

    Keeps the figures of runs that have ended, because a site purges their directories.
    """
    known = records(bench)
    for record in known.values():
        find_out(record)
    states = {status.record.id: status for status in statuses(known.values())}
    kept: dict[str | None, RunFigures] = {}
    with contextlib.suppress(TypeError):  # of another version
        kept = {run: RunFigures(**figures) for run, figures in (read_json(bench.figures_path) or {}).items()}
    figures = [_figures(bench, entry, states, kept) for entry in bench.entries]
    measured = {run.run: run for run in figures if run.run and run.is_measured}
    if measured != kept:
        with contextlib.suppress(OSError):
            make_directory(bench.figures_path.parent)
            write_json(bench.figures_path, {run: dataclasses.asdict(each) for run, each in measured.items()})
    points: list[GridPoint] = [entry.point for entry in bench.entries]
    return results(zip(points, figures)), figures


def _figures(
    bench: Bench, entry: PointRun, states: Mapping[str, RunStatus], kept: Mapping[str | None, RunFigures]
) -> RunFigures:
    if entry.refusal:
        return RunFigures(None, REFUSED, f"was refused: {entry.refusal}")
    if entry.run is None or (entry.run not in states and not entry.is_submitted):
        return RunFigures(None, MISSING, "is not submitted yet")
    if entry.run not in states:
        return kept.get(entry.run) or RunFigures(entry.run, DELETED, "was deleted")
    status = states[entry.run]
    if entry.run in kept and not status.record.where.path.is_dir():
        return kept[entry.run]
    return measure(status, entry.point, warm_up=bench.warm_up, source=bench.source)


def failed_runs(bench: Bench) -> list[str]:
    return [run.run for run in read(bench)[1] if run.run and not (run.is_measured or run.is_open)]
