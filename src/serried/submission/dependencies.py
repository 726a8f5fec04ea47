"""Runs that a run depends on: `--after RUN:ok`, and `after` of an experiment.

The scheduler only starts a job after any end of the jobs before. The job itself checks if the run has ended, and in
which state (agent/attempts): for a scheduler, a job that continues elsewhere has failed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from serried import schedulers
from serried.base.errors import RunNotFoundError, SubmissionUncertain, UsageError
from serried.records import index
from serried.records.index import Selection
from serried.records.record import Record, RecordUnreadable
from serried.records.status import statuses_of
from serried.records.verdict import SUBMITTING, UNCERTAIN
from serried.schema import names
from serried.schema.plan import After, Plan
from serried.schema.successor_commands import job_of, part_of
from serried.submission.reconcile import find_out

MOST_JOBS = 20
"""Jobs of an array whose tasks continue in separate jobs. A job that starts after these checks again."""


@dataclass(frozen=True)
class Followed:
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
        selection = index.find(word)
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
    newest = max(_runs_of(word, plan), key=index.planned_at, default=None)
    if newest is None:
        raise UsageError(f"`{plan.experiment}` depends on `{word}`, which has not run yet", hint=both)
    return _follow(Selection(newest), condition, plan, both)


def _runs_of(name: str, plan: Plan) -> Iterable[Record]:
    for record in index.records():
        try:
            summary = record.summary
        except RecordUnreadable:
            continue
        if (summary.project, summary.experiment) == (plan.project, name) and not (summary.smoke or summary.rehearsal):
            yield record


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
        notes = (
            *notes,
            f"the run directory of `{record.id}` ({after.name}), `{{after}}`, does not exist: {after.directory}",
        )
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
    if (
        plan.has_links
        and plan.limit.form == names.PREQUEUED
        and other.has_links
        and other.limit.form == names.SUCCESSOR
    ):
        raise UsageError(
            f"`{other.name}` continues in jobs that are submitted one by one, but all jobs of `{plan.name}` are queued "
            "at once: they cannot wait for its last job",
            hint="give both the same `continue` in `[limit]`",
        )


def _jobs(selection: Selection) -> tuple[str, ...]:
    """Its newest jobs that have not ended."""
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
