"""What a rank says the moment it fails, before it closes its connections: in a file on its node's own disk.

The training library writes it, the agent of the node reads it. A rank that fails makes the others fail, and may be the
last to be gone; so the order in which ranks end does not tell which of them failed first.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Iterable, NamedTuple, Optional

from serried.contract import files


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


LOST_PEER = (
    "torch.distributed.DistBackendError",
    "torch.distributed.DistNetworkError",
    "torch.distributed.DistStoreError",
    "horovod.common.exceptions.HorovodInternalError",
    "tensorflow.python.framework.errors_impl.UnavailableError",
    "ConnectionAbortedError",
    "ConnectionResetError",
    "BrokenPipeError",
)
"""Exceptions of a rank whose peer has gone: a consequence, wherever another rank has a cause."""

_OF_GLOO = r"RuntimeError: \[\S*/gloo/\S+\.cc:\d+\]"
"""Gloo's have no type of their own, but say where in its source they were raised."""

# Torch puts the rank before each line of a traceback.
_LOST_PEER = re.compile(rf"(\[rank\d+\]: ?)?(({'|'.join(map(re.escape, LOST_PEER))})(:|$)|{_OF_GLOO})")


def names_a_lost_peer(lines: Iterable[str]) -> bool:
    """Whether one of `lines` is the last line of such an exception's traceback."""
    return any(_LOST_PEER.match(line) for line in lines)


def path(stop_file: str, rank: int) -> Path:
    return Path(f"{stop_file}.failing-{rank}")


def write(stop_file: str, rank: int, word: Word) -> None:
    """Raises OSError."""
    files.write_json(path(stop_file, rank), word._asdict())


def take(stop_file: str, rank: int, world_size: int) -> Optional[Word]:
    """The word of `rank`, once: the next one is that of another process."""
    said = files.read_json(path(stop_file, rank))
    path(stop_file, rank).unlink(missing_ok=True)
    try:
        word = Word(**{**said, "at": float(said["at"])}) if said else None
    except (KeyError, TypeError, ValueError):  # not by a library of ours
        return None
    return word if word and word.world_size == world_size else None
