"""Copies a file under a temporary name and renames it: whole or absent, with the modification time of its source."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from pathlib import Path
from typing import Iterator, Optional

from serried.agent.stage_out import completeness
from serried.agent.stage_out.completeness import Artifact
from serried.agent.stage_out.throttle import Throttle
from serried.fs import files

CHUNK = 1 << 20
BLOCK = 512
"""In which the kernel counts what a file has on disk."""
SUFFIX = ".part"
"""With a dot before the name: nobody takes what is called so for finished."""
SAME_CLOCK_NS = 100_000_000
FREE_SECONDS, SKEW_SECONDS = 0.5, 60.0
"""How long an answer holds."""
AT_FDCWD, RENAME_EXCHANGE = -100, 2
LEAST_RESERVE, MOST_RESERVE = 64 << 10, 64 << 20


class ChangedError(OSError):
    """It was written to while it was copied."""


class CopyModes:
    """Of what is made here, by what its source lets its owner do."""

    def __init__(self, modes: files.Modes) -> None:
        self.directory = modes.directory
        self._file = modes.file

    def file_mode(self, source: int) -> int:
        return self._file | ((self._file & 0o444) >> 2 if source & 0o100 else 0)


@contextlib.contextmanager
def temporary_path(folder: Path) -> Iterator[Path]:
    """A name in `folder` that is gone afterwards, if it was not renamed."""
    path = folder / f".serried-{os.urandom(6).hex()}{SUFFIX}"
    try:
        yield path
    finally:
        with contextlib.suppress(OSError):
            remove(path)


def copy_file(
    artifact: Artifact, target: Path, modes: CopyModes, throttle: Throttle, urgent_before: Optional[int] = None
) -> int:
    """Make `target`, which nobody looks at yet; the time that it got, in nanoseconds.

    Raises ChangedError, OSError, and what `pace` raises.
    """
    if artifact.kind == "link":
        target.symlink_to(link_target(artifact))
        return target.lstat().st_mtime_ns
    source_fd = os.open(artifact.source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        before = os.fstat(source_fd)
        if not stat.S_ISREG(before.st_mode):
            raise ChangedError(errno.EAGAIN, "it is no file any more")
        if completeness.fingerprint_of(before) != artifact.fingerprint and not completeness.is_append_only_text(
            artifact
        ):
            raise ChangedError(errno.EAGAIN, "it was written to before it was copied")
        FILESYSTEM.check_space(target.parent, min(before.st_size, before.st_blocks * BLOCK))
        target_fd = os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, modes.file_mode(before.st_mode))
        try:
            if before.st_blocks * BLOCK < before.st_size:
                count = _copy_sparse(source_fd, target_fd, before.st_size, throttle, urgent_before)
            else:
                count = _copy_bytes(source_fd, target_fd, before.st_size, throttle, urgent_before)
            after = os.fstat(source_fd)
            is_as_it_was = (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns)
            has_grown = after.st_size >= before.st_size and completeness.is_append_only_text(artifact)
            if count != before.st_size or not (is_as_it_was or has_grown):
                raise ChangedError(errno.EAGAIN, "it was written to while it was copied")
            return _set_mtime(target_fd, before.st_mtime_ns)
        finally:
            os.close(target_fd)
    finally:
        os.close(source_fd)


def append_tail(artifact: Artifact, target: Path, begin: int, throttle: Throttle) -> int:
    """Add to `target`, which holds the first `begin` bytes, what has come since; the time that it got."""
    source_fd = os.open(artifact.source, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        target_fd = os.open(target, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.lseek(source_fd, begin, os.SEEK_SET)
            os.lseek(target_fd, begin, os.SEEK_SET)
            added = os.fstat(source_fd).st_size - begin
            FILESYSTEM.check_space(target.parent, added)
            _copy_bytes(source_fd, target_fd, added, throttle, None)
            return _set_mtime(target_fd, os.fstat(source_fd).st_mtime_ns)
        finally:
            os.close(target_fd)
    finally:
        os.close(source_fd)


class TargetFilesystem:
    """What is known of the file system that is copied to, and asked again now and then: each question takes a while."""

    def __init__(self) -> None:
        self._free_bytes = self._skew = 0
        self._free_until = self._skew_until = 0.0

    def check_space(self, folder: Path, size: int) -> None:
        """Raises OSError where `size` would not leave room for what says how the run ended."""
        self._free_bytes -= size
        if time.monotonic() > self._free_until or self._free_bytes < 0:
            statistics = os.statvfs(folder)
            reserve = min(MOST_RESERVE, max(LEAST_RESERVE, statistics.f_blocks * statistics.f_frsize // 100))
            self._free_bytes = statistics.f_bavail * statistics.f_frsize - reserve - size
            self._free_until = time.monotonic() + FREE_SECONDS
        if self._free_bytes < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))

    def clock_skew(self, descriptor: int) -> int:
        """By how many nanoseconds its clock is ahead of ours; `made` is a file of ours there."""
        if time.monotonic() > self._skew_until:
            before = time.time_ns()
            os.utime(descriptor)
            after, theirs = time.time_ns(), os.fstat(descriptor).st_mtime_ns
            self._skew = theirs - min(max(theirs, before), after)  # how long we took for it says nothing
            self._skew_until = time.monotonic() + SKEW_SECONDS
        return self._skew


FILESYSTEM = TargetFilesystem()


def make_directories(root: Path, folder: str, mode: int) -> Path:
    """`folder` below `root`, through no links. Raises NotADirectoryError where something else is in its way."""
    files.make_directory(root, mode)
    directory = root
    for name in filter(None, folder.split("/")):
        directory = directory / name
        with contextlib.suppress(FileExistsError):
            directory.mkdir(mode=mode)
        if not stat.S_ISDIR(directory.lstat().st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(directory))
    return directory


def publish_exclusive(path: Path, target: Path) -> None:
    """Give it its name, if nobody has it. Raises FileExistsError."""
    if path.is_dir() and not path.is_symlink():
        try:
            path.rename(target)  # over an empty folder too, which is as good
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR, errno.EISDIR):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target)) from error
            raise
        return
    try:
        os.link(path, target, follow_symlinks=False)
    except FileExistsError:
        raise
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK):
            raise
        os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        path.replace(target)


def exchange(path: Path, target: Path) -> None:
    """Each folder gets the other's place: at once, or, where the file system cannot, as good as at once."""
    with contextlib.suppress(ImportError, OSError, AttributeError):
        import ctypes

        arguments = (AT_FDCWD, os.fsencode(path), AT_FDCWD, os.fsencode(target), RENAME_EXCHANGE)
        if ctypes.CDLL(None).renameat2(*arguments) == 0:
            return
    old = path.with_name(f"{path.name}.old")
    target.rename(old)
    try:
        path.rename(target)
    except OSError:
        old.rename(target)
        raise
    old.rename(path)


def remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        import shutil

        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def link_target(artifact: Artifact) -> str:
    """Where a link leads; relative, if that is a place that comes along with it."""
    destination = os.readlink(artifact.source)  # noqa: PTH115 - as it stands there
    if f"{destination}/".startswith(f"{artifact.root}/"):
        return os.path.relpath(destination, os.path.dirname(artifact.source))  # noqa: PTH120 - no links followed
    return destination


def _copy_bytes(source_fd: int, target_fd: int, size: int, throttle: Throttle, urgent_before: Optional[int]) -> int:
    """No more than `size`: what is written faster than we copy it would never end."""
    count = 0
    while count < size:
        chunk = os.read(source_fd, min(CHUNK, size - count))
        if not chunk:
            break
        count += len(chunk)
        _write_all(target_fd, chunk)
        throttle.advance(len(chunk), urgent_before)
    if count >= CHUNK:  # small ones are many, and go with what the file system does at their close
        os.fsync(target_fd)
    return count


def _copy_sparse(source_fd: int, target_fd: int, size: int, throttle: Throttle, urgent_before: Optional[int]) -> int:
    at = 0
    while at < size:
        try:
            at = os.lseek(source_fd, at, os.SEEK_DATA)
            end = os.lseek(source_fd, at, os.SEEK_HOLE)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            break  # nothing but a hole is left
        os.lseek(source_fd, at, os.SEEK_SET)
        os.lseek(target_fd, at, os.SEEK_SET)
        while at < end:
            chunk = os.read(source_fd, min(CHUNK, end - at))
            if not chunk:
                return at
            _write_all(target_fd, chunk)
            at += len(chunk)
            throttle.advance(len(chunk), urgent_before)
    os.ftruncate(target_fd, size)
    os.fsync(target_fd)
    return size


def _write_all(target_fd: int, chunk: bytes) -> None:
    rest = memoryview(chunk)
    while rest:
        rest = rest[os.write(target_fd, rest) :]


def _set_mtime(target_fd: int, mtime_ns: int) -> int:
    """As old by the file server's clock as its source is by this node's."""
    skew = FILESYSTEM.clock_skew(target_fd)
    adjusted_ns = mtime_ns if abs(skew) < SAME_CLOCK_NS else mtime_ns + skew
    os.utime(target_fd, ns=(adjusted_ns, adjusted_ns))
    return os.fstat(target_fd).st_mtime_ns
