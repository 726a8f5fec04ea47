"""What `serried fetch` does: what stayed on nodes is brought back by a small job there; and which files go where."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from serried.contract.layout import CHECKPOINTS, RESULTS, ElementDirectory
from serried.errors import UsageError
from serried.records import missing
from serried.records.index import Selection
from serried.records.missing import Missing
from serried.submission import copies, errands
from serried.submission.copies import Entry

ALL = "*"


@dataclass(frozen=True)
class Back:
    """What came of bringing back what one node still had."""

    files: int
    bytes: int
    problem: str
    """Why something is still missing; empty where nothing is."""
    is_gone: bool = False
    """The node has nothing of it any more."""
    torn: tuple[str, ...] = ()
    """Checkpoints that may be, and stayed there."""


def bring_back(selection: Selection, found: Missing, observe: errands.Observe) -> Back:
    """Bring it to the run directory, by a job on its node. Raises SerriedError where that could not run."""
    record = selection.record
    attempt = record.where.element(found.element).attempt(found.attempt)
    element = "-" if found.element is None else str(found.element)
    role = ("fetch", element, str(found.attempt), str(found.node), found.folder)
    told = errands.send(record.plan, found.host, role, attempt.fetched(found.node), observe)
    problem = str(told.get("problem") or "")
    if not problem:
        missing.strike(selection, found)
    elif told.get("is_gone"):
        missing.give_up(selection, found)
    files, size = int(told.get("files") or 0), int(told.get("bytes") or 0)
    return Back(files, size, problem, is_gone=bool(told.get("is_gone")), torn=tuple(told.get("torn") or ()))


@dataclass(frozen=True)
class Part:
    """Files of one folder of a run, or of one element."""

    root: Path
    below: Path
    """Where they go, from the folder that they all go to."""
    entries: tuple[Entry, ...]

    @property
    def bytes(self) -> int:
        return sum(entry.bytes for entry in self.entries)

    @property
    def files(self) -> int:
        return sum(entry.kind != "folder" for entry in self.entries)


def check_place(selection: Selection) -> None:
    """Raise UsageError where there is nothing to bring anything to, or to copy from."""
    record = selection.record
    if not record.where.path.is_dir():
        raise UsageError(
            f"the run directory of `{record.id}` is gone, and its results with it",
            hint=f"it was `{record.where.path}`; a site purges old files",
        )


def parts(selection: Selection, wanted: Sequence[str]) -> list[Part]:
    """What the patterns name of a run; all results without them. Raises UsageError where that is nothing."""
    found = [part for place, below in _places(selection) for part in _of(place, below, wanted or [RESULTS])]
    if not any(part.entries for part in found):
        what = " or ".join(f"`{pattern}`" for pattern in wanted) or "results"
        raise UsageError(
            f"run `{selection}` has no {what}" if not wanted else f"nothing of run `{selection}` is called {what}",
            hint=f"`serried show {selection}` says where its files are",
        )
    return [part for part in found if part.entries]


def _places(selection: Selection) -> list[tuple[ElementDirectory, Path]]:
    """Of an array each element's own goes to a folder with its number."""
    where, array = selection.record.where, selection.record.plan.array
    if selection.element is not None or array is None:
        return [(where.element(selection.element), Path())]
    return [(where.element(index), Path(str(index))) for index in array.indices]


def _of(place: ElementDirectory, below: Path, wanted: Sequence[str]) -> list[Part]:
    told = [_folder_and_pattern(pattern) for pattern in wanted]
    return [
        _part(place.path / folder, below / (folder if folder != RESULTS else ""), patterns)
        for folder in (RESULTS, CHECKPOINTS)
        if (patterns := [pattern for which, pattern in told if which == folder])
    ]


def _folder_and_pattern(pattern: str) -> tuple[str, str]:
    first, _, rest = pattern.removeprefix("./").partition("/")
    return (first, rest or ALL) if first in (RESULTS, CHECKPOINTS) else (RESULTS, pattern)


def _part(root: Path, below: Path, patterns: Sequence[str]) -> Part:
    problems: list[OSError] = []
    entries = copies.find(root, patterns, problems.append)
    if problems:
        raise UsageError(f"cannot read `{problems[0].filename}`: {problems[0].strerror}")
    return Part(root, below, tuple(entries))
