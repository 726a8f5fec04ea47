"""The status of runs: files first, then one query to each scheduler for all runs whose end the files do not prove.

Waiting reads files each second, and queries the scheduler less and less often while nothing changes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from serried import schedulers
from serried.base.errors import RunNotFoundError, SchedulerUnreachable, UsageError
from serried.base.files import MODES
from serried.base.text import seconds_of
from serried.records import run_status, verdict
from serried.records.evidence import (
    Answer,
    Evidence,
    Seen,
    before_the_scheduler,
    claimed_at,
    current_job,
    gather,
    latest_attempt,
    proven_end,
    write_seen,
)
from serried.records.index import Selection
from serried.records.record import Record, RecordUnreadable, Submission, read_exit
from serried.records.run_status import RunStatus
from serried.records.verdict import (
    ABSENT,
    MISSING_SECONDS,
    UNCERTAIN,
    UNREACHABLE,
    Ending,
    EndingKind,
    Observations,
    Verdict,
    judge,
)
from serried.schedulers.interface import Job, Scheduler
from serried.schema import names
from serried.schema.reasons import NEVER_STARTS, OF_DEPENDENCIES, Reason

_DELETED = "what it waits for was deleted"
_OF_ANOTHER_NAME = (
    "the scheduler that answers here has a job of another name under its id: it was submitted to another cluster"
)
_FILES_SECONDS = 1.0
_FIRST_SECONDS, _LONGEST_SECONDS, _GROWTH = 2.0, 30.0, 1.5

SchedulerFor = Callable[[str], Scheduler]
Observer = Callable[[Sequence[RunStatus]], None]
Jobs = Mapping[int | None, Job | None]
"""The current job of each task whose end the files do not prove, None for one that the scheduler does not list."""


def statuses(
    records: Iterable[Record], scheduler_for: SchedulerFor | None = None, *, now: float | None = None
) -> list[RunStatus]:
    """The status of each run, in the order given. Ends that are certain are written into the records."""
    moment, scheduler_of = time.time() if now is None else now, scheduler_for or registered
    looks = [_look(record, moment) for record in records]
    open_ = [look for look in looks if isinstance(look, Evidence)]
    answers = _poll([look for look in open_ if not _went_elsewhere(look)], scheduler_of)
    strangers = _of_another_cluster(open_, answers, scheduler_of)
    return [
        look if isinstance(look, RunStatus) else _conclude(look, answers, strangers, scheduler_of, now=moment)
        for look in looks
    ]


def statuses_of(selections: Sequence[Selection], scheduler_for: SchedulerFor | None = None) -> list[RunStatus]:
    """The status of each selected run or task, with one query for all."""
    wholes = statuses([selection.record for selection in selections], scheduler_for)
    return [
        whole if selection.task is None else task_of(whole, selection.task)
        for selection, whole in zip(selections, wholes, strict=True)
    ]


def status(record: Record, task: int | None = None, scheduler_for: SchedulerFor | None = None) -> RunStatus:
    """The status of one run, or of one task of an array."""
    return statuses_of([Selection(record, task)], scheduler_for)[0]


def registered(name: str) -> Scheduler:
    """The scheduler of that name. Its module is loaded on demand."""
    scheduler: Scheduler = schedulers.get(name)
    return scheduler


def _look(record: Record, now: float) -> RunStatus | Evidence:
    try:
        return run_status.read_end(record) if record.end is not None else gather(record, now)
    except RecordUnreadable as error:
        return RunStatus(record, None, Verdict(names.UNKNOWN, cause=Reason.UNREADABLE, message=error.message))


def _poll(open_: Sequence[Evidence], scheduler_of: SchedulerFor) -> dict[str, Answer | None]:
    """By scheduler; None for one that does not answer."""
    questions: dict[str, list[str]] = {}
    oldest: dict[str, float] = {}
    for evidence in open_:
        ids, submission = evidence.questions, evidence.submission
        if ids and submission is not None:
            questions.setdefault(submission.scheduler, []).extend(ids)
            at = seconds_of(submission.at) or 0.0
            oldest[submission.scheduler] = min(oldest.get(submission.scheduler, at), at)
    answers: dict[str, Answer | None] = {}
    for name, ids in questions.items():
        answers[name] = None
        with contextlib.suppress(SchedulerUnreachable, UsageError):
            answers[name] = scheduler_of(name).poll(ids, oldest[name] or None)
    return answers


def _conclude(
    evidence: Evidence,
    answers: Mapping[str, Answer | None],
    strangers: Collection[str],
    scheduler_of: SchedulerFor,
    *,
    now: float,
    polled: frozenset[str] = frozenset(),
) -> RunStatus:
    """The status of a run by its evidence and its scheduler's answer.

    If the scheduler reports an end that the files do not show, the files are read again: they were read before, and
    the end may lie between. Further jobs that the files name by then are looked up as well. `polled` are the ids of
    the looks before this one.
    """
    ended = before_the_scheduler(evidence, now)
    if ended is not None:
        return run_status.keep_end(RunStatus(evidence.record, evidence.summary, ended), evidence, now)
    answer = answers.get(evidence.submission.scheduler) if evidence.submission else None
    elsewhere = _elsewhere(evidence, strangers)
    jobs = None if elsewhere or answer is None else _current_jobs(evidence, evidence.own(answer), now)
    is_behind = any(job is None or job.state in names.ENDED for job in (jobs or {}).values())
    if is_behind and not polled.issuperset(evidence.questions):
        polled |= set(evidence.questions)
        look = _look(evidence.record, now)
        if isinstance(look, RunStatus):
            return look
        if not polled.issuperset(look.questions):
            answers = {**answers, **_poll([look], scheduler_of)}
        return _conclude(look, answers, strangers, scheduler_of, now=now, polled=polled)
    found = (_array if evidence.indices else _single)(evidence, jobs, now)
    if elsewhere:
        stated = found.verdict if found.has_ended else dataclasses.replace(found.verdict, message=elsewhere)
        found = dataclasses.replace(found, verdict=stated, is_elsewhere=True)
    return run_status.keep_end(found, evidence, now)


def _current_jobs(evidence: Evidence, answer: Answer, now: float) -> Jobs:
    jobs = {}
    for task in evidence.open_tasks:
        job = current_job(evidence.jobs(task), evidence.worker_of(task), answer, evidence.seen.job(task), now)
        jobs[task] = job if job is None or job.task == task else dataclasses.replace(job, task=task)
    return jobs


def _elsewhere(evidence: Evidence, strangers: Collection[str]) -> str:
    """Why the scheduler that answers here does not have the run; empty if it may have it."""
    if _went_elsewhere(evidence) and evidence.submission:
        return f"it was submitted to `{evidence.submission.site}`, and another scheduler answers here"
    return _OF_ANOTHER_NAME if evidence.record.id in strangers else ""


def _went_elsewhere(evidence: Evidence) -> bool:
    return evidence.submission is not None and is_elsewhere(evidence.submission)


def is_elsewhere(submission: Submission) -> bool:
    """Whether it went to a scheduler with another name than the one here: its ids mean nothing here."""
    here = _site_here(submission.scheduler) if submission.site else ""
    return bool(here) and here != submission.site


@functools.cache
def _site_here(scheduler: str) -> str:
    """Queried once for all open runs, because a controller that is down costs a timeout each time."""
    from serried.schedulers.survey import GLANCE_SECONDS  # only for jobs that a scheduler may still have

    return schedulers.cluster(scheduler).own_name(os.environ, seconds=GLANCE_SECONDS)


def _of_another_cluster(
    open_: Sequence[Evidence], answers: Mapping[str, Answer | None], scheduler_of: SchedulerFor
) -> set[str]:
    """Runs whose job ids belong here to jobs with other names: that of a job contains its run, or is its script's.

    Two clusters that share a home, or a lab after a lab, give out the same ids.
    """
    strangers = set()
    for name, answer in answers.items():
        if answer is None:
            continue
        split = scheduler_of(name).split
        names_of: dict[str, list[str]] = {}
        for (number, _), job in answer.items():
            names_of.setdefault(number, []).append(job.name)
        for evidence in open_:
            if evidence.submission is not None and evidence.submission.scheduler == name:
                run = evidence.record.id
                numbers = {split(job)[0] for job in evidence.questions}
                others = {other for number in numbers for other in names_of.get(number, ()) if other}
                if any(run not in other for other in others):
                    script = evidence.record.plan.script
                    if script is None or not script.is_singleton or others != {script.job_name}:
                        strangers.add(run)
    return strangers


def _single(evidence: Evidence, jobs: Jobs | None, now: float) -> RunStatus:
    memory, word = evidence.seen, _word(jobs, None)
    found = _judge(evidence, None, word, now)
    missing: dict[int | None, float] = {None: memory.missing.get(None, now)} if found.missing else {}
    last_jobs = (word,) if isinstance(word, Job) else memory.jobs
    write_seen(evidence.record, memory, Seen(memory.at if jobs is None else now, last_jobs, missing))
    if found.state == names.RUNNING and not found.message and evidence.summary.stages and evidence.attempt:
        from serried.records.timeline import staging_progress  # only while data is copied

        attempt = evidence.record.where.attempt(evidence.attempt)
        found = dataclasses.replace(found, message=staging_progress(attempt))
    last = evidence.document.get("job") or (evidence.submission.job if evidence.submission else None) or ""
    live = word if isinstance(word, Job) else Job(str(last), None, "")
    reason = live.reason if found.state == names.PENDING else ""
    return RunStatus(
        evidence.record,
        evidence.summary,
        _in_context(found, evidence, run_status.waits_because(evidence.summary, reason)),
        job=live.id or None,
        attempt=evidence.attempt,
        started=evidence.claimed,
        seconds=_seconds(evidence.document, evidence.claimed, found),
        reason=reason,
        starts=live.starts if found.state == names.PENDING else None,
        node_names=live.nodes or run_status.node_names(evidence.document),
        warnings=run_status.warnings(evidence.document) if found.has_ended else (),
    )


def _array(evidence: Evidence, jobs: Jobs | None, now: float) -> RunStatus:
    memory = evidence.seen
    verdicts = {
        index: Verdict(memory.ended[index], settled=True)
        if index in memory.ended
        else _judge(evidence, index, _word(jobs, index), now)
        for index in evidence.indices
    }
    if evidence.record.plan.draws:
        undrawn = [index for index in verdicts.keys() - memory.ended.keys() if evidence.is_undrawn(index)]
        verdicts.update({index: _of_undrawn(evidence, index, verdicts[index], now) for index in undrawn})
    ended = {index: found.state for index, found in verdicts.items() if found.settled}
    # The scheduler's present answers, and its earlier ones for tasks that it has forgotten since.
    last_jobs = {one.task: one for one in (*memory.jobs, *filter(None, (jobs or {}).values()))}
    last_jobs = {index: job for index, job in last_jobs.items() if index is not None and index not in ended}
    missing: dict[int | None, float] = {
        index: memory.missing.get(index, now) for index, found in verdicts.items() if found.missing
    }
    at = memory.at if jobs is None else now
    write_seen(evidence.record, memory, Seen(at, tuple(last_jobs.values()), missing, ended))
    current = {} if jobs is None else {index: job for index, job in last_jobs.items() if index is not None}
    waiting = next((job for job in current.values() if job.state == names.PENDING), None)
    return RunStatus(
        evidence.record,
        evidence.summary,
        verdict.of_array(verdicts),
        job=evidence.submission.job if evidence.submission else None,
        reason=waiting.reason if waiting else "",
        starts=waiting.starts if waiting else None,
        tasks=verdicts,
        jobs=current,
    )


def _of_undrawn(evidence: Evidence, trial: int, found: Verdict, now: float) -> Verdict:
    """The verdict on a trial that no job has drawn. Once its own job has ended, no other job may draw the trial."""
    from serried.schema import layout  # only where jobs draw trials

    record = evidence.record
    if evidence.owners.get(trial) != names.WITHDRAWN:
        if not found.has_ended:
            return found
        try:
            if not layout.withdraw(record.where, trial, MODES[record.plan.share].directory):
                return Verdict(names.RUNNING)  # a job has drawn it since its files were read
        except OSError:
            return dataclasses.replace(found, settled=False)
    if found.has_ended:
        return dataclasses.replace(found, settled=True)
    code = names.EXIT_CODES[names.CANCELLED]
    return Verdict(names.CANCELLED, code, Reason.USER, "stopped before it began", since=now, settled=True)


def _word(jobs: Jobs | None, task: int | None) -> Job | str:
    return UNREACHABLE if jobs is None else jobs.get(task) or ABSENT


def _judge(evidence: Evidence, task: int | None, word: Job | str, now: float) -> Verdict:
    """The verdict on the run itself (None), or on one task of an array."""
    memory, ending = evidence.seen, evidence.ending_of(task)
    proven = None
    if ending is None and (task is None or task in evidence.begun):
        proven = proven_end(evidence, task, word)
    claimed = evidence.claimed if task is None else _claimed(evidence, task, word)
    missing_since = memory.missing.get(task)
    found = judge(word, ending or proven, Observations(memory.job(task), memory.at, claimed, missing_since), now)
    if proven:  # exit.json, which says more, may still appear for a while
        is_late = missing_since is not None and now - missing_since > MISSING_SECONDS
        found = dataclasses.replace(found, settled=is_late, missing=True)
    return found


def _claimed(evidence: Evidence, index: int, word: Job | str) -> float | None:
    """When the latest attempt began. Read only if the state depends on it, because arrays are large."""
    is_alive = isinstance(word, Job) and word.state not in names.ENDED
    if is_alive or index not in evidence.begun or not evidence.is_open(index):
        return None
    attempt = latest_attempt(evidence.record.where.task(index))
    return None if attempt is None else claimed_at(attempt)


def _in_context(found: Verdict, evidence: Evidence, reason: Reason | None) -> Verdict:
    """Add what the table cannot know: the run comes after others, is between attempts, or has no run directory.

    `reason` is the code of the scheduler's reason for not starting it.
    """
    if found.message and not found.missing:
        return found
    message = ""
    if found.state == names.PENDING and not evidence.attempt and evidence.summary.after and reason in OF_DEPENDENCIES:
        never = f", and never starts: {_DELETED}" if reason is Reason.DEPENDENCY_NEVER_SATISFIED else ""
        message = f"comes after {', '.join(evidence.summary.after)}{never}"
    elif found.state == names.PENDING and evidence.attempt:
        message = f"waits for attempt {evidence.attempt + 1}"
    elif found.state == names.RUNNING and evidence.attempt is None:
        message = "starting"
    elif found.missing and not evidence.record.where.path.is_dir():
        message = f"{found.message}; its run directory is gone"
    return dataclasses.replace(found, message=message) if message else found


def _seconds(document: Mapping[str, Any], claimed: float | None, found: Verdict) -> float | None:
    if not found.has_ended:
        return None
    measured = document.get("seconds")
    if isinstance(measured, int | float):
        return float(measured)
    return max(found.since - claimed, 0.0) if found.since is not None and claimed is not None else None


def task_of(whole: RunStatus, index: int) -> RunStatus:
    """The status of one task of an array, with the facts of its own exit.json."""
    if whole.tasks is None or index not in whole.tasks:
        if whole.has_ended or whole.tasks is None:
            return RunStatus(whole.record, whole.summary, whole.verdict, task=index, job=whole.job_of(index))
        raise RunNotFoundError(f"run `{whole.record.id}` has no task {index}")
    found = whole.tasks[index]
    document = read_exit(whole.record.where.task(index).exit) or {}
    ending = Ending.parse(document)
    if ending is not None and ending.kind is not EndingKind.REQUEUED and ending.state == found.state:
        found = ending.verdict(settled=True)
    job = whole.jobs.get(index)
    attempts, started = document.get("attempts"), seconds_of(document.get("started"))
    return RunStatus(
        whole.record,
        whole.summary,
        found,
        task=index,
        job=whole.job_of(index),
        attempt=attempts if isinstance(attempts, int) else None,
        started=started,
        seconds=_seconds(document, started, found),
        reason=job.reason if job and found.state == names.PENDING else "",
        starts=job.starts if job else None,
        node_names=(job.nodes if job else ()) or run_status.node_names(document),
        warnings=run_status.warnings(document),
    )


def wait(
    selections: Sequence[Selection],
    *,
    timeout: float | None = None,
    observe: Observer | None = None,
    tick: Callable[[], None] = lambda: None,
) -> list[RunStatus]:
    """Return the statuses when each run has ended, never starts or is uncertain, or after `timeout` seconds.

    `observe` receives the statuses after each query; `tick` is called about once a second.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    pace = Pace()
    stuck: set[str] = set()
    while True:
        found = statuses_of(selections)
        if observe:
            observe(found)
        # It takes two looks to call a run stuck: between two queries a job may have ended.
        before_stuck, stuck = stuck, {status.id for status in found if never_starts(status)}
        over = [is_over(status) or status.id in stuck & before_stuck for status in found]
        open_ = [selection for selection, is_done in zip(selections, over, strict=True) if not is_done]
        if not open_ or (deadline is not None and time.monotonic() >= deadline):
            return found
        _watch_files(open_, time.monotonic() + pace.after(found), deadline, tick)


class Pace:
    """The seconds until the next query: more and more while nothing changes."""

    def __init__(self) -> None:
        self._seconds, self._before = _FIRST_SECONDS, ""

    def after(self, found: Iterable[RunStatus]) -> float:
        now = repr([(status.state, status.attempt, _count_ended(status)) for status in found])
        self._seconds = _FIRST_SECONDS if now != self._before else min(self._seconds * _GROWTH, _LONGEST_SECONDS)
        self._before = now
        return self._seconds


def is_over(status: RunStatus) -> bool:
    """Whether waiting longer is useless."""
    return (status.has_ended and status.verdict.stale is None) or status.state == UNCERTAIN


def never_starts(status: RunStatus) -> bool:
    """Whether its job can never start: it requests too much, or its dependency can never be satisfied."""
    return status.waits_because in NEVER_STARTS


def why_never(status: RunStatus) -> str:
    """Why a run never starts, as the end of a sentence."""
    if status.waits_because is Reason.DEPENDENCY_NEVER_SATISFIED:
        return _DELETED
    return status.scheduler_explanation


def _count_ended(status: RunStatus) -> int:
    return sum(found.has_ended for found in (status.tasks or {}).values())


def _watch_files(
    selections: Sequence[Selection], until: float, deadline: float | None, tick: Callable[[], None]
) -> None:
    """Sleep until `until`, or until a file shows the end of a selected run."""
    until = until if deadline is None else min(until, deadline)
    selections = [one for one in selections if not has_ended_by_file(one)]  # a preempted run has, and continues
    while (left := until - time.monotonic()) > 0:
        time.sleep(min(_FILES_SECONDS, left))
        tick()
        if any(has_ended_by_file(selection) for selection in selections):
            return


def has_ended_by_file(selection: Selection) -> bool:
    """Whether exit.json shows the end, by one file and no query. A whole array has no such file."""
    ending = Ending.parse(read_exit(selection.place.exit) or {})
    return ending is not None and ending.kind is not EndingKind.REQUEUED
