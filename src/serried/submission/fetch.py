"""What `serried fetch` does: what stayed on nodes is brought back by small jobs there; and which files go where."""

from __future__ import annotations

import dataclasses
import glob
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from serried.errors import SerriedError, UsageError
from serried.fs.files import MODES
from serried.protocol.layout import CHECKPOINTS, RESULTS, TaskDirectory
from serried.protocol.outputs import FetchLedger
from serried.records import missing_outputs
from serried.records.index import Selection
from serried.records.missing_outputs import Missing
from serried.records.outputs import trees
from serried.submission import fetch_copy, node_jobs
from serried.submission.fetch_copy import FetchEntry, Report
from serried.submission.node_jobs import Errand, Observe

ALL = "*"
OUTPUTS = "outputs"
"""The folder of outputs that results leave no place for."""


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
    selection: Selection,
    lacking: Sequence[Missing],
    on_answer: Callable[[int, Back | SerriedError], None],
    observe: Observe,
) -> None:
    """Bring it to the run directory, by a job on each node.

    `on_answer` gets the outcome of each, by its place in `lacking`, as soon as its job has ended.
    """
    for attempt in sorted({found.attempt for found in lacking}):  # a later one's files replace those that are there
        numbers = [number for number, found in enumerate(lacking) if found.attempt == attempt]

        def settle(place: int, answer: node_jobs.Answer, numbers: Sequence[int] = numbers) -> None:
            number = numbers[place]
            on_answer(
                number, answer if isinstance(answer, SerriedError) else _settled(selection, lacking[number], answer)
            )

        node_jobs.send_all([_errand(selection, lacking[number]) for number in numbers], settle, observe)


def _errand(selection: Selection, found: Missing) -> Errand:
    record = selection.record
    attempt = record.where.task(found.task).attempt(found.attempt)
    task = "-" if found.task is None else str(found.task)
    role = ("fetch", task, str(found.attempt), str(found.node), found.folder)
    return Errand(record.plan, found.host, role, attempt.fetched(found.node))


def _settled(selection: Selection, found: Missing, told: Mapping[str, Any]) -> Back:
    """What a node told, after readers know it too."""
    problem = str(told.get("problem") or "")
    if not problem:
        missing_outputs.strike(selection, found)
    elif told.get("is_gone"):
        missing_outputs.give_up(selection, found)
    files, size = int(told.get("files") or 0), int(told.get("bytes") or 0)
    return Back(files, size, problem, is_gone=bool(told.get("is_gone")), torn=tuple(told.get("torn") or ()))


@dataclass(frozen=True)
class FetchMatches:
    """What the patterns name of a run."""

    entries: list[FetchEntry]
    """Results and checkpoints, then outputs."""
    noted: dict[Path, tuple[FetchLedger, str]]
    """By their sources, where it is remembered that they were copied, and under which name."""


def has_any(selection: Selection) -> bool:
    """Whether there are results or outputs to copy."""
    try:
        return bool(find(selection, (), Path()).entries)
    except UsageError:
        return False


def find(selection: Selection, wanted: Sequence[str], target: Path) -> FetchMatches:
    """What the patterns name of a run; results and outputs without them. Raises UsageError where that is nothing.

    Patterns for outputs begin at the project's folder, or where ranks start. Where `target` is a folder of the
    project, what was written below that folder keeps its path from there. Of two files with one place there, results
    and what was written below that folder have it; the other's is in a folder of that.
    """
    entries: list[FetchEntry] = []
    noted: dict[Path, tuple[FetchLedger, str]] = {}

    taken: set[str] = set()

    def take(entry: FetchEntry, below: str, to: str, ledger: FetchLedger, name: str, *, aside: str) -> None:
        while below + to in taken and entry.kind != "folder":
            to = f"{aside}/{to}"
        taken.add(below + to)
        entries.append(dataclasses.replace(entry, path=below + to, replaces=ledger.states.get(name, frozenset())))
        noted[entry.source] = ledger, name

    for place, below in _places(selection):
        ledger = FetchLedger(place.fetched)
        for folder, entry in _of(place, wanted or [RESULTS]):
            to = entry.path if folder == RESULTS else f"{folder}/{entry.path}"
            take(entry, below, to, ledger, f"{{{folder}}}/{entry.path}", aside=folder)
    plan = selection.record.plan
    starts = "" if plan.source.workdir == os.curdir else f"{glob.escape(plan.source.workdir)}/"
    patterns = [*wanted, *(f"{starts}{pattern}" for pattern in wanted if starts)]
    within = _within(target, Path(plan.source.directory))
    for tree in trees(selection.record.where, plan, selection.task):
        listed = _found(tree.path, patterns or [ALL])
        for entry in sorted(listed, key=lambda entry: not entry.path.startswith(within)):
            if tree.is_output(entry.path, entry.kind, *entry.state):
                take(entry, tree.below, entry.path.removeprefix(within), tree.ledger, entry.path, aside=OUTPUTS)
    if not entries:
        what = " or ".join(f"`{pattern}`" for pattern in wanted)
        raise UsageError(
            f"nothing of run `{selection}` is called {what}"
            if wanted
            else f"run `{selection}` has neither results nor outputs",
            hint=_where_to_look(selection),
        )
    return FetchMatches(entries, noted)


def _within(target: Path, project: Path) -> str:
    """How paths of the project begin that are below `target`; empty where that is not in the project."""
    here, top = target.resolve(), project.resolve()
    return f"{here.relative_to(top)}/" if here.is_relative_to(top) and here != top else ""


def note_fetched(selection: Selection, found: FetchMatches, report: Report, target: Path) -> None:
    """Remember what is in `target` now: `clean` may remove outputs, and the next fetch replaces what it has copied.

    Raises OSError where the run directory cannot be written.
    """
    by_ledger: dict[FetchLedger, list[tuple[str, int, int]]] = {}
    for entry in report.there:
        ledger, name = found.noted[entry.source]
        # A file that has changed since it was listed was copied as it is now.
        states = {entry.state, fetch_copy.file_state(target / entry.path) or entry.state}
        by_ledger.setdefault(ledger, []).extend((name, *state) for state in sorted(states))
    mode = MODES[selection.record.plan.share].file
    for ledger, states_of_files in by_ledger.items():
        ledger.note(states_of_files, mode)


def _where_to_look(selection: Selection) -> str:
    source = selection.record.plan.source
    if source.snapshot:
        return f"`serried show {selection}` says where its files are"
    return f"it ran in place: what it wrote by relative paths is in `{source.directory}`"


def _places(selection: Selection) -> list[tuple[TaskDirectory, str]]:
    """Of an array each task's own goes to a folder with its number."""
    where = selection.record.where
    return [(where.task(each), f"{each}/" if selection.is_array else "") for each in selection.tasks]


def _of(place: TaskDirectory, wanted: Sequence[str]) -> Iterator[tuple[str, FetchEntry]]:
    told = [_folder_and_pattern(pattern) for pattern in wanted]
    for folder in (RESULTS, CHECKPOINTS):
        patterns = [pattern for which, pattern in told if which == folder]
        if patterns:
            yield from ((folder, entry) for entry in _found(place.path / folder, patterns))


def _folder_and_pattern(pattern: str) -> tuple[str, str]:
    first, _, rest = pattern.removeprefix("./").partition("/")
    return (first, rest or ALL) if first in (RESULTS, CHECKPOINTS) else (RESULTS, pattern)


def _found(root: Path, patterns: Sequence[str]) -> list[FetchEntry]:
    problems: list[OSError] = []
    found = fetch_copy.find(root, patterns, problems.append)
    if problems:
        raise UsageError(f"cannot read `{problems[0].filename}`: {problems[0].strerror}")
    return found
