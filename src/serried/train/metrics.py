"""The file of `run.log`: a line of JSON per step, in `metrics-R.jsonl` beside the rank's log.

A step costs a few microseconds: lines are written about once a second, and until then nothing waits for a number on
a GPU. A killed process loses the last second, but no step of a checkpoint, because a save writes first. Readers skip
a torn last line. The next attempt continues the step count; a step that it repeats replaces the earlier values for
readers (`serried.schema.series`).
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Mapping, Optional, Tuple, Union

from serried.base.files import GROUP_FILE
from serried.schema import names, series
from serried.schema.layout import RunDirectory
from serried.train.tracking import Tracker
from serried.train.tracking.sinks import Point

if TYPE_CHECKING:
    import torch

WRITE_SECONDS = 1.0
RATES_SECONDS = 10.0
MOST_HELD = 512

Gauges = Callable[[], Dict[str, float]]
"""Values to sample: seconds waited for data and samples read since the start, the expected last step, peak memory."""


def default_path(environ: Mapping[str, str], rank: int) -> Optional[Path]:
    """None if Serried did not start this process: then metrics are written only to a file that the script names.

    Of thousands of ranks, only the first of each node has a file.
    """
    if not environ.get(names.RUN_DIR) or not environ.get(names.ATTEMPT):
        return None
    if environ.get(names.LOG_SHARED) and environ.get("LOCAL_RANK", "0") != "0":
        return None
    task = environ.get(names.TASK)
    place = RunDirectory(Path(environ[names.RUN_DIR])).task(int(task) if task else None)
    return place.attempt(int(environ[names.ATTEMPT])).metrics(int(environ.get(names.NODE) or 0), rank)


def choose_path(requested: Union[str, Path, None], environ: Mapping[str, str], rank: int) -> Optional[Path]:
    """The script's choice, or the default. A resume check reads the default path, so it always writes there."""
    default = default_path(environ, rank)
    if environ.get(names.REHEARSAL) and default is not None:
        return default
    return Path(requested) if requested else default


class Metrics:
    def __init__(self, path: Optional[Path], gauges: Gauges = dict) -> None:
        self._file = None if path is None else os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, GROUP_FILE)
        self._gauges = gauges
        self.tracker: Optional[Tracker] = None
        """It gets the values that are written."""
        self._held: List[Tuple[float, int, Dict[str, Any]]] = []
        now = time.monotonic()
        self._next_write = now + WRITE_SECONDS
        self._rated = now
        self._rated_step: Optional[int] = None
        self._last_step: Optional[int] = None
        self._waited = 0.0
        self._read = 0.0
        self.total_steps: Optional[int] = None
        """The last step, as the script has set it."""
        self._expected_steps: Optional[int] = None
        self._written_total: Optional[int] = None

    def resume(self, step: int) -> None:
        """This attempt continues after `step`, even if an earlier one logged later steps."""
        if self._file is not None and self._last_step is None:
            self._put([series.resumed_line(time.time(), step)])

    def log(self, step: int, values: Dict[str, Any]) -> None:
        kept = {name: _keep(name, value) for name, value in values.items()}
        if self._file is None and (self.tracker is None or not self.tracker.is_on):
            return
        self._held.append((time.time(), step, kept))
        self._last_step = step
        now = time.monotonic()
        if now >= self._next_write or len(self._held) >= MOST_HELD:
            self.write()
            self._next_write = now + WRITE_SECONDS
        if now - self._rated >= RATES_SECONDS or self._rated_step is None:
            self._rate(step, now)

    def write(self) -> None:
        """Write all buffered lines in one write."""
        held, self._held = self._held, []
        if not held:
            return
        points = [
            Point(moment, step, {name: _number(value) for name, value in values.items()})
            for moment, step, values in held
        ]
        if self._file is not None:
            lines = [series.step_line(at, step, values) for at, step, values in points]
            # The last step, if that has changed. Not before the first step: a file may begin with `resumed`.
            total = self._expected_steps if self.total_steps is None else self.total_steps
            if total != self._written_total:
                self._written_total = total
                lines.append(series.total_line(time.time(), total))
            self._put(lines)
        if self.tracker is not None and self.tracker.is_on:
            self.tracker.feed(points)

    def _put(self, lines: List[str]) -> None:
        if self._file is not None:
            # A full disk must not end a training; the next checkpoint reports it.
            with contextlib.suppress(OSError):
                os.write(self._file, ("\n".join(lines) + "\n").encode())

    def close(self) -> None:
        if self._last_step is not None and (self._file is not None or self._held):
            self._rate(self._last_step, time.monotonic())
        self.write()
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _rate(self, step: int, now: float) -> None:
        """Log throughput and gauges since the last call."""
        gauges = self._gauges()
        waited, read = gauges.pop("waited_seconds", None), gauges.pop("read_samples", None)
        total = gauges.pop("total_steps", None)
        if self._rated_step is not None and step > self._rated_step:
            seconds = now - self._rated
            rates = {"steps_per_second": (step - self._rated_step) / seconds, **gauges}
            rates["step_seconds"] = seconds / (step - self._rated_step)
            if waited is not None:
                rates["wait_share"] = (waited - self._waited) / seconds
            if read is not None:
                rates["samples_per_second"] = (read - self._read) / seconds
            self._expected_steps = None if total is None else int(total)
            self._held.append((time.time(), step, {f"{series.OWN}{name}": value for name, value in rates.items()}))
        self._rated, self._rated_step, self._waited, self._read = now, step, waited or 0.0, read or 0.0


def _keep(name: str, value: Any) -> Any:
    """A copy of `value`. A tensor on a GPU is copied there, without waiting for it.

    Raises TypeError now, with the script's frame in the traceback, and not later in the write.
    """
    if isinstance(value, (int, float, str)):
        return value
    if hasattr(value, "detach"):
        if value.numel() == 1:
            return value.detach().clone() if getattr(value, "is_cuda", False) else value.detach().item()
        raise TypeError(f"`run.log` takes single numbers: `{name}` is a tensor of {value.numel()}")
    try:
        return float(value)
    except (TypeError, ValueError):
        raise TypeError(f"`run.log` takes numbers and text: `{name}` is a {type(value).__name__}") from None


def _number(value: Any) -> Any:
    return value if isinstance(value, (int, float, str)) else float(value)


def peak_memory(device: torch.device) -> int:
    """Peak memory in bytes: of this process's GPU, else of the process."""
    if device.type == "cuda":
        return int(sys.modules["torch"].cuda.max_memory_allocated(device))
    try:
        import resource
    except ImportError:  # not on this system
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if os.uname().sysname == "Darwin" else peak * 1024
