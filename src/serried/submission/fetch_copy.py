"""Copies files of a run to a folder of the user, and replaces nothing there but earlier copies.

Each file is copied to a temporary name beside its target, verified by its checksum and renamed. An interrupted copy
continues where it stopped. On a slow file system several files are copied at once.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import io
import os
import stat
import threading
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from serried.base import copy as fs_copy
from serried.base import tree
from serried.base.tree import Crew

THREADS = 16
"""The most files that are copied at once."""
TRIES = 3
"""How often a file is copied if it changes during the copy: the run may still be writing."""

COPIED, SAME, KEPT = "copied", "same", "kept"
Outcome = str | OSError
"""One of these, or why an entry could not be copied."""

Observe = Callable[[int], None]
"""Receives the number of bytes of each step."""


@dataclass(frozen=True)
class FetchEntry:
    path: str
    """Below the target folder."""
    source: Path
    kind: str
    """`file`, `link`, `folder`."""
    bytes: int
    changed: int
    """In nanoseconds."""
    top: Path
    """The folder of the run that contains it."""
    replaces: frozenset[tuple[int, int]] = frozenset()
    """Sizes and times of earlier copies of this file: no other file is replaced."""

    @property
    def state(self) -> tuple[int, int]:
        return self.bytes, self.changed

    @property
    def leads_to(self) -> str:
        """The target of a link. An absolute link into the run's folder is changed to lead to the copy."""
        written = str(self.source.readlink())
        for top in (str(self.top), os.path.realpath(self.top)):
            if written.startswith(f"{top}/"):
                return os.path.relpath(f"{self.top}{written[len(top) :]}", self.source.parent)
        return written


@dataclass
class Report:
    """The outcome of a copy, by the paths of entries."""

    copied: list[str] = field(default_factory=list)
    bytes: int = 0
    same: int = 0
    kept: list[str] = field(default_factory=list)
    """Paths that existed, were not earlier copies and were not replaced."""
    problems: dict[str, str] = field(default_factory=dict)
    there: list[FetchEntry] = field(default_factory=list)
    """Files that exist now, copied or unchanged."""

    def to_json(self) -> dict[str, Any]:
        return {
            "copied": self.copied,
            "bytes": self.bytes,
            "same": self.same,
            "kept": self.kept,
            "problems": self.problems,
        }


def find(root: Path, wanted: Sequence[str], problem: tree.Problem) -> list[FetchEntry]:
    """The entries below `root` that match the patterns, and the content of matching folders, by path."""
    entries: dict[str, FetchEntry] = {}
    for pattern in wanted:
        for path, entry in tree.find(str(root), pattern, problem):
            _add(entries, root, path, entry, problem)
            if entry.is_dir(follow_symlinks=False):
                for path_within, entry_within in tree.walk(str(root), path, problem):
                    _add(entries, root, path_within, entry_within, problem)
    return [entries[path] for path in sorted(entries)]


def _add(entries: dict[str, FetchEntry], root: Path, path: str, entry: os.DirEntry[str], problem: tree.Problem) -> None:
    try:
        state = entry.stat(follow_symlinks=False)
    except FileNotFoundError:  # the run may delete files meanwhile
        return
    except OSError as error:
        problem(error)
        return
    kinds = {stat.S_IFREG: "file", stat.S_IFLNK: "link", stat.S_IFDIR: "folder"}
    kind = kinds.get(stat.S_IFMT(state.st_mode))
    if kind:  # sockets and pipes are not copied
        size = state.st_size if kind == "file" else 0
        entries.setdefault(path, FetchEntry(path, root / path, kind, size, state.st_mtime_ns, root))


def copy(entries: Sequence[FetchEntry], target: Path, *, force: bool, observe: Observe) -> Report:
    """Copy the entries to `target`. Raises OSError if that folder cannot be created."""
    target.mkdir(parents=True, exist_ok=True)
    return _report(entries, _Copying(target, observe, force=force).copy(entries))


def compare(entries: Sequence[FetchEntry], target: Path, *, force: bool) -> Report:
    """Report what `copy` would do."""
    outcomes: dict[int, Outcome] = {}
    for number, entry in enumerate(entries):
        try:
            outcomes[number] = _decide(entry, target / entry.path, force=force)
        except OSError as error:
            outcomes[number] = error
    return _report(entries, outcomes)


def _report(entries: Sequence[FetchEntry], outcomes: Mapping[int, Outcome]) -> Report:
    report = Report()
    for number, entry in enumerate(entries):
        outcome = outcomes[number]
        if isinstance(outcome, OSError):
            report.problems[entry.path] = outcome.strerror or str(outcome)
        elif outcome == KEPT:
            report.kept.append(entry.path)
        elif entry.kind != "folder":
            report.there.append(entry)
            if outcome == COPIED:
                report.copied.append(entry.path)
                report.bytes += entry.bytes
            report.same += outcome == SAME
    return report


class _Copying:
    def __init__(self, root: Path, observe: Observe, *, force: bool) -> None:
        self._root, self._force = root, force
        self._report_progress = observe
        self._pool = Crew(THREADS)
        self._lock = threading.Lock()
        self._folders: set[str] = set()
        """Those that exist in the target."""
        self._full: OSError | None = None
        """The error of a full disk: no further file is tried."""
        self._is_interrupted = False

    def copy(self, entries: Sequence[FetchEntry]) -> Mapping[int, Outcome]:
        """The outcomes by the entries' indices. An interruption leaves complete files and temporary ones."""
        outcomes: dict[int, Outcome] = {}

        def copy_in_turn(numbered: Iterable[tuple[int, FetchEntry]]) -> None:
            for number, entry in numbered:
                outcomes[number] = self._try(entry)

        by_path: dict[str, list[tuple[int, FetchEntry]]] = {}
        for number, entry in enumerate(entries):  # of two entries with one target, the second must see the first
            by_path.setdefault(entry.path, []).append((number, entry))
        for numbered in by_path.values():
            self._pool.add(lambda numbered=numbered: copy_in_turn(numbered))  # type: ignore[misc]
        try:
            self._pool.run()
        except BaseException as interruption:
            self._is_interrupted = True
            self._pool.stop(interruption)
            raise
        return outcomes

    def _try(self, entry: FetchEntry) -> Outcome:
        try:
            return self._full or self._copy(entry)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                self._full = error
            return error

    def _copy(self, entry: FetchEntry) -> str:
        target = self._root / entry.path
        self._make_folder(os.path.dirname(entry.path))  # noqa: PTH120 - it may be empty
        outcome = _decide(entry, target, force=self._force)
        if outcome != COPIED:
            self._observe(entry.bytes)
        elif entry.kind == "folder":
            self._make_folder(entry.path)
        elif entry.kind == "link":
            temporary = target.with_name(_temporary_name(entry.source, 0, 0))
            temporary.unlink(missing_ok=True)
            temporary.symlink_to(entry.leads_to)
            temporary.replace(target)
        else:
            copy_file(entry.source, target, self._observe)
        return outcome

    def _observe(self, count: int) -> None:
        if self._is_interrupted:
            raise InterruptedError
        self._pool.look()
        with self._lock:
            self._report_progress(count)

    def _make_folder(self, path: str) -> None:
        if path not in self._folders:
            fs_copy.make_directories(self._root, path)  # follows no link: a link of one run may be a folder of another
            self._folders.add(path)


def _decide(entry: FetchEntry, target: Path, *, force: bool) -> str:
    """COPIED, SAME or KEPT. Raises OSError if `target` cannot be replaced by an entry of this kind."""
    try:
        present = target.lstat()
    except OSError:
        return COPIED
    if _is_same(entry, target, present):
        return SAME
    if entry.kind == "folder":
        raise NotADirectoryError(errno.ENOTDIR, "the target exists and is not a folder")
    if stat.S_ISDIR(present.st_mode):
        raise IsADirectoryError(errno.EISDIR, "the target is a folder")
    return COPIED if force or (present.st_size, present.st_mtime_ns) in entry.replaces else KEPT


def _is_same(entry: FetchEntry, target: Path, present: os.stat_result) -> bool:
    if entry.kind == "folder":
        return stat.S_ISDIR(present.st_mode)
    if entry.kind == "link":
        return stat.S_ISLNK(present.st_mode) and str(target.readlink()) == entry.leads_to
    return stat.S_ISREG(present.st_mode) and (present.st_size, present.st_mtime_ns) == entry.state


def file_state(path: Path) -> tuple[int, int] | None:
    """Size and time, as `FetchEntry.state`."""
    try:
        state = path.lstat()
    except OSError:
        return None
    return state.st_size, state.st_mtime_ns


def copy_file(path: Path, target: Path, observe: Observe) -> None:
    """Copy to a temporary name that depends on the source alone, so that a later copy continues this one."""
    for _ in range(TRIES):
        with path.open("rb", buffering=0) as source:
            before = os.fstat(source.fileno())
            temporary = target.with_name(_temporary_name(path, before.st_size, before.st_mtime_ns))
            with temporary.open("a+b", buffering=0) as written:
                if not _lock(written, temporary):
                    if file_state(target) == (before.st_size, before.st_mtime_ns):
                        observe(before.st_size)
                        return
                    has_arrived = False
                    continue
                sent = _copy_rest(source, written, before.st_size, observe)
                has_arrived = sent == (_checksum(written), written.tell())
                after = os.fstat(source.fileno())
                is_steady = (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns)
                if is_steady and has_arrived and sent[1] == after.st_size:
                    if before.st_mode & stat.S_IXUSR:
                        mode = temporary.stat().st_mode
                        temporary.chmod(mode | (mode & 0o444) >> 2)
                    os.utime(temporary, ns=(before.st_mtime_ns, before.st_mtime_ns))
                    temporary.replace(target)
                    return
                temporary.unlink()
    problem = "the file changes during each copy" if has_arrived else "the copy differs from the file"
    raise OSError(errno.EAGAIN, problem)


def _lock(written: io.FileIO, temporary: Path) -> bool:
    """Wait for another process that copies the same file. Returns False if that process has completed the copy."""
    with contextlib.suppress(OSError):  # without locks on this file system, the checksum detects a second writer
        fcntl.flock(written, fcntl.LOCK_EX)
    try:
        return temporary.stat().st_ino == os.fstat(written.fileno()).st_ino
    except FileNotFoundError:
        return False


def _copy_rest(source: io.FileIO, written: io.FileIO, size: int, observe: Observe) -> tuple[int, int]:
    """Append what `written` lacks of the first `size` bytes. Returns the source's checksum and the new length."""
    crc32, length = _checksum(written), written.tell()
    observe(length)

    def on_chunk(chunk: bytes) -> None:
        nonlocal crc32
        crc32 = zlib.crc32(chunk, crc32)
        observe(len(chunk))

    length = fs_copy.copy_content(source.fileno(), written.fileno(), length, size, on_chunk)
    os.fsync(written.fileno())
    return crc32, length


def _checksum(file: io.FileIO) -> int:
    """Of the whole file; the position is at its end afterwards."""
    crc32 = 0
    file.seek(0)
    while chunk := file.read(fs_copy.CHUNK):
        crc32 = zlib.crc32(chunk, crc32)
    return crc32


def _temporary_name(path: Path, size: int, changed: int) -> str:
    key = f"{path}\0{size}\0{changed}".encode("utf-8", "surrogateescape")
    return f".serried-{hashlib.sha256(key).hexdigest()[:16]}{fs_copy.PART}"
