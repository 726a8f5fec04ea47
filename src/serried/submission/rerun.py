"""`serried rerun`: another run of a plan, of all its tasks or some, from their newest complete checkpoints."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from serried import config, schedulers
from serried.base.errors import SchedulerUnreachable, SerriedError, UsageError
from serried.base.text import compress, counted, iso
from serried.config import job_script
from serried.records import index
from serried.records.index import Selection
from serried.records.record import Record, RecordUnreadable, new_id, read_exit
from serried.records.status import status
from serried.records.verdict import Verdict, counts_text
from serried.schema import checkpoints
from serried.schema.names import COMPLETED
from serried.schema.plan import Array, Plan, Resume, Site, Sweep, UserScript
from serried.schema.reasons import Reason
from serried.submission import data, search
from serried.submission.builds import Observe, silent
from serried.submission.deliver import Prepared, assemble
from serried.submission.environments import containers
from serried.submission.environments.activation import choose
from serried.submission.prepare import divide, job_environment, prepare
from serried.submission.resume import Beginning, cautions_about, watch_patterns


class MoreTrials(NamedTuple):
    """Trials to add to a sweep."""

    sweep: Sweep
    """With the definition that gave them."""
    trials: Mapping[int, Mapping[str, Any]]
    """The parameters of each, by its number."""


def prepare_again(
    selection: Selection,
    environ: Mapping[str, str],
    *,
    failed: bool | None = None,
    tasks: Sequence[int] | None = None,
    added: MoreTrials | None = None,
    fresh: bool = False,
    new_code: bool = False,
    name: str | None = None,
    observe: Observe | None = silent,
) -> Prepared:
    """`serried rerun`: another run of a plan, by default with its code and from its newest complete checkpoint.

    Args:
        selection: the run, or one task of an array.
        environ: the submitting shell's environment, from which the job inherits as at any submit.
        failed: of an array of several tasks, which requires it: True for the tasks that ended without COMPLETED, False
            for all tasks.
        tasks: these tasks of the array, in place of `failed`.
        added: of a sweep, further trials in place of `tasks`.
        fresh: begin where that run began, not from its newest complete checkpoint.
        new_code: use the code as it is now, not the code of that run.
        name: the name of the new run; None for the old name.
        observe: as for `prepare`.

    Raises UsageError if the plan, the code or the commands of its tasks do not exist any more, and with code
    NO_TASK_FAILED if there are no `failed` tasks.
    """
    record = selection.record
    try:
        old = record.plan
    except RecordUnreadable as error:
        raise UsageError(error.message, hint=error.hint) from None
    if old.sweep and old.sweep.service and added is None:
        hint = f"`serried sweep add {old.sweep.first} --count 1` requests a further one"
        raise UsageError("W&B gives each trial to one agent, so a trial cannot be repeated", hint=hint)
    notes: tuple[str, ...] = ()
    if tasks is None and added is None:
        array, notes = _array(selection, old.array, failed=failed)
    else:
        array = old.array and old.array._replace(indices=tuple(added.trials if added else tasks or ()))
    trials = tuple(added.trials.values()) if added else _trials(record, array)
    each = _commands(record, array)
    origin = _origin(old, array)
    has_ended = failed is True or tasks is not None
    beginning = Beginning(origin, ()) if fresh or added else _newest(selection, array, origin, have_ended=has_ended)
    script, text, cautions = _script(record, is_new=new_code)
    script = script._replace(title=name) if script and name else script
    plan = old._replace(
        run=new_id(),
        name=name or old.name,
        created=iso(time.time()),
        command=each[0] if each else old.command,
        site=_present_dialect(old.site),
        array=array,
        sweep=added.sweep if added else old.sweep,
        script=script,
        resume=beginning.resume,
        rerun_of=None if added else str(selection),
        after=tuple(after._replace(job=None) for after in old.after),
    )
    completed = () if beginning.resume is None or fresh else _completed(selection)
    repeated = _repeated(selection, array.indices) if array is not None and (failed or tasks) else ()
    warnings = (*beginning.warnings, *completed, *repeated, *cautions)
    if plan.source.snapshot and not new_code:
        recorded = _prepare_recorded(plan, record, environ, each, warnings)
        return dataclasses.replace(recorded, user_script=text, calls=_calls(record), notes=notes, trials=trials)
    if not plan.source.snapshot:
        has_old_script = script is not None and not new_code
        what = "the old script, and other files as they are" if has_old_script else "the code as it is"
        warnings = (*warnings, f"run `{record.id}` ran in place, so the new run uses {what} now")
    plan = plan._replace(source=plan.source._replace(archive=None))
    project = Path(plan.source.directory)
    if not project.is_dir():
        raise UsageError(f"the project's folder `{project}` does not exist")
    resolved = config.resolve(None, plan.command, {}, plan.site.name, project, environ)
    resolved = dataclasses.replace(resolved, warnings=warnings)
    prepared = prepare(plan, resolved, environ, each, trials=trials, observe=observe)
    return dataclasses.replace(prepared, user_script=text, calls=_calls(record), notes=(*prepared.notes, *notes))


def _array(selection: Selection, array: Array | None, *, failed: bool | None) -> tuple[Array | None, tuple[str, ...]]:
    """The array of the new run, whose tasks keep their numbers, and notes."""
    if array is None or selection.task is not None:
        if failed is not None:
            what = "is not an array" if array is None else "is one task of an array"
            raise UsageError(f"`{selection}` {what}", hint="`--failed` and `--all` select tasks of an array")
        return array and array._replace(indices=(selection.task or 0,), parallel=None), ()
    number = len(array.indices)
    if failed is False or (failed is None and number == 1):
        return array, ()
    whole = status(selection.record)
    tasks = whole.tasks or dict.fromkeys(array.indices, whole.verdict)  # no tasks: it was never submitted
    wanted = [index for index, it in tasks.items() if it.has_failed]
    if failed is None:
        which = f"`--failed` repeats the {counted(len(wanted), 'task')} that did not complete, `--all` all {number:,}"
        hint = which if wanted else f"no task has failed; `--all` repeats all {number:,}"
        raise UsageError(f"run `{selection}` is an array: {counts_text(tasks)}", hint=hint)
    if not wanted:
        raise _nothing_failed(selection, tasks)
    left_out = {index: it for index, it in tasks.items() if index not in wanted and it.state != COMPLETED}
    notes = (f"tasks of `{selection}` that have not ended are left out: {counts_text(left_out)}",) if left_out else ()
    return array._replace(indices=tuple(wanted)), notes


def _nothing_failed(selection: Selection, tasks: Mapping[int, Verdict]) -> SerriedError:
    if any(it.stale is not None or it.cause == Reason.UNREACHABLE for it in tasks.values()):
        return SchedulerUnreachable(
            f"the scheduler does not answer, and no task of `{selection}` is known to have failed"
        )
    if all(it.state == COMPLETED for it in tasks.values()):
        hint = "`--all` repeats them"
        message = f"all {len(tasks):,} tasks of `{selection}` are COMPLETED"
    else:
        hint = f"serried wait {selection}"
        message = f"no task of `{selection}` has failed so far: {counts_text(tasks)}"
    return UsageError(message, hint=hint, code=Reason.NO_TASK_FAILED)


def _repeated(selection: Selection, tasks: Sequence[int]) -> Iterator[str]:
    """Warnings about other runs that repeat some of these tasks."""
    for record in index.records():
        with contextlib.suppress(RecordUnreadable):
            array = record.plan.array if record.summary.rerun_of == str(selection) else None
            if both := set(tasks).intersection(array.indices if array else ()):
                again = f"`serried rerun {record.id} --failed`"
                which = f"task{'s' if len(both) > 1 else ''} {compress(both)} of `{selection}`"
                yield f"run `{record.id}` repeats {which} already; for its failures: {again}"


def _script(record: Record, *, is_new: bool) -> tuple[UserScript | None, bytes, tuple[str, ...]]:
    """The job script of the new run, its text, and warnings. Raises UsageError if the text does not exist any more.

    Without `is_new` it is the copy of the old run. The options of the plan stay in both cases. The jobs that the old
    run waited for have ended.
    """
    script = record.plan.script
    if script is None:
        return None, b"", ()
    script = script._replace(dependency="singleton" if script.is_singleton else "")
    if not is_new:
        try:
            return script, record.where.script.read_bytes(), ()
        except OSError:
            raise UsageError(
                f"the job script of run `{record.id}` does not exist any more: `{record.where.script}`",
                hint=f"`--new-code` uses `{script.path}` as it is now",
            ) from None
    present = job_script.read(Path(script.path), record.plan.site.scheduler, None)
    cautions = () if present.options(frozenset(script.keys)) == script.options else (_CHANGED,)
    return script._replace(interpreter=present.interpreter), present.text, cautions


_CHANGED = "directives of the script have changed: a rerun keeps the old ones, and `serried submit` reads the new ones"


def _present_dialect(site: Site) -> Site:
    """With the dialect of today's scheduler: the plan may be of a version whose agents needed less.

    A run in the user's own allocation has a dialect of its own.
    """
    return site if site.inside else site._replace(dialect=schedulers.traits(site.scheduler).dialect)


def _prepare_recorded(
    plan: Plan, code: Record, environ: Mapping[str, str], each: Sequence[Sequence[str]], warnings: tuple[str, ...]
) -> Prepared:
    """`plan` with the `code` of an earlier run: its archive, links and paths. Raises UsageError."""
    if plan.source.archive is None or not Path(plan.source.archive).is_file():
        raise UsageError(
            f"the code of run `{code.id}` does not exist any more: `{plan.source.archive}`",
            hint="`--new-code` uses the project as it is now; the record has the commit and the diff of that run",
        )
    containers.check(plan)
    data.check(plan)
    choose(plan.environment, environ)
    plan = search.settle(divide(plan), environ)
    return dataclasses.replace(assemble(plan, job_environment(plan, environ), each, warnings), code_of=code)


def _newest(selection: Selection, array: Array | None, origin: Resume | None, *, have_ended: bool) -> Beginning:
    """The newest complete checkpoints of a run; those from which it began where it has none."""
    record = selection.record
    tasks = array.indices if array is not None else (selection.task,)
    folders = [record.where.task(task).checkpoints for task in tasks]
    watch = watch_patterns(record)
    own = [checkpoints.newest(folder, watch) for folder in folders]
    if not any(own):
        return Beginning(origin, ())
    before = origin.checkpoints if origin else ("",)
    before = before * len(own) if len(before) == 1 else before
    paths = tuple(str(path) if path else other for path, other in zip(own, before, strict=True))
    cautions = cautions_about(selection, folders, tasks, have_ended=have_ended)
    return Beginning(Resume(paths, str(selection)), tuple(cautions))


def _origin(old: Plan, array: Array | None) -> Resume | None:
    """The checkpoints from which the old run began, for the tasks of `array`."""
    if old.resume is None or old.array is None or array is None or len(old.resume.checkpoints) == 1:
        return old.resume
    paths = dict(zip(old.array.indices, old.resume.checkpoints, strict=True))
    return old.resume._replace(checkpoints=tuple(paths[index] for index in array.indices))


def _completed(selection: Selection) -> tuple[str, ...]:
    end = selection.record.end if selection.task is None else None
    if end is None:
        end = read_exit(selection.place.exit)
    if end is None or end.get("state") != COMPLETED:
        return ()
    return (f"run `{selection}` has completed, so little may be left to train; `--fresh` begins from its start",)


def _calls(record: Record) -> bytes:
    """The pickled function of a run, with the arguments of all its tasks; empty for other runs."""
    try:
        return record.where.calls.read_bytes()
    except OSError:
        return b""


def _trials(record: Record, array: Array | None) -> tuple[Mapping[str, Any], ...]:
    """The parameters of these trials of a sweep. Raises UsageError if they do not exist any more."""
    if record.plan.sweep is None or array is None:
        return ()
    try:
        return tuple(record.parameters_of(index) for index in array.indices)
    except RecordUnreadable as error:
        raise UsageError(error.message, hint="submit the sweep again") from error


def _commands(record: Record, array: Array | None) -> tuple[tuple[str, ...], ...]:
    """The command of each task of the new run; empty if all tasks have the same."""
    if array is None or not array.each:
        return ()
    try:
        return tuple(record.command_of(index) for index in array.indices)
    except RecordUnreadable as error:
        hint = "submit the file of commands again: `serried submit --commands FILE`"
        raise UsageError(error.message, hint=hint) from error
