"""What Slurm's commands print, as data. Pure.

Every query asks for explicit fields, divided by the unit separator, times in seconds since the
epoch, and no free text but as the last field. A row that is cut or unknown is dropped, never guessed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from serried.protocol import hostlist, names
from serried.protocol.job_states import state_of
from serried.schedulers import indices
from serried.schedulers.interface import Job

SEPARATOR = "\x1f"

JOB_FIELDS = (
    "ArrayJobID",
    "ArrayTaskID",
    "State",
    "Reason",
    "exit_code",
    "StartTime",
    "EndTime",
    "RestartCnt",
    "NodeList",
    "Name",
)
JOB_FORMAT = ",".join(f"{field}:{SEPARATOR}" for field in JOB_FIELDS)
"""For `squeue --Format`: no width, so that nothing is cut off."""

NAME_FORMAT = f"ArrayJobID:{SEPARATOR},Name:{SEPARATOR}"

ACCOUNT_FIELDS = ("JobID", "State", "ExitCode", "End", "NodeList", "JobName")

_ID = re.compile(r"^(\d+)(?:_(\d+|\[[^\]]*\])|\+\d+)?$")
_SUBMITTED = re.compile(r"^(\d+)(?:;[\w.-]+)?$")


def submitted_id(stdout: str) -> str | None:
    """The job id in what `sbatch --parsable` printed: the last line that is one, for sites print banners."""
    matches = [match for line in stdout.splitlines() if (match := _SUBMITTED.match(line.strip()))]
    return matches[-1][1] if matches else None


def state(word: str) -> str:
    """Ours for `CANCELLED by 1000`, `RUNNING+`, `TIMEOUT`; UNKNOWN for a word we do not know."""
    first = word.split(maxsplit=1)[0].rstrip("+") if word.strip() else ""
    return state_of(first)


def queue(stdout: str) -> list[Job]:
    """The jobs in `squeue --Format=JOB_FORMAT`, each element of an array on its own."""
    return [job for row in _rows(stdout, len(JOB_FIELDS) + 1) for job in _queue_row(row[:-1])]


def accounting(stdout: str) -> list[Job]:
    """The jobs in `sacct -X -P --delimiter=SEPARATOR` with ACCOUNT_FIELDS."""
    return [job for row in _rows(stdout, len(ACCOUNT_FIELDS)) for job in _account_row(row)]


def named(stdout: str) -> list[tuple[str, str]]:
    """(job id, name) pairs, the name last. A name with a newline spoils its own row alone."""
    pairs = []
    for line in stdout.split("\n"):
        job, _, name = line.strip().rstrip(SEPARATOR).partition(SEPARATOR)
        if match := _ID.match(job):
            pairs.append((match[1], name))
    return pairs


def _rows(stdout: str, width: int) -> Iterator[list[str]]:
    for line in stdout.split("\n"):
        fields = [field.strip() for field in line.split(SEPARATOR)]
        if len(fields) == width:
            yield fields


def _queue_row(fields: list[str]) -> Iterator[Job]:
    number, task, word, reason, status, start, end, restarts, nodes, name = fields
    elements = _elements(task)
    if not number.isdigit() or elements is None:
        return
    verdict = state(word)
    exit_code, signal = wait_status(status) if verdict in names.ENDED else (None, None)
    for element in elements:
        yield Job(
            id=number,
            element=element,
            state=verdict,
            raw=word,
            reason="" if reason == "None" else reason,
            exit_code=exit_code,
            signal=signal,
            ended=_time(end) if verdict in names.ENDED else None,
            starts=_time(start) if verdict == names.PENDING else None,
            nodes=_nodes(nodes),
            restarts=int(restarts) if restarts.isdigit() else 0,
            name=name,
        )


def _account_row(fields: list[str]) -> Iterator[Job]:
    number, word, status, end, nodes, name = fields
    match = _ID.match(number)
    elements = _elements(match[2] or "") if match else None
    if match is None or elements is None:
        return
    verdict = state(word)
    exit_code, signal = wait_status(status) if verdict in names.ENDED else (None, None)
    for element in elements:
        yield Job(
            id=match[1],
            element=element,
            state=verdict,
            raw=word,
            exit_code=exit_code,
            signal=signal,
            ended=_time(end) if verdict in names.ENDED else None,
            nodes=_nodes(nodes),
            name=name,
        )


def wait_status(text: str) -> tuple[int | None, int | None]:
    """(exit code, signal) from `3:0`, or from squeue's raw wait status (`768`); None where there is none."""
    code, colon, signal = text.partition(":")
    if not code.isdigit() or (colon and not signal.isdigit()):
        return None, None
    if colon:
        return int(code), int(signal) or None
    return int(code) >> 8, int(code) & 0x7F or None


def _elements(text: str) -> list[int | None] | None:
    """Array indices; [None] for a job that is no array, None for what is neither."""
    if text in {"", "N/A"}:
        return [None]
    try:
        return list(indices.expand(text))
    except ValueError:
        return None


def _time(text: str) -> float | None:
    """Seconds since the epoch; None for `N/A`, `Unknown` and `None`."""
    return float(text) if text.isdigit() and int(text) else None


def _nodes(text: str) -> tuple[str, ...]:
    try:
        return () if text in {"", "N/A", "None assigned", "(null)"} else tuple(hostlist.expand(text))
    except ValueError:
        return ()
