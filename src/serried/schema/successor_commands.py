"""The commands by which a job submits the next job, cancels it, and queries the state of the job before.

The submitting side writes the commands with blanks to link-commands.json, and a job fills the blanks. A blank contains
a NUL, which no argument of a program can contain. Each scheduler's `state_query` prints a word of `STATES`, or nothing
for a job that it does not list.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

from serried.base import NamedTuple
from serried.base.files import read_json
from serried.schema import SCHEMA, names

TOKEN = "\0the token\0"  # noqa: S105 - names a submission, is not a secret
JOB = "\0job\0"
"""The id of a job, or of a task of an array job, in the scheduler's format."""
TASK = "\0task\0"
HOSTS = "\0hosts\0"
"""Names of nodes, with commas."""


class Commands(NamedTuple):
    submit: Sequence[str]
    """Submits the job TOKEN to start after any end of JOB, for an array with the one task TASK. Prints the new id."""
    cancel: Sequence[str]
    """Cancels JOB."""
    ask: Sequence[str]
    """Prints the state of JOB in one word, or nothing if the scheduler does not list JOB. Fails without an answer."""
    environment: Mapping[str, Optional[str]]
    """The values at submit of variables that the scheduler changes in a job; None is unset."""
    strands: bool = False
    """Whether a job never starts once a job that it waits for is deleted before it begins."""
    id_pattern: str = r"^(\S+)$"
    """Matches the line of `submit`'s output that is the new id, its only group."""
    exclude: Sequence[str] = ()
    """Keeps JOB, which waits, from the nodes HOSTS; empty if the scheduler has no command for that."""

    def to_json(self) -> Dict[str, Any]:
        return {"schema": SCHEMA, **self._asdict()}


def read(path: Path) -> Optional[Commands]:
    """None if the file does not exist."""
    content = read_json(path)
    if content is None:
        return None
    return Commands(**{name: content[name] for name in Commands._fields if name in content})


def fill(
    command: Sequence[str], *, token: str = "", job: str = "", task: Optional[int] = None, hosts: str = ""
) -> List[str]:
    blanks = {TOKEN: token, JOB: job, TASK: "" if task is None else str(task), HOSTS: hosts}
    words = list(command)
    for blank, value in blanks.items():
        words = [word.replace(blank, value) for word in words]
    return words


def new_id(output: str, pattern: str) -> Optional[str]:
    """The id that a submission printed: on the last line that matches, because sites print banners."""
    matches = [match for line in output.splitlines() if (match := re.match(pattern, line.strip()))]
    return matches[-1][1] if matches else None


def job_of(job: str, task: Optional[int], spelling: Sequence[str]) -> str:
    """The id of a task of an array job, by `task` of the plan's dialect.

    A job for one task alone may not be an array to the scheduler, and keeps its own id.
    """
    if task is None:
        return job
    pattern, replacement = spelling
    return re.sub(pattern, replacement.format(task), job, count=1) if pattern else job


def behind(jobs: Iterable[str], spelling: Sequence[str]) -> str:
    """The dependency of a further job on `jobs`, by `awaited` of the plan's dialect."""
    pattern, replacement = spelling
    return ":".join(dict.fromkeys(re.sub(pattern, replacement, job) if pattern else job for job in jobs))


def offset_of(offsets: Sequence[int], task: int) -> int:
    """The difference between a task's index and the scheduler's own: 0 unless the array has several jobs."""
    return offsets[part_of(offsets, task)] if offsets else 0


def part_of(offsets: Sequence[int], task: int) -> int:
    """The index of the array's job that has the task."""
    import bisect

    return max(bisect.bisect_right(offsets, task) - 1, 0)


def token_of(run: str, task: Optional[int], number: int) -> str:
    """The token of job `number` of a run, `k3f9q2-2`, or of one of its tasks, `k3f9q2.17-2`."""
    return f"{run}-{number}" if task is None else f"{run}.{task}-{number}"


def tokens_of(token: str, offsets: Sequence[int]) -> List[str]:
    """The tokens of a submission's jobs: `token`, or `k3f9q2_0-1`, `k3f9q2_1000-1` for an array in parts."""
    run, _, number = token.rpartition("-")
    return [f"{run}_{offset}-{number}" for offset in offsets] or [token]


def task_of(token: str) -> Optional[int]:
    """The task of a job for one task alone; None for other jobs."""
    task = token.rpartition("-")[0].partition(".")[2]
    return int(task) if task.isdecimal() else None


def number_of(token: str) -> int:
    return int(token.rpartition("-")[2])


COMPLETING = "COMPLETING"
"""The job has ended. Some of its processes or nodes may still be busy, and its end is not yet known."""

STATES = {
    word: state
    for state, words in {
        # REQUEUE_HOLD: until an administrator releases it.
        names.PENDING: "PENDING CONFIGURING EXPEDITING POWER_UP_NODE REQUEUED REQUEUE_FED REQUEUE_HOLD RESV_DEL_HOLD "
        "SPECIAL_EXIT",
        names.RUNNING: f"RUNNING {COMPLETING} RESIZING SIGNALING STAGE_OUT STOPPED SUSPENDED",
        names.COMPLETED: "COMPLETED",
        names.FAILED: "FAILED",
        names.CANCELLED: "CANCELLED REVOKED",
        names.TIMEOUT: "TIMEOUT DEADLINE",
        names.OUT_OF_MEMORY: "OUT_OF_MEMORY",
        names.NODE_FAIL: "NODE_FAIL BOOT_FAIL",
        names.PREEMPTED: "PREEMPTED",
        names.LAUNCH_FAILED: "LAUNCH_FAILED RECONFIG_FAIL",
    }.items()
    for word in words.split()
}
"""Serried's state for each word."""


def state_of(word: Optional[str]) -> str:
    return STATES.get(word or "", names.UNKNOWN)


def has_ended(word: str) -> bool:
    """Whether the job's end is known, or the scheduler no longer lists the job."""
    return not word or state_of(word) in names.ENDED


def is_ending(word: str) -> bool:
    """Whether the job has ended or is ending: it submits nothing more, and its agents have exited or will soon."""
    return has_ended(word) or word == COMPLETING


def query(script: str, job: str) -> Tuple[str, ...]:
    """The command that prints the state of `job`, from `state_query` of the plan's dialect."""
    return ("/bin/bash", "-c", script, "ask", job)
