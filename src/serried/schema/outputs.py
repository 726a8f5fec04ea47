"""Outputs: files that a run writes in its working tree by relative paths, and which of them were fetched.

Outputs are all files of the tree that are not in the snapshot, and files of the snapshot that the run has written, even
with the same content. Links to entries of the project and byte code do not count. A model that the run leaves among its
checkpoints does.
"""

from __future__ import annotations

import heapq
import itertools
import json
import os
import re
import stat
from fnmatch import fnmatchcase
from functools import cached_property, lru_cache
from pathlib import Path
from typing import (
    Any,
    Callable,
    Dict,
    FrozenSet,
    Iterable,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Set,
    Tuple,
    Union,
)

from serried.base import tree as file_tree
from serried.base.files import read_journal
from serried.base.text import counted, iso, seconds_of, spell
from serried.schema.layout import CHECKPOINTS, RunDirectory, TaskDirectory
from serried.schema.plan import Plan

NOISE = ("__pycache__", "*.pyc", "*.pyo", ".nfs*")
"""Files that Python can write again, and those of the file server."""
CACHES = (
    *(".git", ".hg", ".svn", "__pycache__", "*.pyc", "*.pyo", "*.egg-info", ".eggs", ".cache"),
    *(".pytest_cache", ".mypy_cache", ".ruff_cache", ".hypothesis", ".tox", ".nox"),
    *(".serried", ".ipynb_checkpoints", ".coverage", ".DS_Store"),
)
"""Patterns of names in a project that are no output and no code:
programs rebuild these files, and jobs that share them disturb each other."""
LOG_OF_SCRIPT = "attempts/*/script.log"
"""The target of a link that a job script's run leaves where its log is expected."""
LOOKED = 20_000
"""The most entries to examine for a description, because each may take a round trip to a file server."""
NEWEST = 3
_AT_ONCE = 1000
_KINDS = {stat.S_IFREG: "file", stat.S_IFLNK: "link"}

_MODEL = r"(?!\.)(?!(?i:.*(?:step|epoch|iter|iteration|checkpoint|ckpt)[-_=]?\d|\d+(?:\.\w+)?$))[^/]*"
Unread = Callable[[OSError], None]
"""Called for a folder that cannot be listed completely."""


class OutputFile(NamedTuple):
    path: str
    """From the project's folder; in an array, below the task's number."""
    bytes: int
    changed: int
    """Modification time in nanoseconds."""

    def to_json(self) -> Dict[str, Any]:
        return {"path": self.path, "bytes": self.bytes, "changed": iso(self.changed / 1e9)}


class Outputs(NamedTuple):
    files: int = 0
    bytes: int = 0
    unfetched: int = 0
    """The number of files that `serried fetch` has not copied in their current state."""
    unfetched_bytes: int = 0
    newest: Tuple[OutputFile, ...] = ()
    """Of the unfetched files; of all files if all were fetched."""
    unread: int = 0
    """The number of folders that cannot be read."""
    is_all: bool = True
    """False if there are more entries than were examined."""

    @property
    def text(self) -> str:
        """`3 files, 1.2 GB, not fetched: results/model.pt, log.txt and 1 more`; empty without outputs."""
        if not self.unfetched:
            fetched = ", all fetched" if self.is_all else ", fetched so far as looked at"
        elif self.unfetched < self.files:
            fetched = f", of which {self.unfetched} not fetched"
        else:
            fetched = ", not fetched"
        return self._text(fetched, self.unfetched or self.files)

    @property
    def text_in_place(self) -> str:
        """`text` for files that need not be fetched."""
        return self._text("", self.files)

    def _text(self, fetched: str, named: int) -> str:
        if not (self.files or self.unread):
            return ""
        at_least = "" if self.is_all else "at least "
        more = named - len(self.newest)
        names = ", ".join(output.path for output in self.newest) + (f" and {more:,} more" if more else "")
        unread = f"; {counted(self.unread, 'folder')} cannot be read" if self.unread else ""
        size = f"{at_least}{counted(self.files, 'file')}, {spell(self.bytes)}"
        return size + fetched + (f": {names}" if names else "") + unread

    def to_json(self) -> Dict[str, Any]:
        return {
            "files": self.files,
            "bytes": self.bytes,
            "not_fetched": {"files": self.unfetched, "bytes": self.unfetched_bytes},
            "newest": [output.to_json() for output in self.newest],
            "unread": self.unread,
            "complete": self.is_all,
        }


class FetchLedger:
    """The files of a run, or of one task, that `serried fetch` has copied."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @cached_property
    def fetched(self) -> FrozenSet[Tuple[str, int, int]]:
        """The fetched file as (path, size in bytes, modification time); a later change makes it unfetched again."""
        return frozenset(
            (str(entry.get("path")), int(entry.get("bytes", -1)), int(entry.get("changed", -1)))
            for entry in read_journal(self._path)
        )

    def has(self, output: OutputFile) -> bool:
        return (output.path, output.bytes, output.changed) in self.fetched

    @cached_property
    def states(self) -> Mapping[str, FrozenSet[Tuple[int, int]]]:
        by_path: Dict[str, Set[Tuple[int, int]]] = {}
        for path, size, changed in self.fetched:
            by_path.setdefault(path, set()).add((size, changed))
        return {path: frozenset(states) for path, states in by_path.items()}

    def note(self, files: Iterable[Tuple[str, int, int]], mode: int) -> None:
        """Note that these files were copied. Raises OSError."""
        fresh = [entry for entry in files if entry not in self.fetched]
        if not fresh:
            return
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, mode)
        with os.fdopen(descriptor, "ab", buffering=0) as ledger:
            for start in range(0, len(fresh), _AT_ONCE):
                # Begins with a newline, in case a killed writer has left half a line.
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
        """The prefix of its outputs' paths in a description of several trees."""
        self.ledger = FetchLedger(place.fetched)
        self._contents = contents

    def is_output(self, path: str, kind: str, size: int, changed: int) -> bool:
        if kind not in _KINDS.values() or any(is_noise(name) for name in path.split("/")):
            return False
        return not self._contents.has(self.path, path, kind, size, changed)

    def ledger_name(self, path: str) -> str:
        return path

    def has_fetched(self, output: OutputFile) -> bool:
        return self.ledger.has(output)

    def walk(self, unread: Unread) -> Iterator[Tuple[str, os.stat_result, bool]]:
        """Each entry below the top as (path, state, whether it is an output), in no order. No link is followed."""
        for path, state in file_tree.states(str(self.path), unread):
            kind = _KINDS.get(stat.S_IFMT(state.st_mode), "")
            yield path, state, self.is_output(path, kind, state.st_size, state.st_mtime_ns)


class FinalModels:
    """The files that stand in `checkpoints/` itself and name no step: `model.safetensors`, `last.ckpt`, `config.json`.

    Folders and numbered files are checkpoints to resume from.
    """

    def __init__(self, place: TaskDirectory, below: str) -> None:
        self.path = place.checkpoints
        self.below = f"{below}{CHECKPOINTS}/"
        self.ledger = FetchLedger(place.fetched)

    def is_output(self, path: str, kind: str, size: int, changed: int) -> bool:  # noqa: ARG002 - as of a tree
        from serried.schema.checkpoints import is_unfinished  # most runs have no files there

        return kind == "file" and size > 0 and re.fullmatch(_MODEL, path) is not None and not is_unfinished(path)

    def ledger_name(self, path: str) -> str:
        return f"{{{CHECKPOINTS}}}/{path}"

    def has_fetched(self, output: OutputFile) -> bool:
        return self.ledger.has(output._replace(path=self.ledger_name(output.path)))

    def walk(self, unread: Unread) -> Iterator[Tuple[str, os.stat_result, bool]]:
        """As `Tree.walk`, without the folders."""
        for name, state in file_tree.states_in(str(self.path), unread):
            kind = _KINDS.get(stat.S_IFMT(state.st_mode), "")
            yield name, state, self.is_output(name, kind, state.st_size, state.st_mtime_ns)


Place = Union[Tree, FinalModels]


def final_models(where: RunDirectory, plan: Plan, task: Optional[int] = None) -> List[FinalModels]:
    """The models among the checkpoints of a run, or of one task."""
    array = plan.array
    if task is not None or not array:
        return [FinalModels(where.task(task), "")]
    return [FinalModels(where.task(index), f"{index}/") for index in array.indices]


def trees(where: RunDirectory, plan: Plan, task: Optional[int] = None) -> List[Tree]:
    """The trees of a run, or of one task; none if the run uses the project itself."""
    source, array = plan.source, plan.array
    if not source.snapshot:
        return []
    archive = where.path / source.archive if source.archive else None
    links = {entry: str(Path(source.directory) / entry) for entry in source.links}
    contents = Contents(archive, links, int(seconds_of(plan.created) or 0))
    if not array or not source.tree_per_task:
        return [Tree(where, "", contents)]
    indices = array.indices if task is None else [task]
    below = "{}/" if task is None else ""
    return [Tree(where.task(index), below.format(index), contents) for index in indices]


def listed(found: Iterable[Place], unread: Unread) -> Iterator[Optional[Tuple[OutputFile, Place]]]:
    """Each output with its tree, and None for every other entry. In no order."""
    for tree in found:
        for path, state, is_output in tree.walk(unread):
            size = state.st_size if stat.S_ISREG(state.st_mode) else 0
            yield (OutputFile(path, size, state.st_mtime_ns), tree) if is_output else None


def describe(
    found: Iterable[Place], most: Optional[int] = None, tell: Callable[[int], None] = lambda _: None
) -> Outputs:
    """Examine `most` entries, or all if None. Calls `tell` repeatedly with the number of examined entries."""
    problems: List[OSError] = []
    everything = listed(found, problems.append)
    every, unfetched = Tally(), Tally()
    for number, entry in enumerate(itertools.islice(everything, most), 1):
        if number % _AT_ONCE == 0:
            tell(number)
        if entry is not None:
            output, tree = entry
            shown = output._replace(path=tree.below + output.path)
            every.add(shown)
            if not tree.has_fetched(output):
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


LINE_BY_LINE = (".csv", ".tsv", ".txt", ".log", ".jsonl", ".out", ".err")


def is_append_only(name: str) -> bool:
    """Whether a file of this name is written record by record, so that it is useful before it is complete."""
    name = name.lower()
    return "tfevents" in name or name.endswith(LINE_BY_LINE)


def is_noise(name: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in NOISE)


class Contents:
    """The content of a snapshot, which was unpacked into the working trees of a run."""

    def __init__(self, archive: Optional[Path], links: Mapping[str, str], moment: int) -> None:
        """`links` has the targets of links to entries of the project, `moment` the time of every file in seconds."""
        self._archive = archive
        self._links = links
        self._moment = moment * 10**9

    def has(self, tree: Path, path: str, kind: str, size: int, changed: int) -> bool:
        """Whether the file or link at `path` of a working tree is as it was unpacked: written again, it is not."""
        if kind == "link" and path in self._links:
            return _target(tree / path) == self._links[path]
        if changed != self._moment:
            return False
        if self._members is None:
            return True
        member = self._members.get(path)  # a copy of a file may have the time of the original
        if member is None or member.kind != kind:
            return False
        return _target(tree / path) == member.leads_to if kind == "link" else member.size == size

    @cached_property
    def _members(self) -> Optional[Dict[str, _Member]]:
        """None if the archive cannot be read."""
        import tarfile

        if self._archive is None:
            return None
        try:
            return _members_of(os.path.normpath(self._archive))
        except (OSError, tarfile.TarError):
            return None


class _Member(NamedTuple):
    kind: str
    size: int
    leads_to: str


@lru_cache(maxsize=8)
def _members_of(archive: str) -> Dict[str, _Member]:
    """By path. Cached, because many runs have the same code, and an archive is named after its content."""
    import tarfile

    with tarfile.open(archive) as tar:
        return {entry.name: _Member("link" if entry.issym() else "file", entry.size, entry.linkname) for entry in tar}


def _target(path: Path) -> Optional[str]:
    try:
        return str(path.readlink())
    except OSError:
        return None
