"""A folder on this node alone, for the stop file: no shared file system's cache between the head and a rank."""

from __future__ import annotations

import os
from pathlib import Path


def make(mark: str, node: int) -> Path:
    """A new folder that nobody else can have guessed, under the node's scratch."""
    directory = _base() / f"{_prefix(mark)}{node}.{os.urandom(6).hex()}"
    directory.mkdir(mode=0o700)
    return directory


def remove(mark: str) -> None:
    """Every folder that the attempt's agents on this node have made: one that was killed could not remove its own."""
    import shutil  # knows every kind of archive, and nobody needs it before the end

    prefix = _prefix(mark)
    for entry in os.scandir(_base()):
        if entry.name.startswith(prefix) and entry.stat(follow_symlinks=False).st_uid == os.getuid():
            shutil.rmtree(entry.path, ignore_errors=True)


def _base() -> Path:
    for name in ("SLURM_TMPDIR", "TMPDIR"):
        base = os.environ.get(name)
        if base and Path(base).is_dir():
            return Path(base)
    return Path("/tmp")  # noqa: S108 - the last resort, and the folder's own name cannot be guessed


def _prefix(mark: str) -> str:
    return f"serried-{mark.replace('/', '.')}."
