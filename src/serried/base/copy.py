"""Copies content with its holes, and gives a copy its name in one step: under that name it is whole or absent."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path
from typing import Callable, Iterator, List, Tuple, Union

from serried.base import files, tree

CHUNK = 1 << 20
PART = ".part"
"""The end of the names of unfinished copies."""
_NO_KERNEL_COPY = (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EBADF)
_NO_HARD_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2


def copy_content(
    source: int,
    target: int,
    begin: int,
    end: int,
    on_chunk: Callable[[bytes], object] = lambda _: None,
    *,
    keeps_holes: bool = False,
) -> int:
    """Copy the bytes from `begin` to `end` of an open file to the same place of another. Returns where the copy ended.

    That is before `end` if the source has become shorter. `on_chunk` receives each chunk after it was written, and may
    raise to stop the copy.
    """
    for offset, length in data_extents(source, begin, end) if keeps_holes else [(begin, end - begin)]:
        at, stop = offset, offset + length
        while at < stop:
            chunk = os.pread(source, min(CHUNK, stop - at), at)
            if not chunk:
                return at
            write_all(target, chunk, at)
            at += len(chunk)
            on_chunk(chunk)
    if keeps_holes:
        os.ftruncate(target, end)
    return max(begin, end)


def copy_range(source: int, target: int, offset: int, length: int) -> None:
    """Copy `length` bytes at `offset`, in the kernel if possible. Raises OSError, EOFError."""
    end = offset + length
    while offset < end:
        try:
            count = os.copy_file_range(source, target, end - offset, offset, offset)
        except OSError as error:
            if error.errno not in _NO_KERNEL_COPY:
                raise
            break
        if not count:
            break  # some file systems return 0 in place of an error
        offset += count
    if copy_content(source, target, offset, end) < end:
        raise EOFError


def write_all(target: int, data: Union[bytes, bytearray, memoryview], offset: int) -> None:
    rest = memoryview(data)
    while rest:
        count = os.pwrite(target, rest, offset)
        rest, offset = rest[count:], offset + count


def data_extents(descriptor: int, begin: int, end: int) -> List[Tuple[int, int]]:
    """Where a file has data between two offsets, as (offset, length); the rest are holes."""
    extents = []
    while begin < end:
        try:
            start = os.lseek(descriptor, begin, os.SEEK_DATA)
            stop = os.lseek(descriptor, start, os.SEEK_HOLE)
        except OSError as error:
            if error.errno != errno.ENXIO:  # the file system does not support holes
                extents.append((begin, end - begin))
            break
        if start >= end:
            break
        extents.append((start, min(stop, end) - start))
        begin = stop
    return extents


def held_bytes(state: os.stat_result) -> int:
    """The bytes that a file occupies: less than its size if it has holes, or if the file system compresses."""
    return min(state.st_size, state.st_blocks * 512)


@contextlib.contextmanager
def temporary_path(folder: Path) -> Iterator[Path]:
    """A new name in `folder`. A file that still has the name on exit is deleted."""
    path = folder / f".serried-{os.urandom(6).hex()}{PART}"
    try:
        yield path
    finally:
        tree.remove(path)


def make_directories(root: Path, folder: str, mode: int = 0o777) -> Path:
    """Create `folder` below `root`, and follow no link there. Raises NotADirectoryError."""
    files.make_directory(root, mode)
    directory = root
    for name in filter(None, folder.split("/")):
        directory = directory / name
        with contextlib.suppress(FileExistsError):
            directory.mkdir(mode=mode)
        if not stat.S_ISDIR(directory.lstat().st_mode):
            raise NotADirectoryError(errno.ENOTDIR, f"`{name}` is not a folder", str(directory))
    return directory


def publish_exclusive(path: Path, target: Path) -> None:
    """Give `path` the name `target`. Raises FileExistsError if another file has that name."""
    if path.is_dir() and not path.is_symlink():
        try:
            path.rename(target)  # this replaces an empty folder, which loses nothing
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
        if error.errno not in _NO_HARD_LINKS:
            raise
        os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        path.replace(target)


def exchange(path: Path, target: Path) -> None:
    """Swap two folders in one step; in three renames if the file system cannot do so."""
    with contextlib.suppress(ImportError, OSError, AttributeError):
        import ctypes

        arguments = (_AT_FDCWD, os.fsencode(path), _AT_FDCWD, os.fsencode(target), _RENAME_EXCHANGE)
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
