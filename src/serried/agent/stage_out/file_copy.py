"""A copy of a file: made aside, then in its place at once; whole or not at all, and as old as what it was made from."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from pathlib import Path
from typing import Iterator, Optional

from serried.agent.stage_out import completeness
from serried.agent.stage_out.completeness import Found
from serried.agent.stage_out.throttle import Pace
from serried.fs import files

PIECE = 1 << 20
BLOCK = 512
"""In which the kernel counts what a file has on disk."""
SUFFIX = ".part"
"""With a dot before the name: nobody takes what is called so for finished."""
SAME_CLOCK_NS = 100_000_000
ROOM_SECONDS, SKEW_SECONDS = 0.5, 60.0
"""How long an answer holds."""
AT_FDCWD, RENAME_EXCHANGE = -100, 2
LEAST_ROOM, MOST_ROOM = 64 << 10, 64 << 20


class ChangedError(OSError):
    """It was written to while it was copied."""


class Modes:
    """Of what is made here, by what its source lets its owner do."""

    def __init__(self, modes: files.Modes) -> None:
        self.directory = modes.directory
        self._file = modes.file

    def of(self, source: int) -> int:
        return self._file | ((self._file & 0o444) >> 2 if source & 0o100 else 0)


@contextlib.contextmanager
def aside(folder: Path) -> Iterator[Path]:
    """A name in `folder` that is gone afterwards, if it was not renamed."""
    path = folder / f".serried-{os.urandom(6).hex()}{SUFFIX}"
    try:
        yield path
    finally:
        with contextlib.suppress(OSError):
            remove(path)


def copy(found: Found, target: Path, modes: Modes, pace: Pace, urgent: Optional[int] = None) -> int:
    """Make `target`, which nobody looks at yet; the time that it got, in nanoseconds.

    Raises ChangedError, OSError, and what `pace` raises.
    """
    if found.kind == "link":
        target.symlink_to(within(found))
        return target.lstat().st_mtime_ns
    source = os.open(found.source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        before = os.fstat(source)
        if not stat.S_ISREG(before.st_mode):
            raise ChangedError(errno.EAGAIN, "it is no file any more")
        if completeness.state_of(before) != found.state and not completeness.is_read_while_it_grows(found):
            raise ChangedError(errno.EAGAIN, "it was written to before it was copied")
        SERVER.check_room(target.parent, min(before.st_size, before.st_blocks * BLOCK))
        made = os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, modes.of(before.st_mode))
        try:
            if before.st_blocks * BLOCK < before.st_size:
                count = _pour_around_holes(source, made, before.st_size, pace, urgent)
            else:
                count = _pour(source, made, before.st_size, pace, urgent)
            after = os.fstat(source)
            is_as_it_was = (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns)
            has_grown = after.st_size >= before.st_size and completeness.is_read_while_it_grows(found)
            if count != before.st_size or not (is_as_it_was or has_grown):
                raise ChangedError(errno.EAGAIN, "it was written to while it was copied")
            return _age(made, before.st_mtime_ns)
        finally:
            os.close(made)
    finally:
        os.close(source)


def append(found: Found, target: Path, begin: int, pace: Pace) -> int:
    """Add to `target`, which holds the first `begin` bytes, what has come since; the time that it got."""
    source = os.open(found.source, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        made = os.open(target, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.lseek(source, begin, os.SEEK_SET)
            os.lseek(made, begin, os.SEEK_SET)
            more = os.fstat(source).st_size - begin
            SERVER.check_room(target.parent, more)
            _pour(source, made, more, pace, None)
            return _age(made, os.fstat(source).st_mtime_ns)
        finally:
            os.close(made)
    finally:
        os.close(source)


class Server:
    """What is known of the file system that is copied to, and asked again now and then: each question takes a while."""

    def __init__(self) -> None:
        self._room = self._skew = 0
        self._room_until = self._skew_until = 0.0

    def check_room(self, folder: Path, size: int) -> None:
        """Raises OSError where `size` would not leave room for what says how the run ended."""
        self._room -= size
        if time.monotonic() > self._room_until or self._room < 0:
            room = os.statvfs(folder)
            reserve = min(MOST_ROOM, max(LEAST_ROOM, room.f_blocks * room.f_frsize // 100))
            self._room = room.f_bavail * room.f_frsize - reserve - size
            self._room_until = time.monotonic() + ROOM_SECONDS
        if self._room < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))

    def skew(self, made: int) -> int:
        """By how many nanoseconds its clock is ahead of ours; `made` is a file of ours there."""
        if time.monotonic() > self._skew_until:
            before = time.time_ns()
            os.utime(made)
            after, theirs = time.time_ns(), os.fstat(made).st_mtime_ns
            self._skew = theirs - min(max(theirs, before), after)  # how long we took for it says nothing
            self._skew_until = time.monotonic() + SKEW_SECONDS
        return self._skew


SERVER = Server()


def make_folders(root: Path, folder: str, mode: int) -> Path:
    """`folder` below `root`, through no links. Raises NotADirectoryError where something else is in its way."""
    files.make_directory(root, mode)
    place = root
    for name in filter(None, folder.split("/")):
        place = place / name
        with contextlib.suppress(FileExistsError):
            place.mkdir(mode=mode)
        if not stat.S_ISDIR(place.lstat().st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(place))
    return place


def publish_new(path: Path, target: Path) -> None:
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

        words = (AT_FDCWD, os.fsencode(path), AT_FDCWD, os.fsencode(target), RENAME_EXCHANGE)
        if ctypes.CDLL(None).renameat2(*words) == 0:
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


def within(found: Found) -> str:
    """Where a link leads; relative, if that is a place that comes along with it."""
    leads = os.readlink(found.source)  # noqa: PTH115 - as it stands there
    if f"{leads}/".startswith(f"{found.root}/"):
        return os.path.relpath(leads, os.path.dirname(found.source))  # noqa: PTH120 - no links followed
    return leads


def _pour(source: int, made: int, size: int, pace: Pace, urgent: Optional[int]) -> int:
    """No more than `size`: what is written faster than we copy it would never end."""
    count = 0
    while count < size:
        piece = os.read(source, min(PIECE, size - count))
        if not piece:
            break
        count += len(piece)
        _write(made, piece)
        pace.heed(len(piece), urgent)
    if count >= PIECE:  # small ones are many, and go with what the file system does at their close
        os.fsync(made)
    return count


def _pour_around_holes(source: int, made: int, size: int, pace: Pace, urgent: Optional[int]) -> int:
    at = 0
    while at < size:
        try:
            at = os.lseek(source, at, os.SEEK_DATA)
            end = os.lseek(source, at, os.SEEK_HOLE)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            break  # nothing but a hole is left
        os.lseek(source, at, os.SEEK_SET)
        os.lseek(made, at, os.SEEK_SET)
        while at < end:
            piece = os.read(source, min(PIECE, end - at))
            if not piece:
                return at
            _write(made, piece)
            at += len(piece)
            pace.heed(len(piece), urgent)
    os.ftruncate(made, size)
    os.fsync(made)
    return size


def _write(made: int, piece: bytes) -> None:
    rest = memoryview(piece)
    while rest:
        rest = rest[os.write(made, rest) :]


def _age(made: int, changed: int) -> int:
    """As old by the file server's clock as its source is by this node's."""
    skew = SERVER.skew(made)
    at = changed if abs(skew) < SAME_CLOCK_NS else changed + skew
    os.utime(made, ns=(at, at))
    return os.fstat(made).st_mtime_ns
