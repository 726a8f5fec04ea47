"""The list of runs, and the run that a word on the command line means."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from dataclasses import dataclass

from serried.errors import RunNotFoundError
from serried.protocol.layout import TaskDirectory
from serried.records.record import Record, RecordUnreadable, is_id, records_directory

LAST = "last"
_SHOWN = 5


@dataclass(frozen=True)
class Selection:
    """A run, or one task of an array."""

    record: Record
    task: int | None = None
    note: str | None = None
    """A note for the user about the choice."""

    def __str__(self) -> str:
        return self.record.id if self.task is None else f"{self.record.id}/{self.task}"

    @property
    def is_array(self) -> bool:
        """Whether it is a whole array, which has no attempts, logs and results itself: its tasks have them."""
        return self.task is None and self.record.summary.tasks is not None

    @property
    def place(self) -> TaskDirectory:
        return self.record.where.task(self.task)

    @property
    def tasks(self) -> tuple[int | None, ...]:
        """Where attempts are: an array's tasks, or the run itself (None)."""
        array = self.record.plan.array
        return (self.task,) if array is None or self.task is not None else array.indices


def records() -> list[Record]:
    """All records, by one listing, in no order."""
    try:
        with os.scandir(records_directory()) as entries:
            return [
                Record(records_directory() / entry.name) for entry in entries if is_id(entry.name) and entry.is_dir()
            ]
    except FileNotFoundError:
        return []


def find(selector: str) -> Selection:
    """The run that an id, `last`, a name or a unique prefix of an id means; `RUN/17` is its task 17.

    A name of several runs means the newest of them, with a note.
    """
    selection = _find_run(selector)
    if selection is not None:
        return selection
    run, slash, task = selector.rpartition("/")
    selection = _find_run(run) if slash and task.isdecimal() else None
    if selection is None:
        raise _not_found(selector)
    return _task(selection, int(task))


def _task(selection: Selection, index: int) -> Selection:
    array = selection.record.plan.array
    if array is None:
        raise RunNotFoundError(
            f"run `{selection.record.id}` is not an array, so it has no task {index}",
            hint=f"serried show {selection.record.id}",
        )
    if index not in array.indices:
        first, last = min(array.indices), max(array.indices)
        raise RunNotFoundError(
            f"run `{selection.record.id}` has no task {index}", hint=f"its tasks are {first} to {last}"
        )
    return Selection(selection.record, index, selection.note)


def _find_run(selector: str) -> Selection | None:
    if not selector:
        return None
    if is_id(selector):
        with contextlib.suppress(RecordUnreadable):
            return Selection(Record.load(selector))
    known = records()
    if selector == LAST:
        return _newest(known)
    named = [record for record in known if _name(record) == selector]
    if named:
        newest = _newest(named)
        if newest is None or len(named) == 1:
            return newest
        return Selection(newest.record, note=f"{len(named)} runs are named `{selector}`; this is the newest")
    return _by_prefix(selector, known)


def _by_prefix(selector: str, known: Iterable[Record]) -> Selection | None:
    fitting = sorted((record for record in known if record.id.startswith(selector)), key=lambda record: record.id)
    if len(fitting) > 1:
        shown = ", ".join(f"{record.id} ({_name(record)})" for record in fitting[:_SHOWN])
        more = f" and {len(fitting) - _SHOWN} more" if len(fitting) > _SHOWN else ""
        raise RunNotFoundError(f"`{selector}` matches the ids of {len(fitting)} runs", hint=f"{shown}{more}")
    return Selection(fitting[0]) if fitting else None


def _newest(known: Iterable[Record]) -> Selection | None:
    newest = max(known, key=planned_at, default=None)
    return Selection(newest) if newest is not None and planned_at(newest) else None


def planned_at(record: Record) -> int:
    """When the plan was written: it never changes, so its time stamp suffices."""
    try:
        return record.directory.plan.stat().st_mtime_ns
    except OSError:
        return 0


def _name(record: Record) -> str:
    try:
        return record.summary.name
    except RecordUnreadable:
        return "?"


def _not_found(selector: str) -> RunNotFoundError:
    import difflib

    known = records()
    if not known:
        unknown = f"unknown run: `{selector}`; " if selector != LAST else ""  # readers take `last` by default
        return RunNotFoundError(f"{unknown}you have no runs yet", hint="serried submit -- python train.py")
    words = {record.id: record.id for record in known}
    words |= {_name(record): _name(record) for record in known}
    close = difflib.get_close_matches(selector, words, n=1)
    hint = f"did you mean `{close[0]}`? (serried ps --all lists them)" if close else "serried ps --all lists them"
    return RunNotFoundError(f"unknown run: `{selector}`", hint=hint)
