"""Event files of TensorBoard: those of the tracker, and those that programs write themselves."""

from __future__ import annotations

import itertools
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

from serried.base import tree
from serried.records import outputs
from serried.records.index import Selection
from serried.schema import tracking
from serried.schema.layout import CHECKPOINTS, RESULTS
from serried.schema.outputs import LOOKED

_MARK = "tfevents"
"""In the name of each event file; TensorBoard itself looks for it."""
_TRACKER = PurePosixPath(RESULTS, tracking.FOLDER, tracking.TENSORBOARD)


def of(selection: Selection) -> Iterator[tuple[str, Path]]:
    """The name of its curve and the path of each event file, some twice: of an array those of all tasks.

    All attempts of a run write to one folder of the tracker, whose curve is `RUN` or `RUN/TASK`. The curve of any
    other folder is `RUN:PATH`, with the path that `serried fetch` gives the folder. At most `LOOKED` entries are read
    of each tree. Links are left out: they may lead in a circle, or out of the run.
    """
    if selection.is_array:
        yield from _named(selection, _in_working_trees(selection))  # that all tasks may share
    for task in selection.tasks:
        own = Selection(selection.record, task)
        yield from _named(own, _below(own.place.path / _TRACKER, str(_TRACKER)))  # also among very many results
        yield from _named(own, _below(own.place.results, RESULTS))
        yield from _named(own, _below(own.place.checkpoints, CHECKPOINTS))
        if not selection.is_array:
            yield from _named(own, _in_working_trees(own))


def _named(selection: Selection, found: Iterable[tuple[PurePosixPath, Path]]) -> Iterator[tuple[str, Path]]:
    for at, path in found:
        yield str(selection) if at.parent == _TRACKER else f"{selection}:{at.parent}", path


def _below(folder: Path, name: str) -> Iterator[tuple[PurePosixPath, Path]]:
    for path, state in itertools.islice(tree.states(str(folder), lambda _: None), LOOKED):
        if _is_event_file(path, state):
            yield PurePosixPath(name, path), folder / path


def _in_working_trees(selection: Selection) -> Iterator[tuple[PurePosixPath, Path]]:
    """Files that came with the code are left out."""
    for found in outputs.trees(selection.record.where, selection.record.plan, selection.task):
        for path, state, is_output in itertools.islice(found.walk(lambda _: None), LOOKED):
            if is_output and _is_event_file(path, state):
                yield PurePosixPath(found.below, path), found.path / path


def _is_event_file(path: str, state: os.stat_result) -> bool:
    return _MARK in path.rpartition("/")[2] and stat.S_ISREG(state.st_mode)
