"""Which folders of a node are for us to use: `serried-<uid>` on its disk, else where temporary files go."""

from __future__ import annotations

import contextlib
import errno
import os
import re
from pathlib import Path
from typing import Iterator, List, NamedTuple

from serried.agent.attempt import Attempt
from serried.fs import files

JOBS, GONE, DATA, IMAGES = "jobs", "gone", "data", "images"
EVERYWHERE = "/tmp"  # noqa: S108 - nobody else can write where we do
UNSET = re.compile(r"\$\w+|\$\{[^}]*\}?")


class Base(NamedTuple):
    path: Path
    is_disk: bool
    """Whether the site says so: worth to copy data to."""


def bases(work: Attempt) -> List[Base]:
    """Best first: what the job was given, what the profile names, what there is everywhere."""
    said = "" if unset(work) else os.path.expandvars(_said(work))
    wanted = [(os.environ.get("SLURM_TMPDIR", ""), True), (said, True)]
    wanted += [(os.environ.get("TMPDIR", ""), False), (EVERYWHERE, False)]
    found: List[Base] = []
    for path, is_disk in wanted:
        if path.startswith("/") and all(str(other.path) != os.path.normpath(path) for other in found):
            found.append(Base(Path(os.path.normpath(path)), is_disk))
    return found


def unset(work: Attempt) -> str:
    """What a node lacks to know its disk by the profile; empty where it knows it, or there is none."""
    found = UNSET.search(os.path.expandvars(_said(work)))
    return f"`{found.group()}` is not set there" if found else ""


def _said(work: Attempt) -> str:
    return str(work.plan["site"].get("local_disk") or "")


def name() -> str:
    return f"serried-{os.getuid()}"


def rooms(work: Attempt) -> Iterator[Path]:
    """Those that are there and ours alone, from this job or one before it."""
    for base in bases(work):
        room = base.path / name()
        if files.is_ours_alone(room):
            yield room


def make(base: Base) -> Path:
    """Ours there; a profile's folder is made. Raises OSError."""
    if base.is_disk:
        base.path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return sub(base.path, name())


def sub(folder: Path, name: str) -> Path:
    """`folder/name`, made and ours alone. Raises OSError."""
    path = folder / name
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    if not files.is_ours_alone(path):
        raise PermissionError(errno.EPERM, "not ours alone", str(path))
    return path


def last_resort() -> Path:
    """Where somebody else has taken every name of ours."""
    import tempfile

    return Path(tempfile.mkdtemp(prefix=f"{name()}-"))


def tidy(room: Path) -> None:
    """Remove what is empty of it: whoever needs it makes it again."""
    for folder in (room / JOBS, room / GONE, room):
        remove_empty(folder)


def remove_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):
        folder.rmdir()
