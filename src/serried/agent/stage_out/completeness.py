"""Finds complete files: unchanged for a while, not open for writing, and intact as far as the format shows."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path
from typing import Dict, Iterator, List, Optional, Sequence, Set, Tuple

from serried.base import NamedTuple, linux, tree
from serried.schema import checkpoints
from serried.schema.outputs import is_append_only

QUIET_SECONDS = 1.5
"""A file that no process has open counts as complete after this time without a change."""
QUIET_FOLDER_SECONDS = 10.0
"""The time for a folder, whose writer may have no file open between two files, and for files that nodes share."""
TICK_NS = 100_000_000
"""Resolution of modification times: a file written twice within it may keep its time."""
URGENT_QUIET_SECONDS = 0.4
URGENT_QUIET_FOLDER_SECONDS = 2.0

Identity = Tuple[int, int]
"""Device and inode."""


class Artifact(NamedTuple):
    """A file, a link, an empty folder, or a folder that is one checkpoint."""

    root: str
    path: str
    """Below the root."""
    name: str
    """Its name in the run directory: the path from the first wildcard of the pattern on."""
    pattern: str
    kind: str
    """`file`, `link`, or `folder` for an empty folder or a checkpoint."""
    size: int
    mtime_ns: int
    """In nanoseconds, by the clock of its file system; of a folder, the time of its newest file."""
    fingerprint: Tuple[int, ...]
    """Changes with every write."""
    files: Tuple["Artifact", ...] = ()
    """The content of a checkpoint's folder."""
    is_shared: bool = False
    """Another node may be writing it, and this node sees changes some seconds late."""

    @property
    def source(self) -> str:
        return f"{self.root}/{self.path}"


class ChangeTracker:
    """Remembers since when each artifact has been unchanged."""

    def __init__(self) -> None:
        self._seen: Dict[str, Tuple[Tuple[int, ...], float]] = {}
        self._settled: Dict[str, Tuple[int, ...]] = {}
        self._doubted: Dict[str, Tuple[int, ...]] = {}
        """Their writers may have been cut off: that nothing changes them any more does not make them complete."""

    def update(self, artifacts: Sequence[Artifact]) -> None:
        """Note the current state of all artifacts, and forget those that no longer exist."""
        now = time.monotonic()
        before, self._seen = self._seen, {}
        for artifact in artifacts:
            state, since = before.get(artifact.source, ((), now))
            self._seen[artifact.source] = (artifact.fingerprint, since if state == artifact.fingerprint else now)
        new = [each for each in artifacts if self._settled.get(each.source) != each.fingerprint]
        self.settled([each for each in new if is_complete(each) is None])  # nothing but this shows it at the end

    def settled(self, artifacts: Sequence[Artifact], *, urgent: bool = False) -> List[Artifact]:
        """The complete artifacts: quiet, open for writing in no process, and intact as far as the format shows."""
        quiet = [artifact for artifact in artifacts if self.is_quiet(artifact, urgent=urgent)]
        if quiet:
            writing = open_for_writing()
            quiet = [artifact for artifact in quiet if not is_open(artifact, writing)]
            quiet = [
                artifact for artifact in quiet if is_complete(artifact) is not False and not self._is_doubted(artifact)
            ]
            self._settled.update((artifact.source, artifact.fingerprint) for artifact in quiet)
        return quiet

    def doubt(self, artifacts: Sequence[Artifact]) -> None:
        """Do not believe these until they change."""
        self._doubted.update((artifact.source, artifact.fingerprint) for artifact in artifacts)

    def _is_doubted(self, artifact: Artifact) -> bool:
        return self._doubted.get(artifact.source) == artifact.fingerprint

    def complete_at_end(self, artifacts: Sequence[Artifact], *, trusted: bool, all_trusted: bool) -> List[Artifact]:
        """The complete artifacts after all writers have exited.

        `trusted` says that all writers on this node exited by themselves, `all_trusted` those on all nodes. Otherwise a
        writer may have been cut off: then an artifact is complete if its format shows that, or if it settled before.
        """
        complete = []
        for artifact in artifacts:
            whole = is_complete(artifact)
            if whole is None:
                whole = (all_trusted if artifact.is_shared else trusted) and not self._is_doubted(artifact)
                whole = whole or self._settled.get(artifact.source) == artifact.fingerprint
            if whole:
                complete.append(artifact)
        return complete

    def is_quiet(self, artifact: Artifact, *, urgent: bool) -> bool:
        """Whether it has been unchanged for long enough."""
        state, since = self._seen.get(artifact.source, ((), 0.0))
        may_continue = artifact.is_shared and not is_complete(artifact)
        if may_continue or (artifact.kind == "folder" and not is_marked_complete(artifact)):
            quiet_seconds = URGENT_QUIET_FOLDER_SECONDS if urgent else QUIET_FOLDER_SECONDS
        else:
            quiet_seconds = URGENT_QUIET_SECONDS if urgent else QUIET_SECONDS
        return state == artifact.fingerprint and time.monotonic() - since >= quiet_seconds


def find_results(root: str, wanted: List[str], problem: tree.Problem) -> List[Artifact]:
    """The files, links and empty folders that match the patterns, and the content of folders that do."""
    artifacts: Dict[str, Artifact] = {}
    for pattern in wanted:
        for path, entry in tree.find(root, pattern, problem):
            for artifact in _subtree(root, path, entry, problem):
                artifacts.setdefault(artifact.path, artifact._replace(pattern=pattern))
    return list(artifacts.values())


def find_unmatched(root: str, named: List[Artifact]) -> List[str]:
    """The files below `root` that are not in `named`: no pattern matches them."""
    taken = {artifact.path for artifact in named}
    below = tree.walk(root, "", lambda _: None)
    return [path for path, entry in below if not entry.is_dir(follow_symlinks=False) and path not in taken]


def find_checkpoints(root: str, pattern: str, problem: tree.Problem) -> List[Artifact]:
    """The checkpoints below `root` that match the pattern: files, or folders that are one checkpoint each."""
    start = len(tree.beginning(pattern))
    artifacts = []
    for path, entry in tree.find(root, pattern, problem):
        name = path[start:].lstrip("/")
        if any(checkpoints.is_unfinished(part) for part in name.split("/")):
            continue
        if entry.is_dir(follow_symlinks=False):
            files = tuple(
                artifact
                for below, below_entry in tree.walk(root, path, problem)
                for artifact in _entry_artifact(root, below, below_entry)
            )
            if files:
                state = tuple(number for artifact in files for number in artifact.fingerprint)
                newest = max(artifact.mtime_ns for artifact in files)
                size = sum(artifact.size for artifact in files)
                artifacts.append(Artifact(root, path, name, pattern, "folder", size, newest, state, files))
        else:
            artifacts += [
                artifact._replace(name=name, pattern=pattern) for artifact in _entry_artifact(root, path, entry)
            ]
    return artifacts


def _subtree(root: str, path: str, entry: "os.DirEntry[str]", problem: tree.Problem) -> Iterator[Artifact]:
    entries = [(path, entry)]
    if entry.is_dir(follow_symlinks=False):
        entries += tree.walk(root, path, problem)
    parents = {entry_path.rpartition("/")[0] for entry_path, _ in entries}
    for entry_path, below in entries:
        yield from _entry_artifact(root, entry_path, below)
        if below.is_dir(follow_symlinks=False) and entry_path not in parents:
            yield Artifact(root, entry_path, entry_path, "", "folder", 0, 0, ())


def _entry_artifact(root: str, path: str, entry: "os.DirEntry[str]") -> Iterator[Artifact]:
    """The file or link itself. Sockets, pipes and devices are not copied."""
    try:
        status = entry.stat(follow_symlinks=False)
    except OSError:
        return
    kind = "file" if stat.S_ISREG(status.st_mode) else "link" if stat.S_ISLNK(status.st_mode) else ""
    if kind:
        yield Artifact(root, path, path, "", kind, status.st_size, status.st_mtime_ns, fingerprint_of(status))


def fingerprint_of(status: os.stat_result) -> Tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def open_for_writing() -> Set[Identity]:
    """The files that processes of this user on this node have open for writing."""
    writing = set()
    for path in (path for pid in linux.pids() for path in linux.descriptors(pid)):
        try:
            if os.lstat(path).st_mode & stat.S_IWUSR:
                status = os.stat(path)  # noqa: PTH116 - a bare string
                if stat.S_ISREG(status.st_mode):
                    writing.add((status.st_dev, status.st_ino))
        except OSError:
            continue
    return writing


def is_open(artifact: Artifact, writing: Set[Identity]) -> bool:
    """Whether one of its files is among those that are open for writing."""
    return not writing.isdisjoint(part.fingerprint[:2] for part in (artifact, *artifact.files))


def is_marked_complete(artifact: Artifact) -> bool:
    """Whether a folder contains the mark of a complete checkpoint of `serried.train`."""
    return checkpoints.complete(Path(artifact.source)) is not None


def is_complete(artifact: Artifact) -> Optional[bool]:
    """Whether its format shows that it is not truncated; None for a format that does not show it."""
    if artifact.kind == "folder":
        if Path(artifact.source, checkpoints.COMPLETE).exists():
            return is_marked_complete(artifact)
        verdicts = [is_complete(file) for file in artifact.files if file.size]
        return False if False in verdicts else None if None in verdicts else True
    try:
        return checkpoints.is_complete_file(Path(artifact.source)) if artifact.kind == "file" else None
    except OSError:
        return False


def is_append_only_text(artifact: Artifact) -> bool:
    """Whether it is text that is written line by line, and so is useful before it is complete."""
    return is_append_only(artifact.path.rpartition("/")[2])
