"""Outputs: what a run has written in its working tree by relative paths, and what of it was fetched.

Everything in the tree that the snapshot did not put there, and files of the snapshot that the run has changed. Links
to entries of the project are not the run's, and byte code does not count as output.
"""

from __future__ import annotations

import dataclasses
import heapq
import itertools
import json
import os
import stat
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Any, Callable, Dict, FrozenSet, Iterable, Iterator, List, Mapping, Optional, Set, Tuple

from serried.fs import tree as file_tree
from serried.fs.archives import Contents
from serried.fs.files import read_journal
from serried.protocol.layout import RunDirectory, TaskDirectory
from serried.protocol.sizes import counted, spell
from serried.protocol.times import iso, seconds_of

NOISE = ("__pycache__", "*.pyc", "*.pyo", ".nfs*")
"""Made again from the source at any time, or the file server's own."""
LOOKED = 20_000
"""Entries that are looked at to describe outputs: each may be a round trip to a file server."""
NEWEST = 3
_AT_ONCE = 1000
_KINDS = {stat.S_IFREG: "file", stat.S_IFLNK: "link"}

Unread = Callable[[OSError], None]
"""Hears of a folder that cannot be listed, or not all of it."""


@dataclass(frozen=True)
class OutputFile:
    path: str
    """From the project's folder; of an array, below the task's number."""
    bytes: int
    changed: int
    """In nanoseconds."""

    def to_json(self) -> Dict[str, Any]:
        return {"path": self.path, "bytes": self.bytes, "changed": iso(self.changed / 1e9)}


@dataclass(frozen=True)
class Outputs:
    """What there is, described without naming all of it."""

    files: int = 0
    bytes: int = 0
    unfetched: int = 0
    """How many of the files no `serried fetch` has copied, as they are now."""
    unfetched_bytes: int = 0
    newest: Tuple[OutputFile, ...] = ()
    """Of the unfetched; of all, where all were fetched."""
    unread: int = 0
    """Folders that could not be looked into."""
    is_all: bool = True
    """False: there are more entries than were looked at."""

    @property
    def text(self) -> str:
        """`3 files, 1.2 GB, not fetched: results/model.pt, log.txt and 1 more`; empty where there are none."""
        if not self.unfetched:
            fetched = ", all fetched" if self.is_all else ", fetched so far as looked at"
        elif self.unfetched < self.files:
            fetched = f", of which {self.unfetched} not fetched"
        else:
            fetched = ", not fetched"
        return self._text(fetched, self.unfetched or self.files)

    @property
    def text_in_place(self) -> str:
        """The same of files that nobody needs to fetch."""
        return self._text("", self.files)

    def _text(self, fetched: str, named: int) -> str:
        if not (self.files or self.unread):
            return ""
        at_least = "" if self.is_all else "at least "
        more = named - len(self.newest)
        names = ", ".join(each.path for each in self.newest) + (f" and {more:,} more" if more else "")
        unread = f"; {counted(self.unread, 'folder')} cannot be read" if self.unread else ""
        size = f"{at_least}{counted(self.files, 'file')}, {spell(self.bytes)}"
        return size + fetched + (f": {names}" if names else "") + unread

    def to_json(self) -> Dict[str, Any]:
        return {
            "files": self.files,
            "bytes": self.bytes,
            "not_fetched": {"files": self.unfetched, "bytes": self.unfetched_bytes},
            "newest": [each.to_json() for each in self.newest],
            "unread": self.unread,
            "complete": self.is_all,
        }


class FetchLedger:
    """Which files of a run, or of one task, `serried fetch` has copied."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @cached_property
    def fetched(self) -> FrozenSet[Tuple[str, int, int]]:
        """The fetched file as (path, size in bytes, modification time); a later change makes it unfetched again."""
        return frozenset(
            (str(one.get("path")), int(one.get("bytes", -1)), int(one.get("changed", -1)))
            for one in read_journal(self._path)
        )

    def has(self, output: OutputFile) -> bool:
        """Whether it was copied as it is now."""
        return (output.path, output.bytes, output.changed) in self.fetched

    @cached_property
    def states(self) -> Mapping[str, FrozenSet[Tuple[int, int]]]:
        """The same by path."""
        found: Dict[str, Set[Tuple[int, int]]] = {}
        for path, size, changed in self.fetched:
            found.setdefault(path, set()).add((size, changed))
        return {path: frozenset(states) for path, states in found.items()}

    def note(self, files: Iterable[Tuple[str, int, int]], mode: int) -> None:
        """Remember that these were copied. Raises OSError."""
        fresh = [entry for entry in files if entry not in self.fetched]
        if not fresh:
            return
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, mode)
        with os.fdopen(descriptor, "ab", buffering=0) as ledger:
            for start in range(0, len(fresh), _AT_ONCE):
                # It begins a line of its own, whatever a writer before us has left half done.
                lines = (
                    json.dumps({"path": path, "bytes": size, "changed": changed})
                    for path, size, changed in fresh[start : start + _AT_ONCE]
                )
                ledger.write(("\n" + "\n".join(lines) + "\n").encode())


class Tree:
    """A working tree, of a run or of one task."""

    def __init__(self, place: TaskDirectory, below: str, contents: Contents) -> None:
        self.path = place.source
        self.below = below
        """What its outputs' paths begin with where several trees are told of."""
        self.ledger = FetchLedger(place.fetched)
        self._contents = contents

    def is_output(self, path: str, kind: str, size: int, changed: int) -> bool:
        if kind not in _KINDS.values() or any(is_noise(name) for name in path.split("/")):
            return False
        return not self._contents.has(self.path, path, kind, size, changed)

    def walk(self, unread: Unread) -> Iterator[Tuple[str, os.stat_result, bool]]:
        """Each entry below the top as (path, state, whether it is an output), in no order. No link is followed."""
        for path, state in file_tree.states(str(self.path), unread):
            kind = _KINDS.get(stat.S_IFMT(state.st_mode), "")
            yield path, state, self.is_output(path, kind, state.st_size, state.st_mtime_ns)


def trees(where: RunDirectory, plan: Mapping[str, Any], task: Optional[int] = None) -> List[Tree]:
    """Those of a run, or of one task; none where it runs in the project itself."""
    source, array = plan["source"], plan.get("array")
    if not source["snapshot"]:
        return []
    archive = where.path / source["archive"] if source["archive"] else None
    links = {entry: str(Path(source["directory"]) / entry) for entry in source["links"]}
    contents = Contents(archive, links, int(seconds_of(plan["created"]) or 0))
    if not array or not source.get("tree_per_task"):
        return [Tree(where, "", contents)]
    indices = array["indices"] if task is None else [task]
    below = "{}/" if task is None else ""
    return [Tree(where.task(index), below.format(index), contents) for index in indices]


def listed(found: Iterable[Tree], unread: Unread) -> Iterator[Optional[Tuple[OutputFile, Tree]]]:
    """Each output with its tree; None for every other entry that was looked at. In no order."""
    for tree in found:
        for path, state, is_output in tree.walk(unread):
            size = state.st_size if stat.S_ISREG(state.st_mode) else 0
            yield (OutputFile(path, size, state.st_mtime_ns), tree) if is_output else None


def describe(
    found: Iterable[Tree], most: Optional[int] = None, tell: Callable[[int], None] = lambda _: None
) -> Outputs:
    """`most` is how many entries are looked at; None is all of them. `tell` hears now and then how many it was."""
    problems: List[OSError] = []
    everything = listed(found, problems.append)
    every, unfetched = Tally(), Tally()
    for number, entry in enumerate(itertools.islice(everything, most), 1):
        if number % _AT_ONCE == 0:
            tell(number)
        if entry is not None:
            output, tree = entry
            shown = dataclasses.replace(output, path=tree.below + output.path)
            every.add(shown)
            if not tree.ledger.has(output):
                unfetched.add(shown)
    is_all = most is None or next(everything, _END) is _END
    newest = (unfetched if unfetched.files else every).newest
    return Outputs(
        every.files, every.bytes, unfetched.files, unfetched.bytes, tuple(newest), len(problems), is_all=is_all
    )


_END = object()


class Tally:
    def __init__(self) -> None:
        self.files = self.bytes = 0
        self._heap: List[Tuple[int, str, int]] = []

    def add(self, output: OutputFile) -> None:
        self.files += 1
        self.bytes += output.bytes
        heapq.heappush(self._heap, (output.changed, output.path, output.bytes))
        if len(self._heap) > NEWEST:
            heapq.heappop(self._heap)

    @property
    def newest(self) -> List[OutputFile]:
        return [OutputFile(path, size, changed) for changed, path, size in sorted(self._heap, reverse=True)]


def is_noise(name: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in NOISE)
