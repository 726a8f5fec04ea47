"""Copies files of a run to a folder here: verified, never over what must stay, and on from where it was left off.

Many at once where the file system is slow to answer: each is written beside its place first, so that nothing there is
ever half a file, whatever interrupts us.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from serried.fs import patterns
from serried.fs.adaptive_pool import Crew
from serried.submission.file_copy import Observe, aside_name, copy_file

THREADS = 16
"""At most, on a file system where each call takes milliseconds."""

COPIED, SAME, KEPT = "copied", "same", "kept"
Became = Mapping[int, str | OSError]
"""Of entries, by their place among them: one of these, or why it could not be copied."""


@dataclass(frozen=True)
class Entry:
    path: str
    """In the folder that it is copied to."""
    source: Path
    kind: str
    """`file`, `link`, `folder`."""
    bytes: int
    changed: int
    top: Path
    """The folder of the run that it was found in."""
    replaces: frozenset[tuple[int, int]] = frozenset()
    """Sizes and times of earlier copies of this file: nothing else gives way to it."""

    @property
    def state(self) -> tuple[int, int]:
        return self.bytes, self.changed

    @property
    def leads_to(self) -> str:
        """Of a link. An absolute one that stays in the run's folder leads to the copy of the same file here."""
        written = str(self.source.readlink())
        for top in (str(self.top), os.path.realpath(self.top)):
            if written.startswith(f"{top}/"):
                return os.path.relpath(f"{self.top}{written[len(top) :]}", self.source.parent)
        return written


@dataclass
class Report:
    """What became of it, by the paths of entries."""

    copied: list[str] = field(default_factory=list)
    bytes: int = 0
    same: int = 0
    kept: list[str] = field(default_factory=list)
    """What is here and is no earlier copy, and stayed."""
    problems: dict[str, str] = field(default_factory=dict)
    there: list[Entry] = field(default_factory=list)
    """What is here now, copied or found to be the same."""

    def to_json(self) -> dict[str, Any]:
        return {
            "copied": self.copied,
            "bytes": self.bytes,
            "same": self.same,
            "kept": self.kept,
            "problems": self.problems,
        }


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
        elif what == KEPT:
            report.kept.append(entry.path)
        elif entry.kind != "folder":
            report.there.append(entry)
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
        size = it.st_size if kind == "file" else 0
        found.setdefault(path, Entry(path, root / path, kind, size, it.st_mtime_ns, root))


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
            aside = target.with_name(aside_name(entry.source, 0, 0))
            aside.unlink(missing_ok=True)
            aside.symlink_to(entry.leads_to)
            aside.replace(target)
        else:
            copy_file(entry.source, target, self._observe)
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
    """COPIED, SAME or KEPT. Raises OSError where what is there cannot give way."""
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
    return COPIED if force or (here.st_size, here.st_mtime_ns) in entry.replaces else KEPT


def _is_same(entry: Entry, target: Path, here: os.stat_result) -> bool:
    if entry.kind == "folder":
        return stat.S_ISDIR(here.st_mode)
    if entry.kind == "link":
        return stat.S_ISLNK(here.st_mode) and str(target.readlink()) == entry.leads_to
    return stat.S_ISREG(here.st_mode) and (here.st_size, here.st_mtime_ns) == (entry.bytes, entry.changed)
