"""Find the reason of a rank's failure in the last lines of its output."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, List, Optional, Sequence

from serried.schema import failure_report, names
from serried.schema.exits import Exit
from serried.schema.reasons import Reason

if TYPE_CHECKING:
    from serried.agent.attempt import Attempt

LINES = 20
WINDOW = 16384
SHARED_WINDOW = 8 * WINDOW
"""Of a log that ranks share."""

SIGNS = (
    (
        Reason.OUT_OF_MEMORY,
        r"OutOfMemoryError|(?:CUDA|HIP)(?: error:)? out of memory|^MemoryError\b|std::bad_alloc|^Killed$",
    ),
    (Reason.IMPORT_ERROR, r"^(ModuleNotFoundError|ImportError): "),
    (Reason.COMMAND_NOT_FOUND, r"^\S*bash: line \d+: .*: command not found$"),
)
"""In order of precedence. They are compiled when a rank has failed: each takes as long as to load a module."""


def read_tail(path: Path, count: int = LINES, window: int = WINDOW, end: Optional[int] = None) -> List[str]:
    """The last `count` lines of a file of any size and content, at most `window` bytes; those before `end`.

    What a rank wrote in an earlier round does not count.
    """
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            size = size if end is None else min(size, end)
            begin = file.seek(max(0, size - window))
            text = file.read(size - begin).decode("utf-8", "replace")
    except OSError:
        return []
    lines = text.replace("\r\n", "\n").rstrip("\n").split("\n")[-count:] if text else []
    begun = max((at for at, line in enumerate(lines, 1) if re.search(rf"{names.ROUND_BEGINS}\d+$", line)), default=0)
    return [line.rpartition("\r")[2] for line in lines[begun:]]


def tail_of(attempt: Attempt, rank: int, node: Optional[int] = None) -> List[str]:
    """The last lines of `rank` on `node`. In a log that ranks share, those that name the rank, or else of all ranks."""
    log = attempt.log_of(rank, node)
    if not attempt.shares_log(rank):
        return read_tail(log)
    lines = read_tail(log, SHARED_WINDOW, SHARED_WINDOW)
    return (failure_report.lines_of_rank(lines, rank) or lines)[-LINES:]


def has_stumbled(log: Path) -> bool:
    """Whether a failed rank only lost another rank, by its last exception. Stacks of its threads may follow."""
    return failure_report.ends_with_a_lost_peer(read_tail(log, WINDOW))


def has_stumbled_in_shared(log: Path, rank: int) -> bool:
    """As `has_stumbled`. In a log that ranks share, exceptions that name no rank must all be of this kind."""
    lines = read_tail(log, SHARED_WINDOW, SHARED_WINDOW)
    own = failure_report.lines_of_rank(lines, rank)
    if own:
        return failure_report.ends_with_a_lost_peer(own)
    return failure_report.shows_only_lost_peers(filter(failure_report.is_of_no_rank, lines))


def cause(exit_: Exit, tail: Sequence[str]) -> Reason:
    """Why the rank of `exit_` ended: by the agent's observation, else the rank's output, else its status."""
    if exit_.problem:
        return Reason(exit_.problem)
    if exit_.oom:
        return Reason.OUT_OF_MEMORY
    if exit_.spared:
        tail = [line for line in tail if line != "Killed"]  # a shell's word for any signal 9
    usual = Reason.PEER_LOST if exit_.stumbled else Reason.SIGNAL if exit_.signal else Reason.EXIT
    return next((reason for reason, sign in SIGNS if any(re.search(sign, line) for line in tail)), usual)
