"""Which job runs a trial, in a sweep whose jobs draw further trials (`--workers`).

A job is named by the task of the array that it was submitted for. A trial belongs to one job for ever, by a file that
can be created only once.
"""

from __future__ import annotations

from typing import Iterator, Optional

from serried.base.files import claim, make_directory, numbers, read_bytes
from serried.schema import names
from serried.schema.layout import RunDirectory


def worker_of(run: RunDirectory, trial: int) -> int:
    """The job that runs the trial: its own, unless another has drawn it."""
    return worker_in(owner_of(run, trial), trial)


def worker_in(owner: str, trial: int) -> int:
    """The same, by the content of the trial's file."""
    return int(owner) if owner.isdecimal() else trial


def trials_of(run: RunDirectory, worker: int) -> Iterator[int]:
    """The trials that the job has drawn."""
    return (trial for trial in numbers(run.tasks) if owner_of(run, trial) == str(worker))


def unended_trial(run: RunDirectory, worker: int) -> Optional[int]:
    """The trial that the job has drawn, and that has not ended."""
    return next((trial for trial in trials_of(run, worker) if not run.task(trial).exit.exists()), None)


def owner_of(run: RunDirectory, trial: int) -> str:
    """The index of the job that has drawn the trial, `names.WITHDRAWN`, or nothing if any job may still draw it."""
    try:
        return read_bytes(run.task(trial).worker).decode("ascii")
    except (OSError, ValueError):
        return ""


def withdraw(run: RunDirectory, trial: int, mode: int) -> bool:
    """Take the trial, so that no job draws it. False if a job has drawn it. Raises OSError."""
    run.path.stat()  # a run directory that was deleted stays so
    place = run.task(trial)
    make_directory(place.path, mode)
    return claim(place.worker, names.WITHDRAWN) == names.WITHDRAWN
