"""`serried rerun`: a new run of another's plan, with the code that it ran, from where it had come to."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from pathlib import Path

from serried import config
from serried.builds import Observe, silent
from serried.errors import UsageError
from serried.fs.files import read_json
from serried.plan import Array, Plan, Resume
from serried.protocol.names import COMPLETED
from serried.protocol.times import iso
from serried.records.index import Selection
from serried.records.record import RecordUnreadable, new_id
from serried.submission.prepare import prepare, prepare_recorded
from serried.submission.prepared import Prepared
from serried.submission.resume import Found, go_on


def prepare_again(
    selection: Selection,
    environ: Mapping[str, str],
    *,
    fresh: bool = False,
    new_code: bool = False,
    name: str | None = None,
    observe: Observe | None = silent,
) -> Prepared:
    """What `deliver` hands over for another run of the same plan.

    Args:
        selection: the run, or a task of an array: then that task alone.
        environ: the submitting shell's environment; what the job inherits comes from it, as at any submit.
        fresh: begin where that run began, and not from its newest whole checkpoint.
        new_code: the code as it is now, and not as that run had it.
        name: what to call the new run; None is as the other.
        observe: as for `prepare`.

    Raises UsageError where the plan, the code or the commands of its tasks are not there any more.
    """
    record = selection.record
    try:
        old = record.plan
    except RecordUnreadable as error:
        raise UsageError(error.message, hint=error.hint) from None
    array, each = old.array, _each(selection)
    if array is not None and selection.element is not None:
        array = array._replace(indices=(selection.element,), parallel=None)
    found = Found(_beginning(old, array), ()) if fresh else go_on(selection, array, _beginning(old, array))
    plan = dataclasses.replace(
        old,
        run=new_id(),
        name=name or old.name,
        created=iso(time.time()),
        command=each[0] if each else old.command,
        array=array,
        resume=found.resume,
        rerun_of=str(selection),
        after=tuple(one._replace(job=None) for one in old.after),
    )
    warnings = (*found.warnings, *(() if found.resume is None or fresh else _completed(selection)))
    if plan.source.snapshot and not new_code:
        return prepare_recorded(plan, record, environ, each, warnings)
    if not plan.source.snapshot:
        warnings = (*warnings, f"run `{record.id}` ran in place, so the code is what is there now")
    plan = dataclasses.replace(plan, source=plan.source._replace(archive=None))
    here = Path(plan.source.directory)
    if not here.is_dir():
        raise UsageError(f"the project's folder `{here}` is not there")
    resolved = config.resolve(None, plan.command, {}, plan.site.name, here, environ)
    return prepare(plan, dataclasses.replace(resolved, warnings=warnings), environ, each, observe=observe)


def _beginning(old: Plan, array: Array | None) -> Resume | None:
    """What the old run itself began from, for the tasks of `array`."""
    if old.resume is None or old.array is None or array is None or len(old.resume.checkpoints) == 1:
        return old.resume
    paths = dict(zip(old.array.indices, old.resume.checkpoints, strict=True))
    return old.resume._replace(checkpoints=tuple(paths[index] for index in array.indices))


def _completed(selection: Selection) -> tuple[str, ...]:
    end = selection.record.end if selection.element is None else None
    if end is None:
        end = read_json(selection.place.exit)
    if end is None or end.get("state") != COMPLETED:
        return ()
    return (f"run `{selection}` has completed, so that little may be left to train: `--fresh` begins anew",)


def _each(selection: Selection) -> tuple[tuple[str, ...], ...]:
    record, array = selection.record, selection.record.plan.array
    if array is None or not array.each:
        return ()
    try:
        indices = array.indices if selection.element is None else (selection.element,)
        return tuple(record.command_of(index) for index in indices)
    except RecordUnreadable as error:
        hint = "submit the file of commands again: `serried submit --commands FILE`"
        raise UsageError(error.message, hint=hint) from error
