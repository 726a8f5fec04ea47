"""What `serried fetch` does: what stayed on nodes is brought back by small jobs there; and which files go where."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from serried.contract.layout import CHECKPOINTS, RESULTS, ElementDirectory
from serried.errors import SerriedError, UsageError
from serried.records import missing
from serried.records.index import Selection
from serried.records.missing import Missing
from serried.submission import copies, errands
from serried.submission.copies import Entry
from serried.submission.errands import Errand, Observe

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


def bring_back(
    selection: Selection, lacking: Sequence[Missing], heed: Callable[[int, Back | SerriedError], None], observe: Observe
) -> None:
    """Bring it to the run directory, by a job on each node.

    `heed` hears what came of each, by its place in `lacking`, as soon as its job has ended.
    """
    for attempt in sorted({found.attempt for found in lacking}):  # a later one's files replace those that are there
        numbers = [number for number, found in enumerate(lacking) if found.attempt == attempt]

        def settle(place: int, answer: errands.Answer, numbers: Sequence[int] = numbers) -> None:
            number = numbers[place]
            heed(number, answer if isinstance(answer, SerriedError) else _settled(selection, lacking[number], answer))

        errands.send_all([_errand(selection, lacking[number]) for number in numbers], settle, observe)


def _errand(selection: Selection, found: Missing) -> Errand:
    record = selection.record
    attempt = record.where.element(found.element).attempt(found.attempt)
    element = "-" if found.element is None else str(found.element)
    role = ("fetch", element, str(found.attempt), str(found.node), found.folder)
    return Errand(record.plan, found.host, role, attempt.fetched(found.node))


def _settled(selection: Selection, found: Missing, told: Mapping[str, Any]) -> Back:
    """What a node told, after readers know it too."""
    problem = str(told.get("problem") or "")
    if not problem:
        missing.strike(selection, found)
    elif told.get("is_gone"):
        missing.give_up(selection, found)
    files, size = int(told.get("files") or 0), int(told.get("bytes") or 0)
    return Back(files, size, problem, is_gone=bool(told.get("is_gone")), torn=tuple(told.get("torn") or ()))


def entries(selection: Selection, wanted: Sequence[str]) -> list[Entry]:
    """What the patterns name of a run; all results without them. Raises UsageError where that is nothing."""
    found = [entry for place, below in _places(selection) for entry in _of(place, below, wanted or [RESULTS])]
    if not found:
        what = " or ".join(f"`{pattern}`" for pattern in wanted) or "results"
        raise UsageError(
            f"run `{selection}` has no {what}" if not wanted else f"nothing of run `{selection}` is called {what}",
            hint=f"`serried show {selection}` says where its files are",
        )
    return found


def _places(selection: Selection) -> list[tuple[ElementDirectory, str]]:
    """Of an array each element's own goes to a folder with its number."""
    where = selection.record.where
    return [(where.element(each), f"{each}/" if selection.is_array else "") for each in selection.elements]


def _of(place: ElementDirectory, below: str, wanted: Sequence[str]) -> Iterator[Entry]:
    told = [_folder_and_pattern(pattern) for pattern in wanted]
    for folder in (RESULTS, CHECKPOINTS):
        patterns = [pattern for which, pattern in told if which == folder]
        if patterns:
            yield from _found(place.path / folder, below if folder == RESULTS else f"{below}{folder}/", patterns)


def _folder_and_pattern(pattern: str) -> tuple[str, str]:
    first, _, rest = pattern.removeprefix("./").partition("/")
    return (first, rest or ALL) if first in (RESULTS, CHECKPOINTS) else (RESULTS, pattern)


def _found(root: Path, below: str, patterns: Sequence[str]) -> list[Entry]:
    problems: list[OSError] = []
    found = copies.find(root, patterns, problems.append)
    if problems:
        raise UsageError(f"cannot read `{problems[0].filename}`: {problems[0].strerror}")
    return [dataclasses.replace(entry, path=below + entry.path) for entry in found]
