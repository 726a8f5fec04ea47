"""What a process was started with; also of a program that is just being started, which for a moment has nothing yet."""

from __future__ import annotations

import time
from typing import List

PROC = "/proc"
EXEC_SECONDS = 1.0
"""For which it may have nothing: then a machine is very busy."""


def environ(pid: int) -> bytes:
    """`NAME=value` entries, each ended by a NUL. Raises OSError where the process is gone, or another user's."""
    deadline = time.monotonic() + EXEC_SECONDS
    while True:
        with open(f"{PROC}/{pid}/environ", "rb") as file:  # noqa: PTH123 - thousands of files of /proc
            entries = file.read()
        if entries or _has_none(pid) or time.monotonic() > deadline:
            return entries
        time.sleep(0.001)


def stat(pid: int) -> List[str]:
    """Fields 3 and on of /proc/PID/stat; the second, the name, may hold spaces and parentheses. Raises OSError."""
    with open(f"{PROC}/{pid}/stat", "rb") as file:  # noqa: PTH123 - see above
        return file.read().rpartition(b")")[2].decode("ascii", "replace").split()


def began(pid: int) -> str:
    """When it started, in clock ticks after boot: no later process of its pid has the same. "" where nothing tells."""
    try:
        return stat(pid)[19]
    except (OSError, IndexError):
        return ""


def _has_none(pid: int) -> bool:
    """Whether it has no environment for good: no memory, as a zombie or a thread of the kernel, or an empty one.

    Amid an exec it has memory, and the environment neither a beginning nor an end.
    """
    fields = stat(pid)
    return len(fields) < 49 or fields[0] in "ZX" or fields[20] == "0" or fields[47] == fields[48] != "0"
