"""Lists mounts below a folder, and unmounts them even while processes use them."""

from __future__ import annotations

import contextlib
import os
import re
import time
from pathlib import Path
from typing import List, Optional

MOUNTS = "/proc/self/mountinfo"
UNMOUNT = (("fusermount3", "-u", "-z"), ("fusermount", "-u", "-z"), ("umount", "-l"))
"""All are lazy: the mount disappears at once, even if a process uses it, or if its server is dead or hangs."""
UNMOUNT_SECONDS = 5.0
"""For each of these programs."""


def unmount(point: Path, until: Optional[float] = None) -> bool:
    """Unmount `point` before `until` on the monotonic clock. True if nothing is mounted there now.

    `point` itself is never accessed: the server of its file system may not answer.
    """
    import subprocess  # takes milliseconds, and few processes need it

    path = _real(point)
    for words in UNMOUNT:
        if path not in _points():
            return True
        if until is not None and time.monotonic() > until:
            return False
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            subprocess.run(
                [*words, path],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=UNMOUNT_SECONDS,
                check=False,
            )
    return path not in _points()


def unmount_below(folder: Path, until: Optional[float] = None) -> None:
    """Unmount everything below `folder`, so that its deletion does not reach into images that a dead agent mounted."""
    for point in sorted(below(folder), reverse=True):
        unmount(Path(point), until)


def below(folder: Path) -> List[str]:
    """Every mount point below `folder`."""
    inside = _real(folder) + "/"
    return [point for point in _points() if point.startswith(inside)]


def _real(path: Path) -> str:
    return f"{os.path.realpath(path.parent).rstrip('/')}/{path.name}"


def _points() -> List[str]:
    def unescape(text: str) -> str:
        return re.sub(r"\\([0-7]{3})", lambda digits: chr(int(digits.group(1), 8)), text)

    try:
        with open(MOUNTS, encoding="utf-8", errors="surrogateescape") as file:  # noqa: PTH123 - a bare string
            return [unescape(line.split(" ")[4]) for line in file]
    except (OSError, IndexError):
        return []
