"""What a rank says the moment it fails, before it closes its connections: in a file on its node's own disk.

The training library writes it, the agent of the node reads it. A rank that fails makes the others fail, and may be the
last to be gone; so the order in which ranks end does not tell which of them failed first.
"""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Iterable, NamedTuple, Optional, Pattern, Sequence

from serried.fs import files


class Word(NamedTuple):
    world_size: int
    """Of the ranks as it knows them: what a rank starts itself may have numbers of its own."""
    at: float
    """When it failed, on the node's monotonic clock."""
    exit_code: Optional[int]
    """What it will exit with; None where a signal will end it."""
    signal: Optional[int]
    error: str
    """The exception, as the last line of its traceback has it."""
    lost_peer: bool
    """It failed because another rank had gone."""
    order: Optional[int]
    """How many ranks had failed when it did, itself included; None where it could not be counted."""


_OF_LIBRARIES = (
    "torch.distributed.DistBackendError",
    "torch.distributed.DistNetworkError",
    "torch.distributed.DistStoreError",
    "horovod.common.exceptions.HorovodInternalError",
    "tensorflow.python.framework.errors_impl.UnavailableError",
)
"""Exceptions of a rank whose peer has gone: a consequence, wherever another rank has a cause."""

_OF_PYTHON = ("ConnectionAbortedError", "ConnectionResetError", "BrokenPipeError")
"""Of any connection, that of a data server too: a program may well handle them."""

_OF_GLOO = r"RuntimeError: \[\S*/gloo/\S+\.cc:\d+\]"
"""Gloo's have no type of their own, but say where in its source they were raised."""


def _one_of(types: Iterable[str]) -> Pattern[str]:
    return re.compile(rf"({'|'.join(map(re.escape, types))})(:|$)|{_OF_GLOO}")


_CAUSE = _one_of(_OF_LIBRARIES)
_LOST_PEER = _one_of((*_OF_LIBRARIES, *_OF_PYTHON))
_RANK = re.compile(r"\[rank\d+\]: ?")
"""Torch puts it before each line of a traceback."""
_EXCEPTION = re.compile(r"(?!nccl)[\w.]+(Error|Exception)(:|$)")
"""NCCL's results look like exceptions, but are lines of the message of torch's."""
_UNCAUGHT_ELSEWHERE = ("Exception ignored", "Exception in thread")


def comes_from_a_lost_peer(chain: Sequence[str]) -> bool:
    """Whether an exception does. `chain`: it and those that it was raised from, each as the last line of a traceback.

    Python's own types count only if nobody has handled them: a retried download may have raised the others.
    """
    return any(_LOST_PEER.match(line) for line in chain[:1]) or any(_CAUSE.match(line) for line in chain[1:])


def ends_with_a_lost_peer(lines: Iterable[str]) -> bool:
    """Whether the last exception in these lines of a log is such a one. Other lines may follow it."""
    result = is_in_stack = is_elsewhere = False
    for line in lines:
        text = line[found.end() :] if (found := _RANK.match(line)) else line
        if text.startswith(_UNCAUGHT_ELSEWHERE):
            is_elsewhere = True  # it does not end the program
        elif text.startswith("Traceback (most recent call last)"):
            is_in_stack = True
        elif _EXCEPTION.match(text) or (is_in_stack and text and not text[0].isspace()):
            result = result if is_elsewhere else bool(_LOST_PEER.match(text))
            is_in_stack = is_elsewhere = False
    return result


def path(stop_file: str, rank: int) -> Path:
    return Path(f"{stop_file}.failing-{rank}")


def write(stop_file: str, rank: int, word: Word) -> None:
    """Raises OSError."""
    files.write_json(path(stop_file, rank), word._asdict())


def take(stop_file: str, rank: int, world_size: int) -> Optional[Word]:
    """The word of `rank`, once: the next one is that of another process."""
    said = files.read_json(path(stop_file, rank))
    with contextlib.suppress(OSError):  # gone, or on a disk that takes no more
        path(stop_file, rank).unlink()
    try:
        word = Word(**{**said, "at": float(said["at"])}) if said else None
    except (KeyError, TypeError, ValueError):  # not by a library of ours
        return None
    if word is None or word.world_size != world_size:
        return None
    numbers = (word.exit_code, word.signal, word.order)
    return word if all(each is None or isinstance(each, int) for each in numbers) else None
