"""Which of the files that were found are complete: unchanged for a while, open to nobody, whole where one can tell."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path
from typing import Dict, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple

from serried.fs import file_integrity, patterns
from serried.protocol import checkpoints

QUIET_SECONDS = 1.5
"""A file that was written to is taken for complete after that long without a change, if nobody has it open."""
QUIET_FOLDER_SECONDS = 10.0
"""The same of a folder: between two of its files its writer may have none open. And of what another node may write."""
TICK_NS = 100_000_000
"""A file may be written again and keep its time, if that is only so long ago."""
HURRIED_SECONDS = 0.4
HURRIED_FOLDER_SECONDS = 2.0

LINE_BY_LINE = (".csv", ".tsv", ".txt", ".log", ".jsonl", ".out", ".err")

Identity = Tuple[int, int]
"""Device and inode."""


class Found(NamedTuple):
    """A file, a link, an empty folder, or a folder that is one checkpoint."""

    root: str
    path: str
    """From the root."""
    name: str
    """What it is called where it is brought: the path, from the first folder that the pattern leaves open."""
    pattern: str
    kind: str
    """`file`, `link`, `folder`: empty, or a checkpoint's."""
    size: int
    changed: int
    """Nanoseconds, by the clock of where it lies; of a folder its newest file's."""
    state: Tuple[int, ...]
    """Is another whenever it was written to."""
    files: Tuple["Found", ...] = ()
    """What a checkpoint's folder holds."""
    is_shared: bool = False
    """Another node may be writing it, unseen, and what we see of it may be some seconds old."""

    @property
    def source(self) -> str:
        return f"{self.root}/{self.path}"


class Looks:
    """What was seen, and since when it is as it is."""

    def __init__(self) -> None:
        self._seen: Dict[str, Tuple[Tuple[int, ...], float]] = {}
        self._settled: Dict[str, Tuple[int, ...]] = {}

    def look(self, found: Sequence[Found]) -> None:
        """Remember how everything is now; forget what is gone."""
        now = time.monotonic()
        before, self._seen = self._seen, {}
        for each in found:
            state, since = before.get(each.source, ((), now))
            self._seen[each.source] = (each.state, since if state == each.state else now)

    def settled(self, found: Sequence[Found], *, hurried: bool = False) -> List[Found]:
        """Those that are complete: as they were for a while, open to nobody's writing, whole where one can tell."""
        quiet = [each for each in found if self.is_quiet(each, hurried=hurried)]
        if quiet:
            writing = open_for_writing()
            quiet = [each for each in quiet if not writing.intersection(map(_identity, (each, *each.files)))]
            quiet = [each for each in quiet if is_whole(each) is not False]
            self._settled.update((each.source, each.state) for each in quiet)
        return quiet

    def left(self, found: Sequence[Found], *, trusted: bool, all_trusted: bool) -> List[Found]:
        """Those that are complete now that nobody writes any more.

        `trusted` says that all who wrote on this node have left by themselves, `all_trusted` that those on others have
        too. If not, one may have been ended in the midst: then only what its format calls whole is, or what had settled
        before.
        """
        believed = {False: trusted, True: all_trusted}
        return [each for each in found if self._is_left(each, is_whole(each), trusted=believed[each.is_shared])]

    def _is_left(self, found: Found, told: Optional[bool], *, trusted: bool) -> bool:
        if told is None:
            return trusted or self._settled.get(found.source) == found.state
        return told

    def is_quiet(self, found: Found, *, hurried: bool) -> bool:
        """Whether it was seen for long enough, and nobody has written to it since."""
        state, since = self._seen.get(found.source, ((), 0.0))
        may_go_on = found.is_shared and not is_whole(found)
        if may_go_on or (found.kind == "folder" and not is_marked_complete(found)):
            patience = HURRIED_FOLDER_SECONDS if hurried else QUIET_FOLDER_SECONDS
        else:
            patience = HURRIED_SECONDS if hurried else QUIET_SECONDS
        return state == found.state and time.monotonic() - since >= patience


def results(root: str, wanted: List[str], problem: patterns.Problem) -> List[Found]:
    """The files, links and empty folders that the patterns name; of a folder all that it holds."""
    found: Dict[str, Found] = {}
    for pattern in wanted:
        for path, entry in patterns.find(root, pattern, problem):
            for each in _everything(root, path, entry, problem):
                found.setdefault(each.path, each._replace(pattern=pattern))
    return list(found.values())


def unnamed(root: str, named: List[Found]) -> List[str]:
    """The files below `root` that are not among `named`: no pattern takes them along."""
    taken = {each.path for each in named}
    below = patterns.entries(root, lambda _: None)
    paths = (path for entry in below for path in _files(root, entry.name, entry))
    return [path for path in paths if path not in taken]


def watched(root: str, pattern: str, problem: patterns.Problem) -> List[Found]:
    """The checkpoints that the pattern names below `root`: files, or folders that are one each."""
    start = len(patterns.beginning(pattern))
    found = []
    for path, entry in patterns.find(root, pattern, problem):
        name = path[start:].lstrip("/")
        if any(checkpoints.is_unfinished(part) for part in name.split("/")):
            continue
        if entry.is_dir(follow_symlinks=False):
            files = tuple(each for below, one in patterns.walk(root, path, problem) for each in _one(root, below, one))
            if files:
                state = tuple(number for each in files for number in each.state)
                newest = max(each.changed for each in files)
                size = sum(each.size for each in files)
                found.append(Found(root, path, name, pattern, "folder", size, newest, state, files))
        else:
            found += [each._replace(name=name, pattern=pattern) for each in _one(root, path, entry)]
    return found


def _everything(root: str, path: str, entry: "os.DirEntry[str]", problem: patterns.Problem) -> Iterator[Found]:
    yield from _one(root, path, entry)
    if entry.is_dir(follow_symlinks=False):
        below = list(patterns.walk(root, path, problem))
        if not below:
            yield Found(root, path, path, "", "folder", 0, 0, ())
        parents = {each.rpartition("/")[0] for each, _ in below}
        for each, one in below:
            yield from _one(root, each, one)
            if one.is_dir(follow_symlinks=False) and each not in parents:
                yield Found(root, each, each, "", "folder", 0, 0, ())


def _files(root: str, path: str, entry: "os.DirEntry[str]") -> Iterator[str]:
    if entry.is_dir(follow_symlinks=False):
        for below, one in patterns.walk(root, path, lambda _: None):
            if not one.is_dir(follow_symlinks=False):
                yield below
    else:
        yield path


def _one(root: str, path: str, entry: "os.DirEntry[str]") -> Iterator[Found]:
    """The file or link itself; sockets, pipes and devices are nothing that one could bring."""
    try:
        it = entry.stat(follow_symlinks=False)
    except OSError:
        return
    kind = "file" if stat.S_ISREG(it.st_mode) else "link" if stat.S_ISLNK(it.st_mode) else ""
    if kind:
        yield Found(root, path, path, "", kind, it.st_size, it.st_mtime_ns, state_of(it))


def state_of(it: os.stat_result) -> Tuple[int, ...]:
    return it.st_dev, it.st_ino, it.st_size, it.st_mtime_ns


def _identity(found: Found) -> Identity:
    return (found.state[0], found.state[1]) if found.kind == "file" else (0, 0)


def open_for_writing() -> Set[Identity]:
    """Every file that a process of ours on this node has open for writing."""
    found: Set[Identity] = set()
    for pid in names_in("/proc"):
        if pid.isdigit():
            found.update(_held_by(f"/proc/{pid}/fd"))
    return found


def names_in(folder: str) -> List[str]:
    try:
        return os.listdir(folder)  # noqa: PTH208 - no stat
    except OSError:
        return []


def _held_by(folder: str) -> Iterator[Identity]:
    for number in names_in(folder):
        path = f"{folder}/{number}"
        try:
            if os.lstat(path).st_mode & stat.S_IWUSR:
                it = os.stat(path)  # noqa: PTH116 - a bare string
                if stat.S_ISREG(it.st_mode):
                    yield it.st_dev, it.st_ino
        except OSError:
            continue


def is_marked_complete(found: Found) -> bool:
    """Whether a folder says itself that it is complete, as those of `serried.train` do."""
    return checkpoints.complete(Path(found.source)) is not None


def is_whole(found: Found) -> Optional[bool]:
    """Whether its format says that nothing is missing at its end; None for a format that does not tell."""
    if found.kind == "folder":
        if Path(found.source, checkpoints.COMPLETE).exists():
            return is_marked_complete(found)
        told = [is_whole(each) for each in found.files if each.size]
        return False if False in told else None if None in told else True
    try:
        return file_integrity.is_whole(Path(found.source)) if found.kind == "file" else None
    except OSError:
        return False


def is_read_while_it_grows(found: Found) -> bool:
    """Whether it is text that is written line by line, and of use before it is complete."""
    name = found.path.rpartition("/")[2].lower()
    return "tfevents" in name or name.endswith(LINE_BY_LINE)
