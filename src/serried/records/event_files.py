"""Folders with event files of TensorBoard: those of the tracker, and those that programs write themselves."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

from serried.fs import tree
from serried.protocol import tracking
from serried.protocol.layout import CHECKPOINTS, RESULTS
from serried.protocol.outputs import LOOKED
from serried.records import outputs
from serried.records.index import Selection

_MARK = "tfevents"
"""In the name of each event file; TensorBoard itself looks for it."""


def of(selection: Selection) -> Iterator[tuple[str, Path]]:
    """A name and the folder of each curve: of an array those of all tasks.

    All attempts of a run write to one folder of the tracker, `RUN` or `RUN/TASK`. Any other folder is `RUN:PATH`,
    with the path that `serried fetch` gives it. At most `LOOKED` entries are read for each task.
    """
    if selection.is_array:
        yield from _others(selection, _in_working_trees(selection))  # that all tasks may share
    for task in selection.tasks:
        own = Selection(selection.record, task)
        tracker = PurePosixPath(RESULTS, tracking.FOLDER, tracking.TENSORBOARD)
        if (own.place.path / tracker).is_dir():
            yield str(own), own.place.path / tracker
        found = [*_below(own.place.results, RESULTS), *_below(own.place.checkpoints, CHECKPOINTS)]
        if not selection.is_array:
            found += _in_working_trees(own)
        yield from _others(own, ((at, path) for at, path in found if tracker not in (at, *at.parents)))


def _others(selection: Selection, found: Iterable[tuple[PurePosixPath, Path]]) -> Iterator[tuple[str, Path]]:
    """Folders within others are left out, because TensorBoard finds them there."""
    folders = dict(found)
    for at, path in folders.items():
        if not any(above in folders for above in at.parents):
            yield f"{selection}:{at}", path


def _below(folder: Path, name: str) -> Iterator[tuple[PurePosixPath, Path]]:
    entries = itertools.islice(tree.states(str(folder), lambda _: None), LOOKED)
    return ((PurePosixPath(name, path).parent, (folder / path).parent) for path, _ in entries if _is_event_file(path))


def _in_working_trees(selection: Selection) -> Iterator[tuple[PurePosixPath, Path]]:
    """Files that came with the code are left out."""
    for found in outputs.trees(selection.record.where, selection.record.plan, selection.task):
        for path, _, is_output in itertools.islice(found.walk(lambda _: None), LOOKED):
            if is_output and _is_event_file(path):
                yield PurePosixPath(found.below, path).parent, (found.path / path).parent


def _is_event_file(path: str) -> bool:
    return _MARK in path.rpartition("/")[2]
