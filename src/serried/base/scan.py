"""Builds the manifest of a tree, with several threads on a slow file system."""

from __future__ import annotations

import errno
import os
import stat
from typing import Callable, Dict, List, Tuple, Union

from serried.base import copy, tree
from serried.base.adaptive_pool import Crew
from serried.base.manifest import FILE, FOLDER, LINK, TWIN, Manifest, ManifestEntry, text

WORKERS = 32
SPARSE = 1 << 20
"""Only files of at least this size are examined for holes."""
_SPECIAL = {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}


class UnreadableError(OSError):
    """`str` is one sentence with the path."""

    def __init__(self, path: bytes, cause: Union[str, OSError]) -> None:
        super().__init__(f"`{text(path)}` {cause if isinstance(cause, str) else problem(cause)}")


def scan(
    root: Union[str, bytes, "os.PathLike[str]"],
    workers: int = WORKERS,
    *,
    hashed: bool = False,
    anchored: bool = False,
    beat: Callable[[], None] = lambda: None,
) -> Manifest:
    """The manifest of `root`, a folder or a file, or of the target if `root` is a symbolic link.

    `hashed` identifies files by their content, which is read, in place of their times.
    `anchored` replaces relative links that lead out of `root` by absolute ones, so that a copy leads to the same place.
    `beat` is called whenever there is progress.
    Links below `root` are not followed, and special files are left out.
    Raises UnreadableError, as a copy without that file would be incomplete.
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
    def __init__(self, top: bytes, pool: Crew, hashed: bool, anchored: bool) -> None:
        self._top = top
        self._hashed, self._anchored = hashed, anchored
        self._pool = pool
        self._entries: List[ManifestEntry] = []
        self._problems: List[str] = []
        self._shared: Dict[Tuple[int, int], List[bytes]] = {}
        """Paths of the files that have several names."""

    def manifest(self, state: os.stat_result) -> Manifest:
        try:
            self._take(b"", state)
        except OSError as error:
            raise UnreadableError(self._top, error) from None
        if stat.S_ISDIR(state.st_mode):
            tree.visit(self._top, self._pool, self._take, _refuse)
        firsts = {path: min(paths) for paths in self._shared.values() for path in paths}
        entries = [_twin(entry, firsts) if entry.path in firsts else entry for entry in self._entries]
        return Manifest(sorted(entries), sorted(self._problems))

    def _take(self, path: bytes, state: os.stat_result) -> None:
        mode, kind = state.st_mode & 0o777, stat.S_IFMT(state.st_mode)
        if kind == stat.S_IFREG:
            size = state.st_size
            held, content = self._held(path, state), self._hash(path, size) if self._hashed else b""
            self._entries.append(ManifestEntry(path, FILE, mode | 0o400, size, state.st_mtime_ns, held, content))
            if state.st_nlink > 1:
                self._shared.setdefault((state.st_dev, state.st_ino), []).append(path)
        elif kind == stat.S_IFDIR:
            self._entries.append(ManifestEntry(path, FOLDER, mode | 0o500, 0, state.st_mtime_ns, 0, b""))
        elif kind == stat.S_IFLNK:
            self._entries.append(ManifestEntry(path, LINK, 0o777, 0, state.st_mtime_ns, 0, self._goal(path)))
        else:
            self._problems.append(f"{text(path)} is {_SPECIAL.get(kind, 'a special file')}, which is left out")

    def _goal(self, path: bytes) -> bytes:
        """The target of a link."""
        goal = os.readlink(self._full(path))
        if not _leads_out(path, goal):
            return goal
        self._problems.append(f"{text(path)} is a link that leads out of the tree, to {text(goal)}")
        is_relative = not goal.startswith(b"/")
        return self._full(os.path.dirname(path)) + b"/" + goal if self._anchored and is_relative else goal

    def _held(self, path: bytes, state: os.stat_result) -> int:
        """The bytes that are not holes. Blocks alone are not enough: a file system may compress, or allocate later."""
        size = state.st_size
        if size < SPARSE or copy.held_bytes(state) >= size:
            return size
        try:
            descriptor = os.open(self._full(path), os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return size  # reading the file will report the error
        try:
            return sum(length for _, length in copy.data_extents(descriptor, 0, size))
        finally:
            os.close(descriptor)

    def _hash(self, path: bytes, size: int) -> bytes:
        """The hash of the first `size` bytes: another program may still append."""
        import hashlib

        digest = hashlib.blake2b(digest_size=16)
        with open(self._full(path), "rb", buffering=0) as file:
            while data := file.read(min(SPARSE, size)):
                digest.update(data)
                size -= len(data)
                self._pool.look()
        return digest.hexdigest().encode()

    def _full(self, path: bytes) -> bytes:
        return self._top + b"/" + path if path else self._top


def _refuse(path: bytes, error: OSError) -> None:
    raise UnreadableError(path, error) from None


def _twin(entry: ManifestEntry, firsts: Dict[bytes, bytes]) -> ManifestEntry:
    first = firsts[entry.path]
    return entry if entry.path == first else ManifestEntry(entry.path, TWIN, 0, 0, 0, 0, first)


def _leads_out(path: bytes, target: bytes) -> bool:
    parent = os.path.dirname(path)
    return target.startswith(b"/") or os.path.normpath(os.path.join(parent, target)).split(b"/")[0] == b".."


def encode(path: str) -> bytes:
    """`path` in the file system's bytes, whatever the locale is."""
    return path.encode("utf-8", "surrogateescape")


def problem(error: OSError) -> str:
    """Why a path cannot be read, as the end of a sentence that begins with the path."""
    known = {errno.ENOENT: "does not exist", errno.ELOOP: "is a link that leads nowhere"}
    return known.get(error.errno or 0, f"cannot be read: {reason(error)}")


def reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
