"""What a file or folder is made of, as far as a copy has to be the same: paths, kinds, sizes, times, modes, links.

Two trees of the same `key` are taken for the same tree. So a change of the source is seen by its size or time, and
nothing has to be read to find out that a copy is there.
"""

from __future__ import annotations

import itertools
import zlib
from functools import cached_property
from typing import Dict, Iterator, List, NamedTuple, Optional, Sequence

FILE, FOLDER, LINK, TWIN = "f", "d", "l", "h"
"""What an entry is. A twin is a further name (hard link) of the file whose path is its `target`."""

BLOCK = 4096
_HEAD = b"serried manifest 1"
_AT_ONCE, _CHUNK = 4096, 1 << 20
"""Entries that are written, and bytes that are read, at a time."""


class ManifestEntry(NamedTuple):
    path: bytes
    """Below the root; empty for the root itself."""
    kind: str
    mode: int
    """Of permissions only; who owns the copy can always read it."""
    size: int
    """Of a file; 0 else."""
    time: int
    """When it was last changed, in nanoseconds."""
    held: int
    """Bytes of a file that are no holes."""
    target: bytes
    """Where a symbolic link leads, or the first name of a twin; of a file the hash of its content, if asked for."""

    @property
    def identity(self) -> ManifestEntry:
        """What a copy must share. A folder's time tells of files that came and went: they are looked at themselves."""
        return self._replace(time=0 if self.target or self.kind != FILE else self.time, held=0)


class Manifest:
    """The root first, then everything below in the order of paths: a folder comes before what is in it.

    A file's number, by which agents speak of it, is its place in `entries`.
    """

    def __init__(self, entries: Sequence[ManifestEntry], problems: Sequence[str] = ()) -> None:
        self.entries = entries
        self.problems = problems
        """What was left out, or leads out of the tree: a sentence each."""

    @property
    def is_file(self) -> bool:
        """Whether the root is a file itself."""
        return self.entries[0].kind == FILE

    @cached_property
    def key(self) -> str:
        """The same for the same content, wherever it is."""
        import hashlib

        digest = hashlib.sha256()
        for entry in self.entries:
            path, kind, mode, size, time, _, target = entry.identity
            digest.update(b"%b\0%b\0%d %d %d %b\0" % (path, target, mode, size, time, kind.encode()))
        return digest.hexdigest()[:32]

    @cached_property
    def held(self) -> int:
        """Bytes that a copy takes on a disk, holes left out."""
        return sum(entry.held for entry in self.entries)

    @cached_property
    def files(self) -> int:
        """How many files, twins not counted."""
        return sum(entry.kind == FILE for entry in self.entries)

    @cached_property
    def inodes(self) -> int:
        return sum(entry.kind != TWIN for entry in self.entries)

    @cached_property
    def blocks(self) -> int:
        """Bytes that a copy takes of a disk: even a small file takes a block."""
        return sum(entry.held + -entry.held % BLOCK for entry in self.entries) + BLOCK * self.inodes // 8

    def difference(self, other: Manifest) -> Optional[str]:
        """The first path that is not the same in `other`, as text; None where all are."""
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
        """Raises ValueError where it is torn, or names what is not below the root."""
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
            raise ValueError(f"no manifest: {error}") from None
        if head != _HEAD or len(entries) != int(count) or not entries:
            raise ValueError("no manifest, or one of another version")
        _check(entries)
        return cls(entries, [problem.decode("utf-8", "surrogateescape") for problem in rest])


def _fields(entry: ManifestEntry) -> bytes:
    path, kind, mode, size, time, held, target = entry
    return b"\0%b\0%b %d %d %d %d\0%b" % (path, kind.encode(), mode, size, time, held, target)


def _unpacked(data: bytes) -> Iterator[Sequence[bytes]]:
    """Some fields at a time: all of them at once would take as much memory as the entries. Raises zlib.error."""
    unpacker, rest = zlib.decompressobj(), b""
    while data and not unpacker.eof:
        *fields, rest = (rest + unpacker.decompress(data, _CHUNK)).split(b"\0")
        data = unpacker.unconsumed_tail
        yield fields
    if not unpacker.eof:
        raise zlib.error("it is cut short")
    yield [rest]


def _entry(path: bytes, facts: bytes, target: bytes) -> ManifestEntry:
    kind, *numbers = facts.decode().split(" ")
    mode, size, time, held = map(int, numbers)
    return ManifestEntry(path, kind, mode, size, time, held, target)


def _check(entries: List[ManifestEntry]) -> None:
    """Each entry lies in a folder that comes before it, so that no path leads out of the root, nor through a link."""
    kinds: Dict[bytes, str] = {}
    for entry in entries:
        parent, _, name = entry.path.rpartition(b"/")
        is_root = not kinds and not entry.path
        if not is_root and (kinds.get(parent) != FOLDER or name in (b"", b".", b"..") or entry.path in kinds):
            raise ValueError(f"a manifest names {text(entry.path)!r}")
        if entry.kind == TWIN and kinds.get(entry.target) != FILE:
            raise ValueError(f"a manifest has {text(entry.path)!r} as a name of what is no file")
        kinds[entry.path] = entry.kind


def text(path: bytes) -> str:
    """`path` as messages and JSON have it."""
    return path.decode("utf-8", "surrogateescape")
