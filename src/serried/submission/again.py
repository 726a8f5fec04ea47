"""Runs that refer to earlier ones: `serried rerun`, `--resume` from a checkpoint, `--after` a run.

For a dependency, the scheduler only starts a job after any end of the jobs before. The job itself checks if the run has
ended, and in which state (agent/attempts): for a scheduler, a job that continues elsewhere has failed.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from serried import config, schedulers
from serried.base import NamedTuple
from serried.base.errors import RunNotFoundError, SchedulerUnreachable, SubmissionUncertain, UsageError
from serried.base.files import read_json
from serried.base.text import compress, counted, iso
from serried.config import job_script
from serried.records import index
from serried.records.index import Selection
from serried.records.record import Record, RecordUnreadable, new_id
from serried.records.status import SUBMITTING, UNCERTAIN, counts_text, status, statuses_of
from serried.schema import checkpoints, names
from serried.schema.endings import End
from serried.schema.layout import RunDirectory, in_tree_of, sent_tree
from serried.schema.names import COMPLETED
from serried.schema.plan import After, Array, Plan, Resume, Sweep, UserScript
from serried.schema.reasons import Reason
from serried.schema.successor_commands import job_of, part_of
from serried.submission import containers, data
from serried.submission.deliver import Observe, Prepared, assemble, silent
from serried.submission.environments import choose
from serried.submission.prepare import divide, job_environment, prepare, settle_search
from serried.submission.reconcile import find_out


class MoreTrials(NamedTuple):
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
    NO_TASK_FAILED if there are no `failed` tasks; SubmissionUncertain if the run itself may still begin.
    """
    record = selection.record
    old = _plan_of(record)
    _check_repeatable(record, old, is_added=added is not None)
    notes: tuple[str, ...] = ()
    if tasks is None and added is None:
        array, notes = _array(selection, old.array, failed=failed)
    else:
        array = old.array and old.array._replace(indices=tuple(added.trials if added else tasks or ()))
    trials, each = (tuple(added.trials.values()), ()) if added else _parameters_and_commands(record, array)
    origin = old.resume
    if origin and old.array and array and len(origin.checkpoints) > 1:
        paths = dict(zip(old.array.indices, origin.checkpoints))
        origin = origin._replace(checkpoints=tuple(paths[index] for index in array.indices))
    has_ended = failed is True or tasks is not None
    beginning = Beginning(origin, ()) if fresh or added else _newest(selection, array, origin, have_ended=has_ended)
    script, text, cautions = _script(record, is_new=new_code)
    script = script._replace(title=name) if script and name else script
    dialect = schedulers.traits(old.site.scheduler).dialect
    plan = old._replace(
        run=new_id(),
        name=name or old.name,
        created=iso(time.time()),
        command=each[0] if each else old.command,
        # The plan may be of a version whose agents needed less. In the user's own allocation its dialect is its own.
        site=old.site if old.site.inside else old.site._replace(dialect=dialect),
        array=array,
        sweep=added.sweep if added else old.sweep,
        script=script,
        resume=beginning.resume,
        rerun_of=None if added else str(selection),
        after=tuple(after._replace(job=None) for after in old.after),
    )
    warnings = [*beginning.warnings]
    if beginning.resume is not None and not fresh:
        end = (record.end if selection.task is None else None) or End.read_known(selection.place.exit)
        if end and end.state == COMPLETED:
            is_complete = f"run `{selection}` has completed, so little may be left to train"
            warnings.append(f"{is_complete}; `--fresh` begins from its start")
    warnings += _repeated(selection, array.indices) if array is not None and (failed or tasks) else ()
    warnings += cautions
    calls = b""  # the pickled function of the run, with the arguments of all its tasks
    with contextlib.suppress(OSError):
        calls = record.where.calls.read_bytes()
    if plan.source.snapshot and not new_code:
        prepared = _prepare_recorded(plan, record, environ, each, tuple(warnings))
        return prepared._replace(user_script=text, calls=calls, notes=notes, trials=trials)
    if not plan.source.snapshot:
        has_old_script = script is not None and not new_code
        what = "the old script, and other files as they are" if has_old_script else "the code as it is"
        warnings.append(f"run `{record.id}` ran in place, so the new run uses {what} now")
    project = in_tree_of(Path.cwd(), Path(plan.source.directory))
    plan = plan._replace(source=plan.source._replace(archive=None, directory=str(project)))
    if not project.is_dir():
        raise UsageError(f"the project's folder `{project}` does not exist")
    resolved = config.resolve(None, plan.command, {}, plan.site.name, project, environ)
    resolved = resolved._replace(warnings=tuple(warnings))
    prepared = prepare(plan, resolved, environ, each, trials=trials, observe=observe)
    return prepared._replace(user_script=text, calls=calls, notes=(*prepared.notes, *notes))


def _plan_of(record: Record) -> Plan:
    try:
        return record.plan
    except RecordUnreadable as error:
        raise UsageError(error.message, hint=error.hint) from None


def _check_repeatable(record: Record, plan: Plan, *, is_added: bool) -> None:
    if any(submission.is_open for submission in record.submissions) and record.end is None:
        hint = f"`serried wait {record.id}` finds out; `serried stop --forget {record.id}` gives it up before a rerun"
        raise SubmissionUncertain(f"the scheduler may have the job of run `{record.id}`: both would train", hint=hint)
    if plan.sweep and plan.sweep.service and not is_added:
        hint = f"`serried sweep add {plan.sweep.first} --count 1` requests a further one"
        raise UsageError("W&B gives each trial to one agent, so a trial cannot be repeated", hint=hint)


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
    if not wanted and any(it.stale is not None or it.cause == Reason.UNREACHABLE for it in tasks.values()):
        message = f"the scheduler does not answer, and no task of `{selection}` is known to have failed"
        raise SchedulerUnreachable(message)
    if not wanted:
        message = f"no task of `{selection}` has failed so far: {counts_text(tasks)}"
        hint = f"serried wait {selection}"
        if all(it.state == COMPLETED for it in tasks.values()):
            message, hint = f"all {len(tasks):,} tasks of `{selection}` are COMPLETED", "`--all` repeats them"
        raise UsageError(message, hint=hint, code=Reason.NO_TASK_FAILED)
    left_out = {index: it for index, it in tasks.items() if index not in wanted and it.state != COMPLETED}
    notes = (f"tasks of `{selection}` that have not ended are left out: {counts_text(left_out)}",) if left_out else ()
    return array._replace(indices=tuple(wanted)), notes


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
            message = f"the job script of run `{record.id}` does not exist any more: `{record.where.script}`"
            raise UsageError(message, hint=f"`--new-code` uses `{script.path}` as it is now") from None
    path = in_tree_of(Path.cwd(), Path(script.path))
    present = job_script.read(path, record.plan.site.scheduler, None)
    changed = "directives of the script have changed: a rerun keeps the old, and `serried submit` reads the new ones"
    cautions = () if present.options(frozenset(script.keys)) == script.options else (changed,)
    return script._replace(interpreter=present.interpreter, path=str(path)), present.text, cautions


def _prepare_recorded(
    plan: Plan, code: Record, environ: Mapping[str, str], each: Sequence[Sequence[str]], warnings: tuple[str, ...]
) -> Prepared:
    """`plan` with the `code` of an earlier run: its archive, links and paths. Raises UsageError."""
    if plan.source.archive is None or not Path(plan.source.archive).is_file():
        hint = "`--new-code` uses the project as it is now; the record has the commit and the diff of that run"
        raise UsageError(f"the code of run `{code.id}` does not exist any more: `{plan.source.archive}`", hint=hint)
    if plan.container:
        containers.check(plan.container)
    if plan.data:
        data.check(plan)
    check_links(code.id, plan)
    choose(plan.environment, environ)
    plan = settle_search(divide(plan), environ)
    return assemble(plan, job_environment(plan, environ), each, warnings)._replace(code_of=code)


def check_links(run: str, plan: Plan) -> None:
    """Raise UsageError if data that another machine sent has been deleted since."""
    tree = sent_tree(plan.source.directory)
    for path in plan.source.links if tree else ():
        if not os.path.lexists(Path(plan.source.directory, path)):
            hint = "`--new-code` sends it again, with the project as it is now"
            raise UsageError(f"`{path}` of run `{run}` is not on the cluster any more", hint=hint)


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
    paths = tuple(str(path) if path else other for path, other in zip(own, before))
    cautions = cautions_about(selection, folders, tasks, have_ended=have_ended)
    return Beginning(Resume(paths, str(selection)), tuple(cautions))


def _parameters_and_commands(
    record: Record, array: Array | None
) -> tuple[tuple[Mapping[str, Any], ...], tuple[tuple[str, ...], ...]]:
    """The parameters of each trial of a sweep, and the command of each task if they differ.

    Raises UsageError if they do not exist any more.
    """
    indices = array.indices if array else ()
    hint = "submit the sweep again"
    try:
        trials = tuple(record.parameters_of(index) for index in indices) if record.plan.sweep else ()
        hint = "submit the file of commands again: `serried submit --commands FILE`"
        return trials, tuple(record.command_of(index) for index in indices) if array and array.each else ()
    except RecordUnreadable as error:
        raise UsageError(error.message, hint=hint) from error


class Beginning(NamedTuple):
    resume: Resume | None
    warnings: tuple[str, ...]


def resume_from(word: str, array: Array | None, directory: Path) -> Beginning:
    """The checkpoints from which a run begins; `array` is the new run's.

    Raises UsageError if the run or path does not exist, or has no complete checkpoint for one of the tasks.
    """
    if not word.strip():
        raise UsageError("`--resume` needs a value", hint="RUN, `last`, or the path of a checkpoint")
    path = Path(os.path.abspath(directory / Path(word).expanduser()))  # noqa: PTH100 - links stay
    if word.startswith(("/", "./", "../", "~")) or word in (".", ".."):
        return _from_path(path)
    try:
        selection = index.find(word, own=directory)
    except RunNotFoundError as error:
        if os.path.lexists(path):
            return _from_path(path)
        none = error.message if word == names.LAST_RUN else f"`{word}` is neither a run nor a path in this folder"
        raise RunNotFoundError(none, hint=error.hint) from None
    return _from_run(selection, array)


def _from_run(selection: Selection, array: Array | None) -> Beginning:
    """The checkpoints of a run. Each task of an array resumes from the task with its number."""
    record = selection.record
    theirs = _plan_of(record).array
    record.check_directory("checkpoints")
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
    lacking = [task or 0 for task, path in zip(tasks, found) if path is None]
    if lacking and len(tasks) == 1:
        raise _nothing_in(folders[0], f"run `{selection}`", watch)
    if array is not None:
        _check_tasks(record, lacking, "has no complete checkpoint of", array)
    resume = Resume(tuple(str(path) for path in found if path is not None), str(selection))
    return Beginning(resume, tuple(cautions_about(selection, folders, tasks)))


def _from_path(path: Path) -> Beginning:
    """The path itself; in a run directory or a folder of known checkpoints, the newest complete one."""
    if not path.exists():
        raise UsageError(f"`{path}` does not exist", hint="RUN, `last`, or the path of a checkpoint")
    run, layout = RunDirectory(path), checkpoints.of_folder(path)
    folder, whose, watch = None, f"`{path}`", ()
    if run.plan.is_file():
        watch = ((read_json(run.plan) or {}).get("checkpoint") or {}).get("watch", ())
        folder, whose = run.checkpoints, f"the run in `{path}`"
    elif checkpoints.is_of_train(path) or (layout is None and any(checkpoints.recognised(path))):
        folder = path
    if folder is not None:
        newest = checkpoints.newest(folder, watch)
        if newest is None:
            raise _nothing_in(folder, whose, watch)
        return Beginning(Resume((str(newest),)), tuple(_torn([folder], watch)))
    is_torn_of_train = (path / checkpoints.REPLICATED).exists() and checkpoints.complete(path) is None
    if is_torn_of_train or (layout is not None and not checkpoints.is_complete(path)):
        hint = f"`--resume {path.parent}` takes the newest complete one"
        raise UsageError(f"the checkpoint `{path}` is incomplete", hint=hint)
    return Beginning(Resume((str(path),)), ())


def _check_tasks(record: Record, wrong: Iterable[int], what: str, array: Array) -> None:
    indices = sorted(wrong)
    if indices:
        left = [index for index in array.indices if index not in set(indices)]
        tasks = f"task {indices[0]}" if len(indices) == 1 else f"tasks {compress(indices)}"
        hint = f"`--array {compress(left)}` leaves them out" if left else f"`serried show {record.id}` shows the run"
        raise UsageError(f"run `{record.id}` {what} {tasks}", hint=hint)


def watch_patterns(record: Record) -> Sequence[str]:
    return record.plan.checkpoint.watch if record.plan.checkpoint else ()


def _nothing_in(folder: Path, whose: str, watch: Sequence[str]) -> UsageError:
    hint = f"checkpoints of the run belong in `{folder}`"
    if str(folder) in whose:
        hint = "name the path of a checkpoint"
    if torn := checkpoints.torn(folder, watch):
        hint = f"`{torn[-1]}` was not written completely"
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
    if not have_ended and any(End.read_known(record.where.task(each).exit) is None for each in tasks):
        yield (
            f"run `{selection}` may still be running and remove this checkpoint before the new run begins: "
            f"`serried stop {record.id}` first"
        )
    yield from _torn(folders, watch_patterns(record))


def _torn(folders: list[Path], watch: Sequence[str]) -> Iterator[str]:
    for folder in folders:
        for path in checkpoints.torn(folder, watch):
            yield f"skipping checkpoint `{path}`: it was not written completely"


MOST_JOBS = 20
"""Jobs of an array whose tasks continue in separate jobs. A job that starts after these checks again."""


class Followed(NamedTuple):
    after: After
    jobs: tuple[str, ...] = ()
    """Jobs that the scheduler waits for; none if the run has ended already."""
    notes: tuple[str, ...] = ()


def parse_dependency(text: str) -> tuple[str, str]:
    """`prepare:any` as the run or experiment `prepare` and the condition on its end. Raises UsageError."""
    word, colon, condition = text.rpartition(":")
    if not colon or condition not in names.AFTER_CONDITIONS:
        word, condition = text, names.AFTER_OK
    if not word.strip():
        raise UsageError(f"the dependency `{text}` names no run", hint="RUN, `last`, `RUN:any` or `RUN:notok`")
    return word, condition


def run_after(text: str, plan: Plan) -> Followed:
    """The run, or the task of a run, in `--after TEXT` for `plan`.

    Raises UsageError if it does not exist, has ended and missed the condition, or is on another cluster.
    """
    word, condition = parse_dependency(text)
    try:
        selection = index.find(word, own=Path(plan.source.directory))
    except RunNotFoundError as error:
        if ":" in word:
            error.hint = "the condition is `:ok`, `:any` or `:notok`"
        raise
    hint = f"`--after {word}:any` accepts any end; without `--after` the run does not wait"
    return _follow(selection, condition, plan, hint)


def newest_of(text: str, plan: Plan) -> Followed:
    """The newest run of the experiment in `after = TEXT` of the file, in the same project. Raises UsageError."""
    word, condition = parse_dependency(text)
    both = f"`serried submit {word} {plan.experiment}` submits both"
    if word == plan.experiment:
        both = "the first run waits for nothing: `--set 'after=[]'`"
    runs = []
    for record in index.records():
        with contextlib.suppress(RecordUnreadable):
            summary = record.summary
            is_trial = summary.smoke or summary.rehearsal
            if (summary.project, summary.experiment) == (plan.project, word) and not is_trial:
                runs.append(record)
    if not runs:
        raise UsageError(f"`{plan.experiment}` depends on `{word}`, which has not run yet", hint=both)
    return _follow(Selection(max(runs, key=index.planned_at)), condition, plan, both)


def _follow(selection: Selection, condition: str, plan: Plan, hint: str) -> Followed:
    record = selection.record
    find_out(record)
    status = statuses_of([selection])[0]
    after = After(
        run=record.id,
        name=status.summary.name if status.summary else record.id,
        directory=str(record.where.path),
        condition=condition,
        task=selection.task,
    )
    notes = (selection.note,) if selection.note else ()
    if not record.where.path.is_dir():
        missing = f"the run directory of `{record.id}` ({after.name}), `{{after}}`, does not exist: {after.directory}"
        notes = (*notes, missing)
    if status.has_ended and status.verdict.stale is None:
        if not holds(condition, status.state):
            raise UsageError(f"run `{selection}` ({after.name}) has ended {status.state}", hint=hint)
        return Followed(after, (), notes)
    if selection.task is not None and record.plan.draws:
        raise UsageError(
            f"no job can wait for trial `{selection}`: another job of the sweep may run it",
            hint=f"`--after {record.id}` waits for the whole sweep; or serried wait {selection} && serried submit …",
        )
    first = next((submission.job for submission in record.first_submissions if submission.job), None)
    if status.state in (SUBMITTING, UNCERTAIN) or first is None:
        raise SubmissionUncertain(f"the submission of run `{status.id}` is uncertain", hint=f"serried why {status.id}")
    check_pair(record.plan, plan)
    return Followed(after._replace(job=first), _jobs(selection), notes)


def holds(condition: str, state: str) -> bool:
    """Does a run that has ended in `state` meet the condition?"""
    return condition == names.AFTER_ANY or (state == names.COMPLETED) == (condition == names.AFTER_OK)


def check_pair(other: Plan, plan: Plan) -> None:
    """Raises UsageError if a job of `plan` cannot wait for a job of `other`."""
    if (other.site.name, other.site.scheduler) != (plan.site.name, plan.site.scheduler):
        raise UsageError(
            f"`{other.name}` is on `{other.site.name}` and `{plan.name}` on `{plan.site.name}`: "
            "a scheduler cannot wait for the jobs of another",
            hint=f"serried wait {other.run} && serried submit …",
        )
    own, its = plan.limit.continue_by, other.limit.continue_by
    if plan.has_links and other.has_links and (own, its) == (names.PREQUEUED, names.SUCCESSOR):
        raise UsageError(
            f"`{other.name}` continues in jobs that are submitted one by one, but all jobs of `{plan.name}` are queued "
            "at once: they cannot wait for its last job",
            hint="give both the same `continue` in `[limit]`",
        )


def _jobs(selection: Selection) -> tuple[str, ...]:
    record = selection.record
    submitted = [one for one in record.submissions_of(selection.task) if one.is_submitted and one.job]
    if not submitted:
        return ()
    last = submitted[-1].jobs
    if selection.task is None:
        own = [str(links[-1].job) for task, links in record.links().items() if task is not None and links[-1].job]
        ids = [*dict.fromkeys([*(submitted[0].jobs if own else ()), *own, *last])]
    else:
        part = part_of(record.offsets, selection.task) if len(last) > 1 else 0
        ids = [record.job_of(last[part], selection.task)]
    known = schedulers.get(submitted[0].scheduler).poll(ids)
    open_ = [(number, task) for (number, task), job in known.items() if job.state not in names.ENDED]
    spelling = schedulers.traits(submitted[0].scheduler).dialect.task
    live = {name for number, index in open_ for name in (number, job_of(number, index, spelling))}
    return tuple(each for each in ids if each in live)[: max(MOST_JOBS, len(submitted[0].jobs))]
