"""Looks at a tree and makes its manifest, many entries at a time where the file system is slow to answer."""

from __future__ import annotations

import errno
import os
import stat
from typing import Callable, Dict, List, Sequence, Tuple, Union

from serried.fs.adaptive_pool import Crew
from serried.fs.manifest import FILE, FOLDER, LINK, TWIN, Entry, Manifest, text

WORKERS = 32
BATCH = 64
"""Entries that one thread looks at before it takes the next."""
SPARSE = 1 << 20
"""Smaller files are not asked for holes."""
_SPECIAL = {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}


class UnreadableError(OSError):
    """What cannot be read of a source. `str` is one sentence that names it."""

    def __init__(self, path: bytes, because: Union[str, OSError]) -> None:
        said = because if isinstance(because, str) else problem(because)
        super().__init__(f"`{text(path)}` {said}")


def scan(
    root: Union[str, bytes, "os.PathLike[str]"],
    workers: int = WORKERS,
    *,
    hashed: bool = False,
    anchored: bool = False,
    beat: Callable[[], None] = lambda: None,
) -> Manifest:
    """What is in `root`, a folder or a file; where that is a symbolic link, in what it leads to.

    `hashed` reads all of it: a file is then known by its content instead of its time.
    `anchored` has relative links that lead out of it lead to the same place from anywhere: those of a copy do then.
    `beat` is called as it goes on.
    Links below are kept as links and not followed, so that no loop of them matters; special files are left out.
    Raises UnreadableError: what we may not read would be missing.
    """
    given = os.fspath(root)
    top = given if isinstance(given, bytes) else encode(given)
    try:
        top = os.path.realpath(top)
        state = os.stat(top)
    except OSError as error:
        raise UnreadableError(top, error) from None
    if not (stat.S_ISDIR(state.st_mode) or stat.S_ISREG(state.st_mode)):
        raise UnreadableError(top, "is neither a file nor a folder")
    return _Scan(top, Crew(workers, beat), hashed, anchored).manifest(state)


class _Scan:
    def __init__(self, top: bytes, crew: Crew, hashed: bool, anchored: bool) -> None:
        self._top = top
        self._hashed, self._anchored = hashed, anchored
        self._crew = crew
        self._entries: List[Entry] = []
        self._problems: List[str] = []
        self._shared: Dict[Tuple[int, int], List[bytes]] = {}
        """Paths of the files that have several names."""

    def manifest(self, state: os.stat_result) -> Manifest:
        try:
            self._take(b"", state)
        except OSError as error:
            raise UnreadableError(self._top, error) from None
        if stat.S_ISDIR(state.st_mode):
            self._crew.add(lambda: self._list(b""))
            self._crew.run()
        firsts = {path: min(paths) for paths in self._shared.values() for path in paths}
        entries = [_twin(entry, firsts) if entry.path in firsts else entry for entry in self._entries]
        return Manifest(sorted(entries), sorted(self._problems))

    def _list(self, folder: bytes) -> None:
        path = self._full(folder)
        try:
            with os.scandir(path) as found:
                names = [folder + b"/" + entry.name if folder else entry.name for entry in found]
        except OSError as error:
            if folder and isinstance(error, FileNotFoundError):
                return  # it went meanwhile, and all that was in it
            raise UnreadableError(path, error) from None
        for start in range(0, len(names), BATCH):
            batch = names[start : start + BATCH]
            self._crew.add(lambda batch=batch: self._look(batch))  # type: ignore[misc]

    def _look(self, batch: Sequence[bytes]) -> None:
        for path in batch:
            self._crew.look()
            try:
                state = os.lstat(self._full(path))
                self._take(path, state)
            except FileNotFoundError:
                continue  # it went meanwhile
            except OSError as error:
                raise UnreadableError(self._full(path), error) from None
            if stat.S_ISDIR(state.st_mode):
                self._crew.add(lambda folder=path: self._list(folder))  # type: ignore[misc]

    def _take(self, path: bytes, state: os.stat_result) -> None:
        mode, kind = state.st_mode & 0o777, stat.S_IFMT(state.st_mode)
        if kind == stat.S_IFREG:
            size = state.st_size
            held, content = self._held(path, state), self._hash(path, size) if self._hashed else b""
            self._entries.append(Entry(path, FILE, mode | 0o400, size, state.st_mtime_ns, held, content))
            if state.st_nlink > 1:
                self._shared.setdefault((state.st_dev, state.st_ino), []).append(path)
        elif kind == stat.S_IFDIR:
            self._entries.append(Entry(path, FOLDER, mode | 0o500, 0, state.st_mtime_ns, 0, b""))
        elif kind == stat.S_IFLNK:
            self._entries.append(Entry(path, LINK, 0o777, 0, state.st_mtime_ns, 0, self._goal(path)))
        else:
            self._problems.append(f"{text(path)} is {_SPECIAL.get(kind, 'a special file')}, and left out")

    def _goal(self, path: bytes) -> bytes:
        """Where a link leads."""
        goal = os.readlink(self._full(path))
        if not _leads_out(path, goal):
            return goal
        self._problems.append(f"{text(path)} is a link that leads out of it, to {text(goal)}")
        is_relative = not goal.startswith(b"/")
        return self._full(os.path.dirname(path)) + b"/" + goal if self._anchored and is_relative else goal

    def _held(self, path: bytes, state: os.stat_result) -> int:
        """Blocks alone do not tell: a file system may compress, or not have allocated yet."""
        size = state.st_size
        if size < SPARSE or state.st_blocks * 512 >= size:
            return size
        try:
            descriptor = os.open(self._full(path), os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return size  # who reads it will say so
        try:
            return sum(length for _, length in extents(descriptor, 0, size))
        finally:
            os.close(descriptor)

    def _hash(self, path: bytes, size: int) -> bytes:
        """Of no more than it had: what is written faster than we read it would never end."""
        import hashlib

        digest = hashlib.blake2b(digest_size=16)
        with open(self._full(path), "rb", buffering=0) as file:
            while data := file.read(min(SPARSE, size)):
                digest.update(data)
                size -= len(data)
                self._crew.look()
        return digest.hexdigest().encode()

    def _full(self, path: bytes) -> bytes:
        return self._top + b"/" + path if path else self._top


def extents(descriptor: int, start: int, end: int) -> List[Tuple[int, int]]:
    """Where a file has data between two offsets, as (offset, length); the rest are holes."""
    found = []
    while start < end:
        try:
            begin = os.lseek(descriptor, start, os.SEEK_DATA)
            stop = os.lseek(descriptor, begin, os.SEEK_HOLE)
        except OSError as error:
            if error.errno != errno.ENXIO:  # a file system that knows no holes
                found.append((start, end - start))
            break
        if begin >= end:
            break
        found.append((begin, min(stop, end) - begin))
        start = stop
    return found


def _twin(entry: Entry, firsts: Dict[bytes, bytes]) -> Entry:
    first = firsts[entry.path]
    return entry if entry.path == first else Entry(entry.path, TWIN, 0, 0, 0, 0, first)


def _leads_out(path: bytes, target: bytes) -> bool:
    parent = os.path.dirname(path)
    return target.startswith(b"/") or os.path.normpath(os.path.join(parent, target)).split(b"/")[0] == b".."


def encode(path: str) -> bytes:
    """`path` as the file system has it, whatever the locale is."""
    return path.encode("utf-8", "surrogateescape")


def problem(error: OSError) -> str:
    """What is wrong with a path, to be said after it."""
    known = {errno.ENOENT: "is not there", errno.ELOOP: "is a link that leads nowhere"}
    return known.get(error.errno or 0, f"cannot be read: {reason(error)}")


def reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
