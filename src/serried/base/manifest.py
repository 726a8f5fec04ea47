"""The properties of a tree that a copy must share: paths, kinds, sizes, times, modes, links; and the scan for them.

Two trees with the same `key` count as equal. So a change of the source shows in a size or time, and a copy can be
recognised without reading content. On a slow file system several threads scan.
"""

from __future__ import annotations

import errno
import itertools
import os
import stat
import zlib
from functools import cached_property
from typing import Callable, Dict, Iterator, List, Optional, Sequence, Tuple, Union

from serried.base import NamedTuple, copy, tree

FILE, FOLDER, LINK, TWIN = "f", "d", "l", "h"
"""Kinds of entries. A twin is a further name (hard link) of the file whose path is its `target`."""

BLOCK = 4096
_HEAD = b"serried manifest 1"
_AT_ONCE, _CHUNK = 4096, 1 << 20
"""Entries to write and bytes to read at a time."""
WORKERS = 32
SPARSE = 1 << 20
"""Only files of at least this size are examined for holes."""
_SPECIAL = {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}


class ManifestEntry(NamedTuple):
    path: bytes
    """Below the root; empty for the root itself."""
    kind: str
    mode: int
    """Permissions only. The owner of the copy can always read it."""
    size: int
    """The size of a file; 0 for other kinds."""
    time: int
    """Modification time in nanoseconds."""
    held: int
    """Bytes of a file without its holes."""
    target: bytes
    """The target of a symbolic link, the first name of a twin, or the hash of a file's content if `scan` hashes."""

    @property
    def identity(self) -> ManifestEntry:
        """The properties that a copy must share. A folder's time only reflects its entries, so it does not count."""
        return self._replace(time=0 if self.target or self.kind != FILE else self.time, held=0)


class Manifest:
    """The root, then all entries below it in the order of paths: a folder precedes its content.

    Agents identify a file by its index in `entries`.
    """

    def __init__(self, entries: Sequence[ManifestEntry], problems: Sequence[str] = ()) -> None:
        self.entries = entries
        self.problems = problems
        """A sentence for each entry that was left out or that leads out of the tree."""

    @property
    def is_file(self) -> bool:
        return self.entries[0].kind == FILE

    @cached_property
    def key(self) -> str:
        """Equal for trees with the same content, wherever they are."""
        import hashlib

        digest = hashlib.sha256()
        for entry in self.entries:
            path, kind, mode, size, time, _, target = entry.identity
            digest.update(b"%b\0%b\0%d %d %d %b\0" % (path, target, mode, size, time, kind.encode()))
        return digest.hexdigest()[:32]

    @cached_property
    def held(self) -> int:
        return sum(entry.held for entry in self.entries)

    @cached_property
    def files(self) -> int:
        return sum(entry.kind == FILE for entry in self.entries)

    @cached_property
    def inodes(self) -> int:
        return sum(entry.kind != TWIN for entry in self.entries)

    @cached_property
    def blocks(self) -> int:
        """The bytes that a copy takes on a disk: even a small file takes a block."""
        return sum(entry.held + -entry.held % BLOCK for entry in self.entries) + BLOCK * self.inodes // 8

    def difference(self, other: Manifest) -> Optional[str]:
        """The first path that differs in `other`, as text; None if all are equal."""
        mine = {entry.path: entry.identity for entry in self.entries}
        for entry in other.entries:
            if mine.pop(entry.path, None) != entry.identity:
                return path_text(entry.path)
        return path_text(next(iter(mine))) if mine else None

    def to_bytes(self) -> bytes:
        packer = zlib.compressobj(1)
        packed = [packer.compress(b"%b\0%d" % (_HEAD, len(self.entries)))]
        batches = (self.entries[start : start + _AT_ONCE] for start in range(0, len(self.entries), _AT_ONCE))
        packed += (packer.compress(b"".join(map(_fields, batch))) for batch in batches)
        problems = (problem.encode("utf-8", "surrogateescape") for problem in self.problems)
        packed += (packer.compress(b"\0" + problem) for problem in problems)
        return b"".join([*packed, packer.flush()])

    @classmethod
    def from_bytes(cls, data: bytes) -> Manifest:
        """Raises ValueError if the data is torn or has a path that is not below the root."""
        entries: List[ManifestEntry] = []
        try:
            batches = _unpacked(data)
            head, count, *rest = next(batches, ())
            for batch in itertools.chain([()], batches):
                rest += batch
                end = 3 * min(len(rest) // 3, int(count) - len(entries))
                entries += map(_entry, rest[0:end:3], rest[1:end:3], rest[2:end:3])
                rest = rest[end:]
        except (zlib.error, TypeError, ValueError) as error:
            raise ValueError(f"invalid manifest: {error}") from None
        if head != _HEAD or len(entries) != int(count) or not entries:
            raise ValueError("invalid manifest, or a manifest of another version")
        _check(entries)
        return cls(entries, [problem.decode("utf-8", "surrogateescape") for problem in rest])


def _fields(entry: ManifestEntry) -> bytes:
    path, kind, mode, size, time, held, target = entry
    return b"\0%b\0%b %d %d %d %d\0%b" % (path, kind.encode(), mode, size, time, held, target)


def _unpacked(data: bytes) -> Iterator[Sequence[bytes]]:
    """Yield some fields at a time: all fields take as much memory as the entries. Raises zlib.error."""
    unpacker, rest = zlib.decompressobj(), b""
    while data and not unpacker.eof:
        *fields, rest = (rest + unpacker.decompress(data, _CHUNK)).split(b"\0")
        data = unpacker.unconsumed_tail
        yield fields
    if not unpacker.eof:
        raise zlib.error("truncated data")
    yield [rest]


def _entry(path: bytes, facts: bytes, target: bytes) -> ManifestEntry:
    kind, *numbers = facts.decode().split(" ")
    mode, size, time, held = map(int, numbers)
    return ManifestEntry(path, kind, mode, size, time, held, target)


def _check(entries: List[ManifestEntry]) -> None:
    """Check that each entry is in a folder that precedes it. So no path leads out of the root or through a link."""
    kinds: Dict[bytes, str] = {}
    for entry in entries:
        parent, _, name = entry.path.rpartition(b"/")
        is_root = not kinds and not entry.path
        if not is_root and (kinds.get(parent) != FOLDER or name in (b"", b".", b"..") or entry.path in kinds):
            raise ValueError(f"a manifest names {path_text(entry.path)!r}")
        if entry.kind == TWIN and kinds.get(entry.target) != FILE:
            raise ValueError(f"a manifest has {path_text(entry.path)!r} as a further name of a missing file")
        kinds[entry.path] = entry.kind


def path_text(path: bytes) -> str:
    return path.decode("utf-8", "surrogateescape")


class UnreadableError(OSError):
    """`str` is one sentence with the path."""

    def __init__(self, path: bytes, cause: Union[str, OSError]) -> None:
        super().__init__(f"`{path_text(path)}` {cause if isinstance(cause, str) else explain_unreadable(cause)}")


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
    top = given if isinstance(given, bytes) else encode_path(given)
    try:
        top = os.path.realpath(top)
        state = os.stat(top)
    except OSError as error:
        raise UnreadableError(top, error) from None
    if not (stat.S_ISDIR(state.st_mode) or stat.S_ISREG(state.st_mode)):
        raise UnreadableError(top, "is neither a file nor a folder")
    return _Scan(top, tree.Crew(workers, beat), hashed, anchored).manifest(state)


class _Scan:
    def __init__(self, top: bytes, pool: tree.Crew, hashed: bool, anchored: bool) -> None:
        self._top = top
        self._hashed, self._anchored = hashed, anchored
        self._pool = pool
        self._entries: List[ManifestEntry] = []
        self._problems: List[str] = []
        self._shared: Dict[Tuple[int, int], List[bytes]] = {}
        """Paths of the files that have several names."""

    def manifest(self, state: os.stat_result) -> Manifest:
        def refuse(path: bytes, error: OSError) -> None:
            raise UnreadableError(path, error) from None

        try:
            self._take(b"", state)
        except OSError as error:
            raise UnreadableError(self._top, error) from None
        if stat.S_ISDIR(state.st_mode):
            tree.visit(self._top, self._pool, self._take, refuse)
        firsts = {path: min(paths) for paths in self._shared.values() for path in paths}
        entries = [
            ManifestEntry(entry.path, TWIN, 0, 0, 0, 0, firsts[entry.path])
            if firsts.get(entry.path, entry.path) != entry.path
            else entry
            for entry in self._entries
        ]
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
            self._problems.append(f"{path_text(path)} is {_SPECIAL.get(kind, 'a special file')}, which is left out")

    def _goal(self, path: bytes) -> bytes:
        goal = os.readlink(self._full(path))
        first = os.path.normpath(os.path.join(os.path.dirname(path), goal)).split(b"/")[0]
        if not goal.startswith(b"/") and first != b"..":
            return goal
        self._problems.append(f"{path_text(path)} is a link that leads out of the tree, to {path_text(goal)}")
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


def encode_path(path: str) -> bytes:
    """`path` in the file system's bytes, whatever the locale is."""
    return path.encode("utf-8", "surrogateescape")


def explain_unreadable(error: OSError) -> str:
    """Why a path cannot be read, as the end of a sentence that begins with the path."""
    known = {errno.ENOENT: "does not exist", errno.ELOOP: "is a link that leads nowhere"}
    return known.get(error.errno or 0, f"cannot be read: {error_text(error)}")


def error_text(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
