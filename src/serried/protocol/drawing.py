"""Which job runs a trial, in a sweep whose jobs draw further trials (`--workers`).

A job is named by the task of the array that it was submitted for. A trial belongs to one job for ever, by a file that
can be created only once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Optional

from serried.fs.files import numbers
from serried.protocol.layout import RunDirectory


def worker_of(run: RunDirectory, trial: int) -> int:
    """The job that runs the trial: its own, unless another has drawn it."""
    worker = _owner(run.task(trial).worker)
    return trial if worker is None else worker


def unended_trial(run: RunDirectory, worker: int) -> Optional[int]:
    """The trial that the job has drawn, and that has not ended."""
    mine = (trial for trial in numbers(run.tasks) if _owner(run.task(trial).worker) == worker)
    return next((trial for trial in mine if not run.task(trial).exit.exists()), None)


def _owner(path: Path) -> Optional[int]:
    """None before a job has drawn the trial, and if a user has stopped it before."""
    try:
        text = path.read_text(encoding="ascii")
    except (OSError, ValueError):
        return None
    return int(text) if text.isdecimal() else None
