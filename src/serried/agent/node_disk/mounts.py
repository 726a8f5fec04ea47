"""What is mounted below a folder, and how it is taken off again, whoever still uses it."""

from __future__ import annotations

import contextlib
import os
import re
import time
from pathlib import Path
from typing import List, Optional

MOUNTS = "/proc/self/mountinfo"
UNMOUNT = (("fusermount3", "-u", "-z"), ("fusermount", "-u", "-z"), ("umount", "-l"))
"""All of them lazy: the mount goes at once, also where a process uses it and where its server is dead or hangs."""
UNMOUNT_SECONDS = 5.0
"""How long one of these programs may take."""


def unmount(point: Path, until: Optional[float] = None) -> bool:
    """Take off what is mounted at `point`, before `until` on the monotonic clock. Is nothing mounted there now?

    `point` itself is never looked at: the server of its file system may not answer.
    """
    import subprocess  # milliseconds, and hardly anybody needs it

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
    """What is mounted below it is not ours to delete: images of data, which a killed agent could not let go."""
    for point in sorted(below(folder), reverse=True):
        unmount(Path(point), until)


def below(folder: Path) -> List[str]:
    """Every mount point below it."""
    inside = _real(folder) + "/"
    return [point for point in _points() if point.startswith(inside)]


def _real(path: Path) -> str:
    return f"{os.path.realpath(path.parent).rstrip('/')}/{path.name}"


def _points() -> List[str]:
    try:
        with open(MOUNTS, encoding="utf-8", errors="surrogateescape") as file:  # noqa: PTH123 - a bare string
            return [_unescaped(line.split(" ")[4]) for line in file]
    except (OSError, IndexError):
        return []


def _unescaped(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found.group(1), 8)), text)
