"""What `--resume WORD` means: the newest whole checkpoint of a run, or in a path. Found before anything begins."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from serried.errors import RunNotFoundError, UsageError
from serried.fs.files import read_json
from serried.plan import Array, Resume
from serried.protocol import checkpoint_layouts, checkpoints
from serried.protocol.layout import RunDirectory
from serried.records import index
from serried.records.index import Selection
from serried.records.record import Record, RecordUnreadable
from serried.schedulers.indices import compress
from serried.submission.run_root import check_there


@dataclass(frozen=True)
class Found:
    resume: Resume | None
    warnings: tuple[str, ...]


def resume_from(word: str, array: Array | None, directory: Path) -> Found:
    """What a run begins from; `array` is the new run's.

    Raises UsageError where there is no such run or path, no whole checkpoint in it, or none for some element.
    """
    if not word.strip():
        raise UsageError("`--resume` names nothing", hint="RUN, `last`, or the path of a checkpoint")
    if word.startswith(("/", "./", "../", "~")) or word in (".", ".."):
        return _path(Path(os.path.abspath(directory / Path(word).expanduser())))  # noqa: PTH100 - links stay
    try:
        selection = index.find(word)
    except RunNotFoundError as error:
        if os.path.lexists(directory / word):
            return _path(Path(os.path.abspath(directory / word)))  # noqa: PTH100
        raise RunNotFoundError(f"{error.message}, and no such path here", hint=error.hint) from None
    return _of_run(selection, array)


def _of_run(selection: Selection, array: Array | None) -> Found:
    """The same for a run that is known. Each task of an array goes on from the same task of an array."""
    record = selection.record
    _check_place(record)
    theirs = record.plan.array
    if selection.element is not None or theirs is None:
        elements: tuple[int | None, ...] = (selection.element,)
    elif array is None:
        hint = f"name one of its tasks: `--resume {record.id}/{theirs.indices[0]}`"
        raise UsageError(f"run `{record.id}` is an array, and this run is not", hint=hint)
    else:
        elements = array.indices
        _check_elements(record, set(array.indices) - set(theirs.indices), "has no", array)
    folders = [record.where.element(element).checkpoints for element in elements]
    watch = _watch(record)
    found = [checkpoints.newest(folder, watch) for folder in folders]
    lacking = [element for element, path in zip(elements, found, strict=True) if path is None]
    if lacking and len(elements) == 1:
        raise _nothing_in(folders[0], f"run `{selection}`", watch)
    if array is not None:
        _check_elements(record, {each for each in lacking if each is not None}, "has no whole checkpoint of", array)
    resume = Resume(tuple(str(path) for path in found if path is not None), str(selection))
    return Found(resume, tuple(_warnings(selection, folders, elements)))


def go_on(selection: Selection, array: Array | None, beginning: Resume | None) -> Found:
    """From where a run had come to: its newest whole checkpoints, or what it began from itself where it has none."""
    record = selection.record
    elements = array.indices if array is not None else (selection.element,)
    folders = [record.where.element(element).checkpoints for element in elements]
    watch = _watch(record)
    own = [checkpoints.newest(folder, watch) for folder in folders]
    if not any(own):
        return Found(beginning, ())
    before = beginning.checkpoints if beginning else ("",)
    before = before * len(own) if len(before) == 1 else before
    paths = tuple(str(path) if path else other for path, other in zip(own, before, strict=True))
    return Found(Resume(paths, str(selection)), tuple(_warnings(selection, folders, elements)))


def _path(path: Path) -> Found:
    """A path as it stands; of a run directory, or of a folder of known checkpoints, the newest whole one."""
    if not path.exists():
        raise UsageError(f"there is no `{path}` to begin from", hint="RUN, `last`, or the path of a checkpoint")
    run = RunDirectory(path)
    if run.plan.is_file():
        watch = ((read_json(run.plan) or {}).get("sync") or {}).get("watch", ())
        newest = checkpoints.newest(run.checkpoints, watch)
        if newest is None:
            raise _nothing_in(run.checkpoints, f"the run in `{path}`", watch)
        return Found(Resume((str(newest),)), tuple(_torn([run.checkpoints], watch)))
    layout = checkpoint_layouts.of_folder(path)
    if checkpoints.is_of_train(path) or (layout is None and any(checkpoint_layouts.recognised(path))):
        newest = checkpoints.newest(path)
        if newest is None:
            raise _nothing_in(path, f"`{path}`", ())
        return Found(Resume((str(newest),)), tuple(_torn([path], ())))
    is_torn_of_train = (path / checkpoints.REPLICATED).exists() and checkpoints.complete(path) is None
    if is_torn_of_train or (layout is not None and not checkpoint_layouts.is_whole(path)):
        raise _not_whole(path)
    return Found(Resume((str(path),)), ())


def _not_whole(path: Path) -> UsageError:
    return UsageError(
        f"the checkpoint `{path}` is not whole", hint=f"`--resume {path.parent}` takes the newest that is"
    )


def _check_place(record: Record) -> None:
    try:
        _ = record.plan
    except RecordUnreadable as error:
        raise UsageError(error.message, hint=error.hint) from None
    check_there(record, "checkpoints")


def _check_elements(record: Record, wrong: Iterable[int], what: str, array: Array) -> None:
    indices = sorted(wrong)
    if not indices:
        return
    left = [index for index in array.indices if index not in set(indices)]
    tasks = f"task {indices[0]}" if len(indices) == 1 else f"tasks {compress(indices)}"
    hint = f"`--array {compress(left)}` leaves them out" if left else f"`serried show {record.id}` tells more"
    raise UsageError(f"run `{record.id}` {what} {tasks}", hint=hint)


def _watch(record: Record) -> Sequence[str]:
    return record.plan.sync.watch if record.plan.sync else ()


def _nothing_in(folder: Path, whose: str, watch: Sequence[str]) -> UsageError:
    cut_short = checkpoints.torn(folder, watch)
    if cut_short:
        hint = f"the writing of `{cut_short[-1]}` was cut short"
    else:
        hint = f"it would be in `{folder}`" if str(folder) not in whose else "name the path of a checkpoint"
    return UsageError(f"{whose} has no whole checkpoint to begin from", hint=hint)


def _warnings(selection: Selection, folders: list[Path], elements: Sequence[int | None]) -> Iterator[str]:
    record = selection.record
    if selection.note:
        yield selection.note
    if record.plan.smoke:
        what = "rehearsal" if record.summary.rehearsal else "smoke test"
        yield f"run `{record.id}` was a {what} of {record.plan.smoke} steps"
    if record.end is None and any(read_json(record.where.element(each).exit) is None for each in elements):
        yield (
            f"run `{selection}` may still be running, and remove this checkpoint before the new run begins: "
            f"`serried stop {record.id}` first"
        )
    yield from _torn(folders, _watch(record))


def _torn(folders: list[Path], watch: Sequence[str]) -> Iterator[str]:
    for folder in folders:
        for path in checkpoints.torn(folder, watch):
            yield f"skipping checkpoint `{path}`: it was not written completely"
