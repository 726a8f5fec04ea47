"""What `--after RUN:ok` and `after = "prepare"` mean: a run that is there, and those of its jobs that are waited for.

The scheduler is only told to start a job after any end of those. Whether that was the end of the run, and a good one,
is checked by the job itself (agent/attempts/dependency.py): to a scheduler, a job that continues elsewhere has failed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from serried import schedulers
from serried.errors import RunNotFoundError, SubmissionUncertain, UsageError
from serried.plan import After, Plan
from serried.protocol import names
from serried.protocol.successor_commands import job_of, part_of
from serried.records import index
from serried.records.index import Selection
from serried.records.record import Record, RecordUnreadable
from serried.records.run_status import RunStatus
from serried.records.status import statuses_of
from serried.records.verdict import SUBMITTING, UNCERTAIN
from serried.submission.reconcile import find_out

MOST_JOBS = 20
"""Of an array that goes on in jobs of its own for each task: behind these it looks again."""


@dataclass(frozen=True)
class Followed:
    after: After
    jobs: tuple[str, ...] = ()
    """What its scheduler is to wait for; none where it has ended already."""
    notes: tuple[str, ...] = ()


def split(text: str) -> tuple[str, str]:
    """`prepare:any` is the run or experiment `prepare`, and how it is to end. Raises UsageError."""
    word, colon, condition = text.rpartition(":")
    if not colon or condition not in names.AFTER_CONDITIONS:
        word, condition = text, names.AFTER_OK
    if not word.strip():
        raise UsageError(f"`{text}` names no run to come after", hint="RUN, `last`, `RUN:any` or `RUN:notok`")
    return word, condition


def run(text: str, plan: Plan) -> Followed:
    """The run, or the task of one, that `--after TEXT` means for `plan`.

    Raises UsageError where there is none, where it has ended and not as it was to, or where it is on another cluster.
    """
    word, condition = split(text)
    try:
        selection = index.find(word)
    except RunNotFoundError as error:
        if ":" in word:
            error.hint = "how it is to end is `:ok`, `:any` or `:notok`"
        raise
    hint = f"`--after {word}:any` begins after any end, and without `--after` it begins by itself"
    return _follow(selection, condition, plan, hint)


def experiment(text: str, plan: Plan) -> Followed:
    """The same for `after = TEXT` in the file: the newest run of that experiment in the project."""
    word, condition = split(text)
    both = f"`serried submit {word} {plan.experiment}` submits both"
    if word == plan.experiment:
        both = "the first one waits for nothing: `--set 'after=[]'`"
    found = max(_runs_of(word, plan), key=index.made_at, default=None)
    if found is None:
        raise UsageError(f"`{plan.experiment}` comes after `{word}`, which has not run yet", hint=both)
    return _follow(Selection(found), condition, plan, both)


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
        element=selection.element,
    )
    notes = (selection.note,) if selection.note else ()
    if not record.where.path.is_dir():
        notes = (*notes, f"the run directory of `{record.id}` ({after.name}), `{{after}}`, is gone: {after.directory}")
    if status.has_ended and status.verdict.stale is None:
        if not holds(condition, status.state):
            raise UsageError(f"run `{selection}` ({after.name}) has ended {status.state}", hint=hint)
        return Followed(after, (), notes)
    return Followed(_open(after, status, plan), _jobs(selection), notes)


def holds(condition: str, state: str) -> bool:
    """Whether a run that has ended in `state` has ended as it was to."""
    return condition == names.AFTER_ANY or (state == names.COMPLETED) == (condition == names.AFTER_OK)


def _open(after: After, status: RunStatus, plan: Plan) -> After:
    """With the job by which its first is known. Raises UsageError where it cannot be waited for."""
    first = next((one for one in status.record.first_submissions if one.job), None)
    if status.state in (SUBMITTING, UNCERTAIN) or first is None or first.job is None:
        raise SubmissionUncertain(
            f"it is not known yet whether the scheduler has run `{status.id}`", hint=f"serried why {status.id}"
        )
    other = status.record.plan
    check_pair(other, plan)
    return After(after.run, after.name, after.directory, after.condition, after.element, first.job)


def check_pair(other: Plan, plan: Plan) -> None:
    """Raises UsageError where a job of `plan` cannot wait for one of `other`."""
    if (other.site.name, other.site.scheduler) != (plan.site.name, plan.site.scheduler):
        raise UsageError(
            f"`{other.name}` is on `{other.site.name}` and `{plan.name}` on `{plan.site.name}`: "
            "no scheduler knows of another's jobs",
            hint=f"serried wait {other.run} && serried submit …",
        )
    if (
        plan.has_links
        and plan.limit.form == names.PREQUEUED
        and other.has_links
        and other.limit.form == names.SUCCESSOR
    ):
        raise UsageError(
            f"`{other.name}` goes on in jobs that are submitted one by one, and the jobs of `{plan.name}` would all be "
            "queued now: none of them could wait for its last",
            hint="give both the same `continue` in `[limit]`",
        )


def _jobs(selection: Selection) -> tuple[str, ...]:
    """Its newest jobs that have not ended."""
    record = selection.record
    submitted = [one for one in record.submissions_of(selection.element) if one.state == "submitted" and one.job]
    if not submitted:
        return ()
    last = submitted[-1].jobs
    if selection.element is None:
        own = [str(links[-1].job) for element, links in record.links().items() if element is not None and links[-1].job]
        ids = [*dict.fromkeys([*(submitted[0].jobs if own else ()), *own, *last])]
    else:
        part = part_of(record.offsets, selection.element) if len(last) > 1 else 0
        ids = [record.job_of(last[part], selection.element)]
    known = schedulers.get(submitted[0].scheduler).poll(ids)
    open_ = [(number, element) for (number, element), job in known.items() if job.state not in names.ENDED]
    spelling = schedulers.traits(submitted[0].scheduler).dialect.element
    live = {name for number, index in open_ for name in (number, job_of(number, index, spelling))}
    return tuple(each for each in ids if each in live)[: max(MOST_JOBS, len(submitted[0].jobs))]
