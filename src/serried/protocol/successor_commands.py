"""How a job submits the next one, cancels it, and asks about the one before: commands with blanks, link-commands.json.

A scheduler on the submitting side writes them once, a job fills in the blanks. A blank holds a NUL, which no
argument of a program can, so that nothing else is ever taken for one.
"""

from __future__ import annotations

import bisect
import re
from pathlib import Path
from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence

from serried.fs.files import read_json
from serried.protocol import SCHEMA

TOKEN = "\0the token\0"  # noqa: S105 - names a submission, opens nothing
JOB = "\0job\0"
"""A job, or a task of one as the scheduler writes it."""
TASK = "\0task\0"


class Commands(NamedTuple):
    submit: Sequence[str]
    """Submits the job TOKEN, after any end of JOB (for an array as its one task TASK); prints the new id."""
    cancel: Sequence[str]
    """Cancels JOB."""
    ask: Sequence[str]
    """Prints how JOB stands, in one word; nothing where it is not known (any more). Not 0: nobody answers."""
    environment: Mapping[str, Optional[str]]
    """Variables that the scheduler changes in a job, as they were, for the next one; None is unset."""
    strands: bool = False
    """Whether a job never starts once a job that it waits for is deleted before it begins."""

    def to_json(self) -> Dict[str, Any]:
        return {"schema": SCHEMA, **self._asdict()}


def read(path: Path) -> Optional[Commands]:
    """None where there are none."""
    found = read_json(path)
    if found is None:
        return None
    return Commands(**{name: found[name] for name in Commands._fields if name in found})


def fill(command: Sequence[str], *, token: str = "", job: str = "", task: Optional[int] = None) -> List[str]:
    """`command` with its blanks filled in."""
    blanks = {TOKEN: token, JOB: job, TASK: "" if task is None else str(task)}
    words = list(command)
    for blank, value in blanks.items():
        words = [word.replace(blank, value) for word in words]
    return words


def job_of(job: str, task: Optional[int], spelling: Sequence[str]) -> str:
    """A task of an array job as its scheduler writes it, by `task` of the plan's dialect.

    A task's own job may be no array to the scheduler, and then has a name of its own.
    """
    if task is None:
        return job
    pattern, replacement = spelling
    return re.sub(pattern, replacement.format(task), job, count=1) if pattern else job


def behind(jobs: Iterable[str], spelling: Sequence[str]) -> str:
    """`jobs` as what a further one is to come after, by `awaited` of the plan's dialect."""
    pattern, replacement = spelling
    return ":".join(dict.fromkeys(re.sub(pattern, replacement, job) if pattern else job for job in jobs))


def offset_of(offsets: Sequence[int], task: int) -> int:
    """What the scheduler's own index of a task lacks: 0 unless its array is several jobs, one for each offset."""
    return offsets[part_of(offsets, task)] if offsets else 0


def part_of(offsets: Sequence[int], task: int) -> int:
    """Which of the jobs of an array, from 0, has the task."""
    return max(bisect.bisect_right(offsets, task) - 1, 0)


def token_of(run: str, task: Optional[int], number: int) -> str:
    """The token of a run's job `number`, or of the one that is a task's own: `k3f9q2-2`, `k3f9q2.17-2`."""
    return f"{run}-{number}" if task is None else f"{run}.{task}-{number}"


def tokens_of(token: str, offsets: Sequence[int]) -> List[str]:
    """The tokens of the jobs that a submission is: itself, or `k3f9q2_0-1`, `k3f9q2_1000-1` of an array in parts."""
    run, _, number = token.rpartition("-")
    return [f"{run}_{offset}-{number}" for offset in offsets] or [token]


def task_of(token: str) -> Optional[int]:
    """The task whose own job it is; None for the run's."""
    task = token.rpartition("-")[0].partition(".")[2]
    return int(task) if task.isdecimal() else None


def number_of(token: str) -> int:
    return int(token.rpartition("-")[2])
