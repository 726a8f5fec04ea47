"""The checkpoint of an earlier run, or in a path, from which a new run begins: `--resume`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from serried.base.errors import RunNotFoundError, UsageError
from serried.base.files import read_json
from serried.base.text import compress
from serried.records import index
from serried.records.index import Selection
from serried.records.record import Record, RecordUnreadable, read_exit
from serried.schema import checkpoint_layouts, checkpoints
from serried.schema.layout import RunDirectory
from serried.schema.plan import Array, Resume


@dataclass(frozen=True)
class Beginning:
    resume: Resume | None
    warnings: tuple[str, ...]


def resume_from(word: str, array: Array | None, directory: Path) -> Beginning:
    """The checkpoints from which a run begins; `array` is the new run's.

    Raises UsageError if the run or path does not exist, or has no complete checkpoint for one of the tasks.
    """
    if not word.strip():
        raise UsageError("`--resume` needs a value", hint="RUN, `last`, or the path of a checkpoint")
    if word.startswith(("/", "./", "../", "~")) or word in (".", ".."):
        return _path(Path(os.path.abspath(directory / Path(word).expanduser())))  # noqa: PTH100 - links stay
    try:
        selection = index.find(word)
    except RunNotFoundError as error:
        if os.path.lexists(directory / word):
            return _path(Path(os.path.abspath(directory / word)))  # noqa: PTH100
        raise RunNotFoundError(f"`{word}` is neither a run nor a path in this folder", hint=error.hint) from None
    return _of_run(selection, array)


def _of_run(selection: Selection, array: Array | None) -> Beginning:
    """The checkpoints of a run. Each task of an array resumes from the task with its number."""
    record = selection.record
    _check_place(record)
    theirs = record.plan.array
    if selection.task is not None or theirs is None:
        tasks: tuple[int | None, ...] = (selection.task,)
    elif array is None:
        hint = f"name one of its tasks: `--resume {record.id}/{theirs.indices[0]}`"
        raise UsageError(f"run `{record.id}` is an array, and this run is not", hint=hint)
    else:
        tasks = array.indices
        _check_tasks(record, set(array.indices) - set(theirs.indices), "has no", array)
    folders = [record.where.task(task).checkpoints for task in tasks]
    watch = watch_patterns(record)
    found = [checkpoints.newest(folder, watch) for folder in folders]
    lacking = [task for task, path in zip(tasks, found, strict=True) if path is None]
    if lacking and len(tasks) == 1:
        raise _nothing_in(folders[0], f"run `{selection}`", watch)
    if array is not None:
        _check_tasks(record, {each for each in lacking if each is not None}, "has no complete checkpoint of", array)
    resume = Resume(tuple(str(path) for path in found if path is not None), str(selection))
    return Beginning(resume, tuple(cautions_about(selection, folders, tasks)))


def _path(path: Path) -> Beginning:
    """The path itself; in a run directory or a folder of known checkpoints, the newest complete one."""
    if not path.exists():
        raise UsageError(f"`{path}` does not exist", hint="RUN, `last`, or the path of a checkpoint")
    run = RunDirectory(path)
    if run.plan.is_file():
        watch = ((read_json(run.plan) or {}).get("sync") or {}).get("watch", ())
        newest = checkpoints.newest(run.checkpoints, watch)
        if newest is None:
            raise _nothing_in(run.checkpoints, f"the run in `{path}`", watch)
        return Beginning(Resume((str(newest),)), tuple(_torn([run.checkpoints], watch)))
    layout = checkpoint_layouts.of_folder(path)
    if checkpoints.is_of_train(path) or (layout is None and any(checkpoint_layouts.recognised(path))):
        newest = checkpoints.newest(path)
        if newest is None:
            raise _nothing_in(path, f"`{path}`", ())
        return Beginning(Resume((str(newest),)), tuple(_torn([path], ())))
    is_torn_of_train = (path / checkpoints.REPLICATED).exists() and checkpoints.complete(path) is None
    if is_torn_of_train or (layout is not None and not checkpoint_layouts.is_complete(path)):
        hint = f"`--resume {path.parent}` takes the newest complete one"
        raise UsageError(f"the checkpoint `{path}` is incomplete", hint=hint)
    return Beginning(Resume((str(path),)), ())


def _check_place(record: Record) -> None:
    try:
        _ = record.plan
    except RecordUnreadable as error:
        raise UsageError(error.message, hint=error.hint) from None
    record.check_directory("checkpoints")


def _check_tasks(record: Record, wrong: Iterable[int], what: str, array: Array) -> None:
    indices = sorted(wrong)
    if not indices:
        return
    left = [index for index in array.indices if index not in set(indices)]
    tasks = f"task {indices[0]}" if len(indices) == 1 else f"tasks {compress(indices)}"
    hint = f"`--array {compress(left)}` leaves them out" if left else f"`serried show {record.id}` shows the run"
    raise UsageError(f"run `{record.id}` {what} {tasks}", hint=hint)


def watch_patterns(record: Record) -> Sequence[str]:
    return record.plan.sync.watch if record.plan.sync else ()


def _nothing_in(folder: Path, whose: str, watch: Sequence[str]) -> UsageError:
    cut_short = checkpoints.torn(folder, watch)
    if cut_short:
        hint = f"`{cut_short[-1]}` was not written completely"
    else:
        hint = (
            f"checkpoints of the run belong in `{folder}`"
            if str(folder) not in whose
            else "name the path of a checkpoint"
        )
    return UsageError(f"{whose} has no complete checkpoint", hint=hint)


def cautions_about(
    selection: Selection, folders: list[Path], tasks: Sequence[int | None], *, have_ended: bool = False
) -> Iterator[str]:
    record = selection.record
    if selection.note:
        yield selection.note
    if record.plan.smoke:
        what = "rehearsal" if record.summary.rehearsal else "smoke test"
        yield f"run `{record.id}` was a {what} of {record.plan.smoke} steps"
    have_ended = have_ended or record.end is not None
    if not have_ended and any(read_exit(record.where.task(each).exit) is None for each in tasks):
        yield (
            f"run `{selection}` may still be running and remove this checkpoint before the new run begins: "
            f"`serried stop {record.id}` first"
        )
    yield from _torn(folders, watch_patterns(record))


def _torn(folders: list[Path], watch: Sequence[str]) -> Iterator[str]:
    for folder in folders:
        for path in checkpoints.torn(folder, watch):
            yield f"skipping checkpoint `{path}`: it was not written completely"
