"""What an attempt has saved and how far that is, by what its checkpoints directory shows."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Iterator, NamedTuple, Optional, Sequence

from serried.protocol import checkpoint_layouts, checkpoints


class Saved(NamedTuple):
    is_newer: bool
    """Something there is newer than the attempt, whoever wrote it."""
    step: Optional[int]
    """Of the newest checkpoint that the training library made whole in this attempt."""


class Position(NamedTuple):
    """How far the newest checkpoint is."""

    step: Optional[int]
    """Of the newest whole one that `serried.train` wrote; None where there is none."""
    newest: int
    """When the newest file was changed, nanoseconds since the epoch by the file server's clock; 0 is none."""

    def is_beyond(self, other: Position) -> bool:
        if self.step is not None and other.step is not None:
            return self.step > other.step
        return self.newest > other.newest


def since(directory: Path, claim: Path, watch: Sequence[str] = ()) -> Saved:
    """What is in `directory` and newer than `claim`: both by the clock of the file server."""
    try:
        began = claim.stat().st_mtime_ns
    except OSError:
        return Saved(False, None)
    is_newer = _newest(directory, watch) > began
    wholes = ((step, checkpoints.directory_of(directory, step)) for step in checkpoints.steps(directory))
    made = (step for step, path in wholes if checkpoints.changed(path / checkpoints.COMPLETE) > began)
    return Saved(is_newer, next(made, None))


def position(directory: Path, watch: Sequence[str] = ()) -> Position:
    newest = checkpoints.newest(directory, watch)
    is_of_train = newest is not None and checkpoints.is_of_train(directory)
    step = checkpoints.step_of(newest.name) if newest is not None and is_of_train else None
    return Position(step, _newest(directory, watch))


def _newest(directory: Path, watch: Sequence[str]) -> int:
    """When the newest was changed that one may go on from; 0 where there is none."""
    is_of_train = checkpoints.is_of_train(directory)
    found = list(_files(directory)) if is_of_train else checkpoints.ordered(directory, watch)
    dated = sorted(((checkpoints.changed_within(path), path) for path in found), reverse=True)
    return next((moment for moment, path in dated if checkpoint_layouts.is_whole(path, watch)), 0)


def _files(directory: Path) -> Iterator[Path]:
    """All files of the library's but those that were never finished."""
    for folder, below, found in os.walk(directory):
        below[:] = [name for name in below if not checkpoints.is_unfinished(name)]
        yield from (Path(folder, name) for name in found if not checkpoints.is_unfinished(name))
