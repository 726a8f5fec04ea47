"""What one run of a bench did, from the files that it wrote: steps, samples per second, start-up.

The training library writes a line for each step and rank, with its time. A line of the same step that comes later,
after an evaluation for example, ends a pause: the time between the two lines is no training. A program without the
library prints or writes samples per second itself.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from serried.base.errors import UsageError
from serried.base.files import read_json
from serried.bench.points import GridPoint
from serried.records import samples
from serried.records.evidence import latest_attempt
from serried.records.run_status import RunStatus
from serried.schema import names, printed_metric, series
from serried.schema.layout import AttemptDirectory, TaskDirectory
from serried.schema.series import OWN, Entry, number

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
    """The steps of one rank after the warm-up."""

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
        """Whether the run has not ended."""
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
    """The steps that the lines of one rank tell."""
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
    for before, after in itertools.pairwise(ordered):
        took = moments[after][0] - moments[before][1]
        if before - ordered[0] + 1 < left_out or took < 0:  # a clock that was set back
            continue
        steps, seconds = steps + after - before, seconds + took
        each.append(took / (after - before))
    per_second = [(number(line.get(f"{OWN}{RATE}")), number(line[f"{OWN}steps_per_second"])) for line in rates]
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
    reason = _reason(status, found)
    return dataclasses.replace(
        found,
        run=record.id,
        state=status.state,
        reason=reason,
        samples_per_second=None if reason else found.samples_per_second,
        startup_seconds=max(0.0, first - started) if first and isinstance(started, int | float) else None,
        device=_device(place) if allocation.gpus else CPU,
        gpu_type=allocation.gpu_type or "",
        gpus=allocation.nodes * allocation.gpus,
        cpus=allocation.nodes * allocation.cpus,
        code=record.plan.source.archive or "",
    )


def _read(
    attempt: AttemptDirectory, written: Path, point: GridPoint, warm_up: str, source: str
) -> tuple[RunFigures, float | None]:
    """The figures, and when the first step was over."""
    if source:
        return _reported(source, [attempt.rank_log(0, 0)], written, point, warm_up), None
    paths = {int(path.stem.removeprefix("metrics-")): path for path in attempt.path.glob("node-*/metrics-*.jsonl")}
    ranks = [rank_steps(series.read(paths[rank]), warm_up) for rank in _spread(sorted(paths))]
    found = [rank.first_at for rank in ranks if rank.first_at is not None]
    return combined(ranks, point), min(found, default=None)


def _reported(source: str, logs: Sequence[Path], written: Path, point: GridPoint, warm_up: str) -> RunFigures:
    """The figures of a program that reports samples per second, or its steps and takes a known batch."""
    groups, has_rate = _groups(source)
    found = {name: printed_metric.values(source, name, logs, written) for name in (RATE, *groups)}
    per_second = found.get(STEPS_RATE, [])
    seconds = found.get(STEP_SECONDS) or [1 / value for value in per_second if value > 0]
    if has_rate:
        return printed(found[RATE], seconds, warm_up, point)
    if point.batch is None:
        return RunFigures(None, "", UNKNOWN_BATCH)
    return printed([point.batch * point.world / value for value in seconds if value > 0], seconds, warm_up, point)


def _groups(source: str) -> tuple[list[str], bool]:
    """The named groups about steps, and whether the source has samples per second."""
    kind, _, rest = source.partition(":")
    pattern = re.compile(rest) if kind == printed_metric.STDOUT else re.compile("")
    groups = [name for name in (STEP_SECONDS, STEPS_RATE) if name in pattern.groupindex]
    return groups, not groups or RATE in pattern.groupindex or pattern.groups > len(pattern.groupindex)


def _spread(ranks: Sequence[int]) -> Iterator[int]:
    count = min(len(ranks), MOST_RANKS)
    return (ranks[at * len(ranks) // count] for at in range(count))


def _reason(status: RunStatus, found: RunFigures) -> str:
    if status.state in (names.COMPLETED, names.TIMEOUT):
        return found.reason
    if not status.has_ended:
        return "it waits" if status.state == names.PENDING else f"it is {status.state}"
    return status.verdict.message or f"it ended {status.state}"


def _device(place: TaskDirectory) -> str:
    found = {
        str(gpu.get("name") or "?") for node in samples.read(place, most_lines=1).nodes for gpu in node.gpus.values()
    }
    return " and ".join(sorted(found)) or UNKNOWN
