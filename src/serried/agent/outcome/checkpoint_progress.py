"""The progress that an attempt has saved, by its checkpoints directory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Iterator, Optional, Sequence

from serried.base import NamedTuple
from serried.schema import checkpoints


class Saved(NamedTuple):
    is_newer: bool
    """The directory contains a file newer than the attempt, from any writer."""
    step: Optional[int]
    """The step of the newest checkpoint that the training library completed in this attempt."""


class Position(NamedTuple):
    step: Optional[int]
    """The step of the newest complete checkpoint of `serried.train`; None if there is none."""
    newest: int
    """The newest modification time, in nanoseconds since the epoch by the file server's clock; 0 for no file."""

    def is_beyond(self, other: Position) -> bool:
        if self.step is not None and other.step is not None:
            return self.step > other.step
        return self.newest > other.newest


def since(directory: Path, claim: Path, found: Position) -> Saved:
    """The checkpoints in `directory` that are newer than `claim`, both by the file server's clock.

    `found` is their position now, which takes a look at each file.
    """
    try:
        began = claim.stat().st_mtime_ns
    except OSError:
        return Saved(False, None)
    wholes = ((step, checkpoints.directory_of(directory, step)) for step in checkpoints.steps(directory))
    newer = (step for step, path in wholes if checkpoints.changed(path / checkpoints.COMPLETE) > began)
    return Saved(found.newest > began, next(newer, None))


def position(directory: Path, watch: Sequence[str] = ()) -> Position:
    newest = checkpoints.newest(directory, watch)
    is_of_train = newest is not None and checkpoints.is_of_train(directory)
    step = checkpoints.step_of(newest.name) if newest is not None and is_of_train else None
    return Position(step, _newest(directory, watch))


def _newest(directory: Path, watch: Sequence[str]) -> int:
    """The modification time of the newest checkpoint that an attempt may resume from; 0 if there is none."""
    is_of_train = checkpoints.is_of_train(directory)
    paths = list(_files(directory)) if is_of_train else checkpoints.ordered(directory, watch)
    dated = sorted(((checkpoints.changed_within(path), path) for path in paths), reverse=True)
    return next((moment for moment, path in dated if checkpoints.is_complete(path, watch)), 0)


def _files(directory: Path) -> Iterator[Path]:
    """All files of the training library's checkpoints, except unfinished ones."""
    for folder, below, within in os.walk(directory):
        below[:] = [name for name in below if not checkpoints.is_unfinished(name)]
        yield from (Path(folder, name) for name in within if not checkpoints.is_unfinished(name))
