"""How far each rank is: its step, throughput and metrics, and when it last wrote to its log.

They come from the training library's file of metrics, or from the output or the file that `metric.from` names. Nothing
is guessed from progress bars: those of a validation would take over the step.
"""

from __future__ import annotations

import math
import time
from collections import deque
from pathlib import Path
from typing import Any, Callable, Deque, Dict, List, Mapping, NamedTuple, Optional, Tuple

from serried.base.files import TailReader
from serried.schema import printed_metric, series
from serried.schema.printed_metric import FILE, STDOUT, STEP, TOTAL, Pattern
from serried.schema.series import OWN, number

METRICS_BYTES, LOG_BYTES = 1 << 18, 1 << 16
"""The most that one sample reads of a rank's metrics, and of its log."""
MOST_LINES = 500
"""Of metrics, in one sample. Each takes some microseconds."""
LATE_SECONDS = 60.0
"""An entry that appears later than this was not written when it says: the clock has jumped."""
RATE_SECONDS = 30.0
"""The time over which steps per second are counted, or longer if steps take longer."""
PAUSE = 2.0
"""So many times that long without a step is an evaluation or the like: it says nothing about the next steps."""
MOST_METRICS, LONGEST_NAMES = 8, 160
"""Of a rank: the number, and the length of all names together."""
SAMPLES_PER_SECOND = f"{OWN}samples_per_second"
OF_LIBRARY = {SAMPLES_PER_SECOND: "samples_per_second", f"{OWN}wait_share": "data_wait"}

Quantities = Dict[str, Any]


class MetricSource(NamedTuple):
    """`metric` of a plan: the metric's name, and where the program reports it."""

    name: str
    source: str

    @property
    def is_file(self) -> bool:
        return printed_metric.is_file(self.source)


class Steps:
    """The steps that a rank has reported, with their times."""

    def __init__(self) -> None:
        self.last: Optional[int] = None
        self.total: Optional[int] = None
        self._changed_at = 0.0
        """On the monotonic clock."""
        self._history: Deque[Tuple[float, int]] = deque()

    def expect(self, total: Optional[int]) -> None:
        """`total` is the last step; None if it is unknown, also after the loop that takes the steps."""
        if total is not None or self.total != self.last:
            self.total = total

    def reach(self, step: int, at: float) -> None:
        """`step` was reported at `at` on the monotonic clock."""
        is_new_start = self.last is not None and step < self.last
        is_after_pause = len(self._history) > 1 and at - self._changed_at > PAUSE * self._rated_seconds
        if is_new_start or (step != self.last and is_after_pause):
            self._history.clear()
        if step != self.last:
            self.last, self._changed_at = step, at
            self._history.append((at, step))
        while len(self._history) > 2 and self._history[1][0] <= at - RATE_SECONDS:
            self._history.popleft()

    def quantities(self, now: float) -> Quantities:
        found: Quantities = {}
        if self.last is not None:
            found.update(step=self.last, step_age=round(max(0.0, now - self._changed_at), 1))
        if self.total is not None:
            found["total_steps"] = self.total
        rate = self._rate(now)
        return found if rate is None else {**found, "steps_per_second": rate, "step_gap": round(self._gap, 4)}

    @property
    def _gap(self) -> float:
        """The mean time between two reported steps; the rate falls while the next one is overdue, this does not."""
        return (self._history[-1][0] - self._history[0][0]) / max(len(self._history) - 1, 1)

    def is_overdue(self, now: float) -> bool:
        """No step for longer than the steps before took together."""
        return now - self._changed_at > self._rated_seconds

    @property
    def _rated_seconds(self) -> float:
        span = self._history[-1][0] - self._history[0][0] if self._history else 0.0
        return max(span, RATE_SECONDS)

    def _rate(self, now: float) -> Optional[float]:
        """Falls while the next step is overdue."""
        if len(self._history) < 2:
            return None
        (began_at, first), (ended_at, last) = self._history[0], self._history[-1]
        seconds = (now if self.is_overdue(now) else ended_at) - began_at
        return (last - first) / seconds if seconds > 0 else None


class RankProgress:
    """Reads what one rank writes."""

    def __init__(
        self, metrics: Path, log: Path, source: Optional[MetricSource], results: Path, *, stands_for: int = 1
    ) -> None:
        """`stands_for`: so many ranks, of which only this one writes metrics, read as many samples as this one."""
        self.log = log
        self._stands_for = stands_for
        self._metrics, self._printed = TailReader(metrics, METRICS_BYTES), TailReader(log, LOG_BYTES)
        self._steps = Steps()
        self._values: Dict[str, Any] = {}
        self._rates: Dict[str, float] = {}
        self._read_at = -math.inf
        """On the monotonic clock."""
        self._output: Optional[Tuple[int, float]] = None
        """The size of the log, and when that changed on the monotonic clock."""
        self._pattern: Optional[Pattern] = None
        self._file: Optional[ReportFile] = None
        kind, _, rest = source.source.partition(":") if source else ("", "", "")
        if source and kind == STDOUT:
            self._pattern = Pattern(rest, source.name)
        elif source and kind == FILE:
            self._file = ReportFile(source, results)

    def sample(self, clock: Callable[[], float] = time.monotonic) -> Quantities:
        """What the rank has reported so far.

        The time is read after the files: on a busy node a step may be reached, written and read in between.
        """
        printed, lines = self._printed.lines(), self._metrics.lines()
        reported = self._file.read() if self._file else {}
        now = clock()
        age = self._output_age(now)
        self._read_metrics(lines, now)
        if self._pattern:
            self._take(self._pattern.last(printed), now if age < RATE_SECONDS else now - age)
        self._take(reported, now)
        return {
            **self._steps.quantities(now),
            **({} if self._steps.is_overdue(now) else self._rates),
            **({"metrics": dict(self._values)} if self._values else {}),
            **({} if self._output is None else {"output_age": round(age, 1)}),
        }

    @property
    def log_bytes(self) -> int:
        """The size of the log at the last sample."""
        return self._printed.size

    def _output_age(self, now: float) -> float:
        if not self._printed.changed_at:
            return 0.0
        size, changed_at = self._output or (None, 0.0)
        if size is None:  # this process may have started long after the rank
            changed_at = now - max(0.0, time.time() - self._printed.changed_at)
        elif self._printed.size != size:
            changed_at = now
        self._output = self._printed.size, changed_at
        return now - changed_at

    def _read_metrics(self, lines: List[bytes], now: float) -> None:
        if len(lines) > MOST_LINES:
            lines = [line for line in lines[:-MOST_LINES] if series.is_rare(line)] + lines[-MOST_LINES:]
        behind, earliest = now - time.time(), self._read_at - LATE_SECONDS
        self._read_at = now
        for line in lines:
            entry = series.parse(line)
            if entry is not None and entry.says_total:
                self._steps.expect(entry.total_steps)
            if entry is None or entry.step is None:
                continue
            at = entry.t
            reached_at = now if at is None or at + behind < earliest else min(now, at + behind)
            self._steps.reach(entry.step, reached_at)
            self._rates.update(
                (OF_LIBRARY[name], value * self._stands_for if name == SAMPLES_PER_SECOND else value)
                for name, value in entry.values.items()
                if name in OF_LIBRARY and number(value) is not None
            )
            self._keep({name: value for name, value in entry.values.items() if not name.startswith(OWN)})

    def _take(self, values: Mapping[str, float], at: float) -> None:
        """`values` by the names of groups."""
        step, total = values.get(STEP), values.get(TOTAL)
        if total is not None and math.isfinite(total):
            self._steps.expect(int(total))
        if step is not None and math.isfinite(step):
            self._steps.reach(int(step), at)
        self._keep({name: value for name, value in values.items() if name not in (STEP, TOTAL)})

    def _keep(self, values: Mapping[str, Any]) -> None:
        for name, value in values.items():
            if name not in self._values and not self._has_room(name):
                continue
            if number(value) is not None:
                self._values[name] = value if isinstance(value, int) else float(f"{value:.6g}")
            elif series.logged_number(value) is not None:
                self._values[name] = str(value)

    def _has_room(self, name: str) -> bool:
        return len(self._values) < MOST_METRICS and sum(map(len, (*self._values, name))) <= LONGEST_NAMES


class ReportFile:
    """The file of `file:PATH:KEY`: one JSON document, or lines of them."""

    def __init__(self, source: MetricSource, results: Path) -> None:
        path, _, key = source.source.partition(":")[2].partition(":")
        self._path = results / path
        self._name, self._key = source.name, key or source.name
        self._seen: Tuple[float, int] = (0.0, 0)

    def read(self) -> Dict[str, float]:
        """The last values, if the file has changed: of the metric, and of the keys `step` and `total`."""
        try:
            state = self._path.stat()
            if (state.st_mtime, state.st_size) == self._seen:
                return {}
            self._seen = (state.st_mtime, state.st_size)
            with self._path.open("rb") as file:
                file.seek(max(0, state.st_size - METRICS_BYTES))
                text = file.read(METRICS_BYTES).decode("utf-8", "replace")
        except OSError:
            return {}
        keys = {STEP: STEP, TOTAL: TOTAL, self._name: self._key}
        found = {name: printed_metric.values_in(text, key) for name, key in keys.items()}
        return {name: values[-1] for name, values in found.items() if values}
