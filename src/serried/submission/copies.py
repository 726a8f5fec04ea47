"""Copies files of a run to a folder here: verified, never over what is newer, and where it was left off."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import os
import stat
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from serried.contract import patterns

CHUNK = 1 << 20
TRIES = 3
"""How often a file is copied that changes meanwhile: the run may still be writing."""

Observe = Callable[[int], None]
"""Hears of every so many bytes that are done."""


@dataclass(frozen=True)
class Entry:
    path: str
    """From the folder that is copied, and in the one that it is copied to."""
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
    report = Report()
    for entry in entries:
        try:
            _copy(entry, target, report, force=force, observe=observe)
        except OSError as error:
            report.problems[entry.path] = error.strerror or str(error)
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                break
    return report


def compare(entries: Sequence[Entry], target: Path, *, force: bool) -> Report:
    """What `copy` would do."""
    report = Report()
    for entry in entries:
        _decide(entry, target / entry.path, report, force=force)
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
    except OSError as error:
        problem(error)
        return
    kinds = {stat.S_IFREG: "file", stat.S_IFLNK: "link", stat.S_IFDIR: "folder"}
    kind = kinds.get(stat.S_IFMT(it.st_mode))
    if kind:  # sockets and pipes are nothing that one could have here
        found.setdefault(path, Entry(path, root / path, kind, it.st_size if kind == "file" else 0, it.st_mtime_ns))


def _decide(entry: Entry, target: Path, report: Report, *, force: bool) -> bool:
    """Whether it is to be copied; if not, the report has it."""
    try:
        here = target.lstat()
    except OSError:
        return _note(entry, report)
    if _is_same(entry, target, here):
        report.same += entry.kind != "folder"
        return False
    if entry.kind == "folder" or stat.S_ISDIR(here.st_mode):
        report.problems[entry.path] = "there it is " + ("no folder" if entry.kind == "folder" else "a folder")
        return False
    if here.st_mtime_ns > entry.changed and not force:
        report.newer.append(entry.path)
        return False
    return _note(entry, report)


def _note(entry: Entry, report: Report) -> bool:
    if entry.kind != "folder":
        report.copied.append(entry.path)
        report.bytes += entry.bytes
    return True


def _is_same(entry: Entry, target: Path, here: os.stat_result) -> bool:
    if entry.kind == "folder":
        return stat.S_ISDIR(here.st_mode)
    if entry.kind == "link":
        return stat.S_ISLNK(here.st_mode) and target.readlink() == entry.source.readlink()
    return stat.S_ISREG(here.st_mode) and (here.st_size, here.st_mtime_ns) == (entry.bytes, entry.changed)


def _copy(entry: Entry, root: Path, report: Report, *, force: bool, observe: Observe) -> None:
    target = root / entry.path
    _make_folder(root, os.path.dirname(entry.path))  # noqa: PTH120 - it may be empty
    if not _decide(entry, target, report, force=force):
        observe(entry.bytes)
        return
    try:
        if entry.kind == "folder":
            target.mkdir()
        elif entry.kind == "link":
            aside = target.with_name(_aside_name(entry, 0, 0))
            aside.unlink(missing_ok=True)
            aside.symlink_to(entry.source.readlink())
            aside.replace(target)
        else:
            _copy_file(entry, target, observe)
    except OSError:
        if entry.kind != "folder":
            report.copied.remove(entry.path)
            report.bytes -= entry.bytes
        raise


def _make_folder(root: Path, path: str) -> None:
    """`path` below `root`, through no links: what one run calls a link another may call a folder."""
    place = root
    for name in filter(None, path.split("/")):
        place = place / name
        with contextlib.suppress(FileExistsError):
            place.mkdir()
        if not stat.S_ISDIR(place.lstat().st_mode):
            raise NotADirectoryError(errno.ENOTDIR, f"there `{name}` is no folder")


def _copy_file(entry: Entry, target: Path, observe: Observe) -> None:
    """Beside its place first, under a name by which the same copy finds it again if this one is cut short."""
    for _ in range(TRIES):
        with entry.source.open("rb", buffering=0) as source:
            before = os.fstat(source.fileno())
            aside = target.with_name(_aside_name(entry, before.st_size, before.st_mtime_ns))
            with aside.open("a+b", buffering=0) as made:
                sent = _pour(source, made, observe)
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


def _pour(source: io.FileIO, made: io.FileIO, observe: Observe) -> tuple[int, int]:
    """Add to `made` what `source` has more; checksum and length of the whole."""
    crc32, length = _checksum(made), made.tell()
    observe(length)
    source.seek(length)
    while chunk := source.read(CHUNK):
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
