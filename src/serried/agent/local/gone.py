"""Nobody's any more: renamed aside, so that what is half removed looks like nothing, and removed as time allows."""

from __future__ import annotations

import contextlib
import os
import re
import time
from pathlib import Path
from typing import Callable, List, Optional

from serried.agent.local import room
from serried.contract import removal

MOUNTS = "/proc/self/mountinfo"
UNMOUNT = (("fusermount3", "-u", "-z"), ("fusermount", "-u", "-z"), ("umount", "-l"))
UNMOUNT_SECONDS = 5.0


def remove(own: Optional[Path], path: Path, until: Optional[float]) -> None:
    """Remove `path`, which is in room `own`, as far as time goes: the rest has no owner and no name."""
    unmount(path, until)
    with contextlib.suppress(OSError):
        if own is not None:
            path.chmod(0o700)  # a rank may have made it anything, and what cannot be written cannot be moved
            aside = room.sub(own, room.GONE) / path.name
            path = path.rename(aside)
    removal.remove(path, until)


def finish(own: Path, until: Optional[float] = None, of: Callable[[Path], bool] = lambda _: True) -> None:
    """Remove what others had no time for, or what of it `of` wants. Two may do so at once."""
    with contextlib.suppress(OSError):
        for entry in sorted(os.scandir(room.sub(own, room.GONE)), key=lambda entry: entry.name):
            path = Path(entry.path)
            if not of(path):
                continue
            if entry.is_dir(follow_symlinks=False):
                unmount(path, until)
                removal.remove(path, until)
            else:
                path.unlink(missing_ok=True)


def unmount(folder: Path, until: Optional[float] = None) -> None:
    """What is mounted below it is not ours to delete: images of data, which a killed agent could not let go."""
    points = mounted(folder)
    if not points:
        return
    import subprocess  # milliseconds, and hardly anybody needs it

    for point in sorted(points, reverse=True):
        for words in UNMOUNT:
            if until is not None and time.monotonic() > until:
                return  # what is mounted stays, with all that is in it
            with contextlib.suppress(OSError, subprocess.SubprocessError):
                done = subprocess.run(
                    [*words, point],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    timeout=UNMOUNT_SECONDS,
                    check=False,
                )
                if done.returncode == 0:
                    break


def mounted(folder: Path) -> List[str]:
    """Every mount point below it."""
    try:
        with open(MOUNTS, encoding="utf-8", errors="surrogateescape") as file:  # noqa: PTH123 - a bare string
            points = [_unescaped(line.split(" ")[4]) for line in file]
    except (OSError, IndexError):
        return []
    inside = os.path.realpath(folder) + "/"
    return [point for point in points if point.startswith(inside)]


def _unescaped(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found.group(1), 8)), text)
