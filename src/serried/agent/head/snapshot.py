"""Unpacks the snapshot to the ranks' working tree, in the first attempt of a run or task."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import Any

from serried.agent.attempt import Attempt
from serried.base import files
from serried.base.text import seconds_of


def prepare(attempt: Attempt) -> None:
    """Create the source and the output folders of ranks in the run directory. Raises OSError."""
    unpack(attempt)
    for folder in (attempt.directory.checkpoints, attempt.directory.results):
        files.make_directory(folder, attempt.directory_mode)
    if attempt.tracking is not None:
        files.make_directory(Path(attempt.tracking.folder), attempt.directory_mode)


def unpack(attempt: Attempt) -> None:
    """Unpack the snapshot to `source/` unless it exists, atomically: other tasks may do the same.

    An existing tree contains files of earlier attempts and is kept. Raises OSError.
    """
    source = attempt.plan.source
    if not source.snapshot or not source.archive or attempt.tree.exists():
        return
    import shutil  # with its compressors it takes milliseconds, and runs in place have no snapshot

    aside = attempt.tree.with_name(f".source.{os.urandom(4).hex()}")
    aside.mkdir(mode=attempt.directory_mode)
    try:
        extract(attempt.run.path / source.archive, aside, int(seconds_of(attempt.plan.created) or 0))
        for entry in source.links:
            link(Path(source.directory) / entry, aside / entry)
        try:
            aside.rename(attempt.tree)
        except OSError:
            if not attempt.tree.is_dir():  # else another task of the array was faster
                raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def extract(archive: Path, target: Path, moment: int) -> None:
    """Unpack with the modes of mkdir and the umask: tarfile's own chmod would drop a folder's setgid.

    A hard link becomes a second file: a program may overwrite its own source. Every file gets the time `moment`, which
    distinguishes the snapshot's files from those that the run has written.
    """
    import tarfile

    try:
        with tarfile.open(archive) as tar:
            for member in tar:
                _extract_one(tar, member, target / member.name)
                with contextlib.suppress(OSError, NotImplementedError):
                    # Sites purge files also by the last access, so that is now.
                    os.utime(target / member.name, (time.time(), moment), follow_symlinks=False)
    except tarfile.TarError as error:
        raise OSError(f"cannot unpack {archive}: {error}") from error


def _extract_one(tar: Any, member: Any, path: Path) -> None:
    import shutil

    if member.isdir():
        path.mkdir(parents=True, exist_ok=True)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    if member.issym():
        path.symlink_to(member.linkname)
    elif member.isfile() or member.islnk():
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o777 if member.mode & 0o100 else 0o666)
        with os.fdopen(descriptor, "wb") as file:
            shutil.copyfileobj(tar.extractfile(member), file)


def link(original: Path, path: Path) -> None:
    """Link `path` to an entry of the project that is not in the snapshot."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not os.path.lexists(path):
        path.symlink_to(original)
