"""Copies files of a run to a folder here: verified, never over what is newer, and where it was left off.

Many at once where the file system is slow to answer: each is written beside its place first, so that nothing there is
ever half a file, whatever interrupts us.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import os
import stat
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from serried.contract import patterns
from serried.contract.crew import Crew

THREADS = 16
"""At most, on a file system where each call takes milliseconds."""
CHUNK = 1 << 20
TRIES = 3
"""How often a file is copied that changes meanwhile: the run may still be writing."""

COPIED, SAME, NEWER = "copied", "same", "newer"
Became = Mapping[int, str | OSError]
"""Of entries, by their place among them: one of these, or why it could not be copied."""

Observe = Callable[[int], None]
"""Hears of every so many bytes that are done."""


@dataclass(frozen=True)
class Entry:
    path: str
    """In the folder that it is copied to."""
    source: Path
    kind: str
    """`file`, `link`, `folder`."""
    bytes: int
    changed: int


@dataclass
class Report:
    """What became of it, by the paths of entries."""

    copied: list[str] = field(default_factory=list)
    bytes: int = 0
    same: int = 0
    newer: list[str] = field(default_factory=list)
    """What is here and newer, and stayed."""
    problems: dict[str, str] = field(default_factory=dict)


def find(root: Path, wanted: Sequence[str], problem: patterns.Problem) -> list[Entry]:
    """What the patterns name below `root`, of a folder all that it holds."""
    found: dict[str, Entry] = {}
    for pattern in wanted:
        for path, entry in patterns.find(str(root), pattern, problem):
            for below, one in _with_content(root, path, entry, problem):
                _take(found, root, below, one, problem)
    return [found[path] for path in sorted(found)]


def copy(entries: Sequence[Entry], target: Path, *, force: bool, observe: Observe) -> Report:
    """Make `target` have them. Raises OSError where that folder cannot be made."""
    target.mkdir(parents=True, exist_ok=True)
    return _report(entries, _Copying(target, observe, force=force).copy(entries))


def compare(entries: Sequence[Entry], target: Path, *, force: bool) -> Report:
    """What `copy` would do."""
    became: dict[int, str | OSError] = {}
    for number, entry in enumerate(entries):
        try:
            became[number] = _decide(entry, target / entry.path, force=force)
        except OSError as error:
            became[number] = error
    return _report(entries, became)


def _report(entries: Sequence[Entry], became: Became) -> Report:
    report = Report()
    for number, entry in enumerate(entries):
        what = became[number]
        if isinstance(what, OSError):
            report.problems[entry.path] = what.strerror or str(what)
        elif what == NEWER:
            report.newer.append(entry.path)
        elif entry.kind != "folder":
            if what == COPIED:
                report.copied.append(entry.path)
                report.bytes += entry.bytes
            report.same += what == SAME
    return report


def _with_content(
    root: Path, path: str, entry: os.DirEntry[str], problem: patterns.Problem
) -> Iterator[tuple[str, os.DirEntry[str]]]:
    yield path, entry
    if entry.is_dir(follow_symlinks=False):
        yield from patterns.walk(str(root), path, problem)


def _take(found: dict[str, Entry], root: Path, path: str, entry: os.DirEntry[str], problem: patterns.Problem) -> None:
    try:
        it = entry.stat(follow_symlinks=False)
    except FileNotFoundError:  # gone meanwhile: the run goes on
        return
    except OSError as error:
        problem(error)
        return
    kinds = {stat.S_IFREG: "file", stat.S_IFLNK: "link", stat.S_IFDIR: "folder"}
    kind = kinds.get(stat.S_IFMT(it.st_mode))
    if kind:  # sockets and pipes are nothing that one could have here
        found.setdefault(path, Entry(path, root / path, kind, it.st_size if kind == "file" else 0, it.st_mtime_ns))


class _Copying:
    def __init__(self, root: Path, observe: Observe, *, force: bool) -> None:
        self._root, self._force = root, force
        self._tell = observe
        self._crew = Crew(THREADS)
        self._lock = threading.Lock()
        self._made: set[str] = set()
        self._full: OSError | None = None
        """Why no further file need be tried."""
        self._is_interrupted = False

    def copy(self, entries: Sequence[Entry]) -> Became:
        """What became of them. What interrupts us leaves what is there, and what is half done beside its place."""
        became: dict[int, str | OSError] = {}

        def bring(several: Iterable[tuple[int, Entry]]) -> None:
            for number, entry in several:
                became[number] = self._try(entry)

        by_path: dict[str, list[tuple[int, Entry]]] = {}
        for number, entry in enumerate(entries):  # two for one place: the second has to see what the first has done
            by_path.setdefault(entry.path, []).append((number, entry))
        for several in by_path.values():
            self._crew.add(lambda several=several: bring(several))  # type: ignore[misc]
        try:
            self._crew.run()
        except BaseException as interruption:
            self._is_interrupted = True
            self._crew.stop(interruption)
            raise
        return became

    def _try(self, entry: Entry) -> str | OSError:
        try:
            return self._full or self._one(entry)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                self._full = error
            return error

    def _one(self, entry: Entry) -> str:
        target = self._root / entry.path
        self._make_folder(os.path.dirname(entry.path))  # noqa: PTH120 - it may be empty
        became = _decide(entry, target, force=self._force)
        if became != COPIED:
            self._observe(entry.bytes)
        elif entry.kind == "folder":
            self._make_folder(entry.path)
        elif entry.kind == "link":
            aside = target.with_name(_aside_name(entry, 0, 0))
            aside.unlink(missing_ok=True)
            aside.symlink_to(entry.source.readlink())
            aside.replace(target)
        else:
            _copy_file(entry, target, self._observe)
        return became

    def _observe(self, count: int) -> None:
        if self._is_interrupted:
            raise InterruptedError
        self._crew.look()
        with self._lock:
            self._tell(count)

    def _make_folder(self, path: str) -> None:
        """`path` below the root, through no links: what one run calls a link another may call a folder."""
        if path in self._made:
            return
        place = self._root
        for name in filter(None, path.split("/")):
            place = place / name
            with contextlib.suppress(FileExistsError):
                place.mkdir()
            if not stat.S_ISDIR(place.lstat().st_mode):
                raise NotADirectoryError(errno.ENOTDIR, f"there `{name}` is no folder")
        self._made.add(path)


def _decide(entry: Entry, target: Path, *, force: bool) -> str:
    """COPIED, SAME or NEWER. Raises OSError where what is there cannot give way."""
    try:
        here = target.lstat()
    except OSError:
        return COPIED
    if _is_same(entry, target, here):
        return SAME
    if entry.kind == "folder":
        raise NotADirectoryError(errno.ENOTDIR, "there it is no folder")
    if stat.S_ISDIR(here.st_mode):
        raise IsADirectoryError(errno.EISDIR, "there it is a folder")
    return NEWER if here.st_mtime_ns > entry.changed and not force else COPIED


def _is_same(entry: Entry, target: Path, here: os.stat_result) -> bool:
    if entry.kind == "folder":
        return stat.S_ISDIR(here.st_mode)
    if entry.kind == "link":
        return stat.S_ISLNK(here.st_mode) and target.readlink() == entry.source.readlink()
    return stat.S_ISREG(here.st_mode) and (here.st_size, here.st_mtime_ns) == (entry.bytes, entry.changed)


def _copy_file(entry: Entry, target: Path, observe: Observe) -> None:
    """Beside its place first, under a name by which the same copy finds it again if this one is cut short."""
    for _ in range(TRIES):
        with entry.source.open("rb", buffering=0) as source:
            before = os.fstat(source.fileno())
            aside = target.with_name(_aside_name(entry, before.st_size, before.st_mtime_ns))
            with aside.open("a+b", buffering=0) as made:
                sent = _pour(source, made, before.st_size, observe)
                has_arrived = sent == (_checksum(made), made.tell())
            after = os.fstat(source.fileno())
        is_steady = (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns)
        if is_steady and has_arrived and sent[1] == after.st_size:
            if before.st_mode & stat.S_IXUSR:
                mode = aside.stat().st_mode
                aside.chmod(mode | (mode & 0o444) >> 2)
            os.utime(aside, ns=(before.st_mtime_ns, before.st_mtime_ns))
            aside.replace(target)
            return
        aside.unlink()
    raise OSError(errno.EAGAIN, "it changes all the time" if has_arrived else "what arrives is not what was sent")


def _pour(source: io.FileIO, made: io.FileIO, size: int, observe: Observe) -> tuple[int, int]:
    """Add to `made` what `source` has more of its first `size` bytes; checksum and length of the whole."""
    crc32, length = _checksum(made), made.tell()
    observe(length)
    source.seek(length)
    while chunk := source.read(min(CHUNK, size - length)):
        crc32 = zlib.crc32(chunk, crc32)
        length += len(chunk)
        rest = memoryview(chunk)
        while rest:
            rest = rest[made.write(rest) or 0 :]
        observe(len(chunk))
    os.fsync(made.fileno())
    return crc32, length


def _checksum(file: io.FileIO) -> int:
    """Of the whole; the place in the file is its end then."""
    crc32 = 0
    file.seek(0)
    while chunk := file.read(CHUNK):
        crc32 = zlib.crc32(chunk, crc32)
    return crc32


def _aside_name(entry: Entry, size: int, changed: int) -> str:
    told = f"{entry.source}\0{size}\0{changed}".encode("utf-8", "surrogateescape")
    return f".serried-{hashlib.sha256(told).hexdigest()[:16]}.part"
