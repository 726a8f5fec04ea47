"""The properties of a tree that a copy must share: paths, kinds, sizes, times, modes, links.

Two trees with the same `key` count as equal. So a change of the source shows in a size or time, and a copy can be
recognised without reading content.
"""

from __future__ import annotations

import itertools
import zlib
from functools import cached_property
from typing import Dict, Iterator, List, NamedTuple, Optional, Sequence

FILE, FOLDER, LINK, TWIN = "f", "d", "l", "h"
"""Kinds of entries. A twin is a further name (hard link) of the file whose path is its `target`."""

BLOCK = 4096
_HEAD = b"serried manifest 1"
_AT_ONCE, _CHUNK = 4096, 1 << 20
"""Entries to write and bytes to read at a time."""


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
        """Whether the root is a file."""
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
        """The bytes of all files without holes."""
        return sum(entry.held for entry in self.entries)

    @cached_property
    def files(self) -> int:
        """The number of files without twins."""
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
                return text(entry.path)
        return text(next(iter(mine))) if mine else None

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
            raise ValueError(f"a manifest names {text(entry.path)!r}")
        if entry.kind == TWIN and kinds.get(entry.target) != FILE:
            raise ValueError(f"a manifest has {text(entry.path)!r} as a further name of a missing file")
        kinds[entry.path] = entry.kind


def text(path: bytes) -> str:
    """`path` for messages and JSON."""
    return path.decode("utf-8", "surrogateescape")
