"""A rank's report of its own failure: a file on its node's disk, written before the rank closes its connections.

The training library writes it, and the agent of the node reads it. A failing rank makes other ranks fail and may be the
last to exit. So the order of exits does not show which rank failed first.
"""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Iterable, Iterator, List, Optional, Sequence

from serried.base import NamedTuple, files


class FailureReport(NamedTuple):
    world_size: int
    """As the rank knows it. Processes that a rank starts may count ranks of their own."""
    at: float
    """The time of the failure, on the node's monotonic clock."""
    exit_code: Optional[int]
    """Its coming exit status; None if a signal will end the rank."""
    signal: Optional[int]
    error: str
    """The exception, as in the last line of its traceback."""
    lost_peer: bool
    """The rank failed because it lost another rank."""
    order: Optional[int]
    """The number of failed ranks so far, this one included; None if it could not be counted."""
    is_past: bool = False
    """A later session of the rank has begun. Only if that one ends well is the failure retracted."""


class TakenReport(NamedTuple):
    report: FailureReport
    rank: int
    """As the process knows it that wrote the report."""
    calls: List[str]
    """The calls of Python in a job script, as in the record of a failed call, in which that process ran."""


_OF_LIBRARIES = (
    "torch.distributed.DistBackendError",
    "torch.distributed.DistNetworkError",
    "torch.distributed.DistStoreError",
    "horovod.common.exceptions.HorovodInternalError",
    "tensorflow.python.framework.errors_impl.UnavailableError",
)
"""Exceptions of a rank that lost a peer. They are a consequence if another rank has a different failure."""

_OF_PYTHON = ("ConnectionAbortedError", "ConnectionResetError", "BrokenPipeError")
"""Exceptions of any connection, such as that to a data server. A program may handle them."""

_OF_GLOO = r"RuntimeError: \[\S*/gloo/\S+\.cc:\d+\]"
"""Gloo's exceptions have no type of their own, but begin with a position in gloo's source."""


def _one_of(types: Iterable[str]) -> str:
    return rf"({'|'.join(map(re.escape, types))})(:|$)|{_OF_GLOO}"


_CAUSE = _one_of(_OF_LIBRARIES)
_LOST_PEER = _one_of((*_OF_LIBRARIES, *_OF_PYTHON))
_RANK = r"\[rank\d+\]: ?"
"""Torch's prefix of each line of a traceback."""
_EXCEPTION = r"(?!nccl)[\w.]+(Error|Exception)(:|$)"
"""Not NCCL's results, which look like exceptions but are part of torch's message."""
_UNCAUGHT_ELSEWHERE = ("Exception ignored", "Exception in thread")


def comes_from_a_lost_peer(chain: Sequence[str]) -> bool:
    """Whether an exception is due to a lost rank.

    `chain` is the exception and those from which it was raised, each as the last line of its traceback. Python's own
    types count only as the first: a retried download may have raised the others.
    """
    return any(re.match(_LOST_PEER, line) for line in chain[:1]) or any(re.match(_CAUSE, line) for line in chain[1:])


def ends_with_a_lost_peer(lines: Iterable[str]) -> bool:
    """Whether the last exception in these lines of a log is due to a lost rank. Other lines may follow."""
    return [False, *_are_lost_peers(lines)][-1]


def shows_only_lost_peers(lines: Iterable[str]) -> bool:
    """Whether all exceptions in these lines are due to a lost rank. They may be of several ranks that share a log."""
    found = [*_are_lost_peers(lines)]
    return bool(found) and all(found)


def lines_of_rank(lines: Iterable[str], rank: int) -> List[str]:
    """The lines of a log of several ranks in which torch names `rank`: its tracebacks."""
    return [line for line in lines if line.startswith(f"[rank{rank}]:")]


def is_of_no_rank(line: str) -> bool:
    """Whether a line of a log of several ranks does not begin with the number of its rank."""
    return re.match(_RANK, line) is None


def _are_lost_peers(lines: Iterable[str]) -> Iterator[bool]:
    """For each exception that may have ended a program: whether it is due to a lost rank."""
    is_in_stack = is_elsewhere = False
    for line in lines:
        text = line[prefix.end() :] if (prefix := re.match(_RANK, line)) else line
        if text.startswith(_UNCAUGHT_ELSEWHERE):
            is_elsewhere = True  # this exception does not end the program
        elif text.startswith("Traceback (most recent call last)"):
            is_in_stack = True
        elif re.match(_EXCEPTION, text) or (is_in_stack and text and not text[0].isspace()):
            if not is_elsewhere:
                yield bool(re.match(_LOST_PEER, text))
            is_in_stack = is_elsewhere = False


def place_of(stop_file: str, rank: int, launch: str = "", within: str = "") -> str:
    """The value of SERRIED_FAILURE_REPORT for a rank: where files of reports begin.

    In a job script, each call of Python adds `@CALL`. `launch` and `within` are those of a rank of a job script.
    """
    return f"{stop_file}.failing-{'-'.join(filter(None, (launch, within, str(rank))))}"


def _path(place: str, rank: int) -> Path:
    return Path(f"{place}.{rank}")


def write(place: str, rank: int, report: FailureReport) -> None:
    """Raises OSError."""
    files.write_json(_path(place, rank), report._asdict())


def begin_retry(place: str, rank: int) -> None:
    """A session begins: if the rank has reported a failure, that one no longer explains how the rank ends."""
    content = files.read_json(_path(place, rank))
    if content:
        files.write_json(_path(place, rank), {**content, "is_past": True})


def retract(place: str, rank: int) -> None:
    """A session has ended well: delete the report of an earlier one, but not that of a process beside it."""
    if (files.read_json(_path(place, rank)) or {}).get("is_past"):
        _path(place, rank).unlink(missing_ok=True)


def take(place: str) -> List[TakenReport]:
    """Read and delete the reports of a rank and of the processes that it started, the oldest first."""
    import glob

    begin = Path(place)
    taken = []
    for path in sorted(begin.parent.glob(f"{glob.escape(begin.name)}[.@]*")):
        calls, _, rank = path.name[len(begin.name) :].rpartition(".")
        report = _read(path)
        if report is not None and rank.isdigit():
            taken.append(TakenReport(report, int(rank), calls.split("@")[1:]))
        with contextlib.suppress(OSError):  # already deleted, or on a read-only disk
            path.unlink()
    return sorted(taken, key=lambda each: each.report.at)


def _read(path: Path) -> Optional[FailureReport]:
    content = files.read_json(path)
    try:
        report = FailureReport(**{**content, "at": float(content["at"])}) if content else None
    except (KeyError, TypeError, ValueError):  # not written by the training library
        return None
    if report is None:
        return None
    numbers = (report.exit_code, report.signal, report.order)
    return report if all(number is None or isinstance(number, int) for number in numbers) else None
