"""The signal of the user's choice that goes to ranks with a request to stop: to whom, exactly.

To the rank's own process, and not to helpers such as a loader's workers, which do not expect it. A shell that has no
trap for it would die of it at once and its program with it unheard: there it goes to what the shell runs.
"""

from __future__ import annotations

import contextlib
import os
from typing import List

SHELLS = frozenset({"sh", "bash", "dash", "ash", "zsh", "ksh", "mksh", "fish", "busybox"})
PROC = "/proc"


def give(pid: int, number: int) -> None:
    for one in audience(pid, number):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(one, number)


def audience(pid: int, number: int) -> List[int]:
    """The processes that are meant by a notice to `pid`."""
    if not _is_shell(pid) or _catches(pid, number):
        return [pid]
    return [one for child in _children(pid) for one in audience(child, number)] or [pid]


def _is_shell(pid: int) -> bool:
    try:
        return os.path.basename(os.readlink(f"{PROC}/{pid}/exe")) in SHELLS  # noqa: PTH115, PTH119 - strings
    except OSError:
        return False


def _catches(pid: int, number: int) -> bool:
    caught = next((line.split()[1] for line in _read(f"{pid}/status").splitlines() if line.startswith("SigCgt:")), "0")
    return bool(int(caught, 16) >> (number - 1) & 1)


def _children(pid: int) -> List[int]:
    return [int(child) for child in _read(f"{pid}/task/{pid}/children").split()]


def _read(path: str) -> str:
    try:
        with open(f"{PROC}/{path}", encoding="ascii", errors="replace") as file:  # noqa: PTH123 - a bare string
            return file.read()
    except OSError:  # it has ended, or there is no such file on this system
        return ""
