"""How runs stand: files first, then one question to each scheduler for all runs that the files leave open."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from serried import schedulers
from serried.errors import RunNotFoundError, SchedulerUnreachable, UsageError
from serried.fs.files import read_json
from serried.protocol import names
from serried.protocol.reasons import Reason
from serried.protocol.times import seconds_of
from serried.records import arrays, final_status, proof, scheduler_memory
from serried.records.arrays import Answer
from serried.records.documents import RecordUnreadable, Submission
from serried.records.evidence import Evidence, before_the_scheduler, gather
from serried.records.record import Record
from serried.records.run_status import RunStatus
from serried.records.verdict import ABSENT, UNREACHABLE, Ending, Kind, Known, Verdict, judge
from serried.schedulers.interface import Job, Scheduler

_OF_ANOTHER_NAME = (
    "the scheduler that answers here has a job of another name under its id: it was submitted to another cluster"
)

SchedulerFor = Callable[[str], Scheduler]


def statuses(
    records: Iterable[Record], scheduler_for: SchedulerFor | None = None, *, now: float | None = None
) -> list[RunStatus]:
    """How each run stands, in the order given. What is certain for good is written into the record."""
    moment, ask = time.time() if now is None else now, scheduler_for or registered
    looks = [_look(record, moment) for record in records]
    open_ = [look for look in looks if isinstance(look, Evidence)]
    answers = _ask([look for look in open_ if not _went_elsewhere(look)], ask)
    strangers = _of_another_cluster(open_, answers)
    found = [
        (look, answers) if isinstance(look, RunStatus) else _caught_up(look, answers, ask, moment) for look in looks
    ]
    return [look if isinstance(look, RunStatus) else _conclude(look, of_it, strangers, moment) for look, of_it in found]


def status(record: Record, element: int | None = None, scheduler_for: SchedulerFor | None = None) -> RunStatus:
    """How one run, or one element of it, stands."""
    whole = statuses([record], scheduler_for)[0]
    return whole if element is None else element_of(whole, element)


def registered(name: str) -> Scheduler:
    """The scheduler of that name; its module is loaded now, not before."""
    scheduler: Scheduler = schedulers.get(name)
    return scheduler


def _look(record: Record, now: float) -> RunStatus | Evidence:
    try:
        return final_status.read(record) if record.end is not None else gather(record, now)
    except RecordUnreadable as error:
        return RunStatus(record, None, Verdict(names.UNKNOWN, cause=Reason.UNREADABLE, message=error.message))


def _ask(open_: Sequence[Evidence], scheduler_for: SchedulerFor) -> dict[str, Answer]:
    questions: dict[str, list[str]] = {}
    oldest: dict[str, float] = {}
    for evidence in open_:
        ids, submission = evidence.questions, evidence.submission
        if ids and submission is not None:
            questions.setdefault(submission.scheduler, []).extend(ids)
            at = seconds_of(submission.at) or 0.0
            oldest[submission.scheduler] = min(oldest.get(submission.scheduler, at), at)
    answers: dict[str, Answer] = {}
    for name, ids in questions.items():
        answers[name] = None
        with contextlib.suppress(SchedulerUnreachable, UsageError):
            answers[name] = scheduler_for(name).poll(ids, oldest[name] or None)
    return answers


def _caught_up(
    evidence: Evidence, answers: Mapping[str, Answer], scheduler_for: SchedulerFor, now: float
) -> tuple[RunStatus | Evidence, Mapping[str, Answer]]:
    """The evidence, looked at again where the scheduler speaks of an end and the files, read before, did not.

    It may have come between the two. Further jobs that the files tell of by then are asked about as well.
    """
    asked: set[str] = set()
    while _is_behind(evidence, answers, now):
        asked.update(evidence.questions)
        look = _look(evidence.record, now)
        if isinstance(look, RunStatus):
            return look, answers
        evidence = look
        if asked.issuperset(evidence.questions):
            break
        answers = {**answers, **_ask([evidence], scheduler_for)}
    return evidence, answers


def _is_behind(evidence: Evidence, answers: Mapping[str, Answer], now: float) -> bool:
    answer = answers.get(evidence.submission.scheduler) if evidence.submission else None
    if answer is None or not evidence.questions or _went_elsewhere(evidence):
        return False
    answer = evidence.own(answer)
    remembered = {job.element: job for job in evidence.seen.jobs}
    for element in evidence.open_elements:
        said = scheduler_memory.current(evidence.jobs(element), element, answer, remembered.get(element), now)
        if said is None or said.state in names.ENDED:
            return True
    return False


def _conclude(evidence: Evidence, answers: Mapping[str, Answer], strangers: Collection[str], now: float) -> RunStatus:
    verdict = before_the_scheduler(evidence, now)
    if verdict is not None:
        state = RunStatus(evidence.record, evidence.summary, verdict)
        return final_status.keep(state, evidence, now)
    answer = answers.get(evidence.submission.scheduler) if evidence.submission else None
    elsewhere = _elsewhere(evidence, strangers)
    stand = _array if evidence.indices else _single
    state = stand(evidence, None if elsewhere or answer is None else evidence.own(answer), now)
    if elsewhere:
        told = state.verdict if state.has_ended else dataclasses.replace(state.verdict, message=elsewhere)
        state = dataclasses.replace(state, verdict=told, is_elsewhere=True)
    return final_status.keep(state, evidence, now)


def _elsewhere(evidence: Evidence, strangers: Collection[str]) -> str:
    """Why the scheduler that answers here cannot speak of the run; empty where it can."""
    if _went_elsewhere(evidence) and evidence.submission:
        return f"it was submitted to `{evidence.submission.site}`, and another scheduler answers here"
    return _OF_ANOTHER_NAME if evidence.record.id in strangers else ""


def _went_elsewhere(evidence: Evidence) -> bool:
    return evidence.submission is not None and is_elsewhere(evidence.submission)


def is_elsewhere(submission: Submission) -> bool:
    """Whether it went to a scheduler that calls itself otherwise than the one here: ids there mean nothing here."""
    here = _site_here(submission.scheduler) if submission.site else ""
    return bool(here) and here != submission.site


@functools.cache
def _site_here(scheduler: str) -> str:
    """Asked once, however many runs are open: a controller that is away would be waited for each time."""
    from serried.schedulers.survey import GLANCE_SECONDS  # only for jobs that a scheduler may still have

    return schedulers.site(scheduler).own_name(os.environ, seconds=GLANCE_SECONDS)


def _of_another_cluster(open_: Sequence[Evidence], answers: Mapping[str, Answer]) -> set[str]:
    """Runs whose jobs' ids are here those of jobs with other names: the name of a job has its run in it.

    Two clusters that share a home, or a lab after a lab, give out the same ids.
    """
    askers: dict[tuple[str, str], list[str]] = {}
    for evidence in open_:
        if (submission := evidence.submission) is not None:
            for number in {job.partition("_")[0] for job in evidence.questions}:
                askers.setdefault((submission.scheduler, number), []).append(evidence.record.id)
    return {
        run
        for scheduler, answer in answers.items()
        for (number, _), job in (answer or {}).items()
        for run in askers.get((scheduler, number), ())
        if job.name and run not in job.name
    }


def _single(evidence: Evidence, answer: Answer, now: float) -> RunStatus:
    memory, job = evidence.seen, evidence.submission.job if evidence.submission else None
    remembered = memory.job(None)
    said = None if answer is None else scheduler_memory.current(evidence.jobs(None), None, answer, remembered, now)
    word: Job | str = UNREACHABLE if answer is None else said or ABSENT
    known = Known(remembered, memory.at, evidence.claimed, memory.missing.get(None))
    proven = None if evidence.ending else proof.of(evidence, None, word)
    verdict = judge(word, evidence.ending or proven, known, now)
    if proven:
        verdict = proof.with_patience(verdict, memory.missing.get(None, now), now)
    missing: dict[int | None, float] = {None: memory.missing.get(None, now)} if verdict.missing else {}
    jobs = (word,) if isinstance(word, Job) else memory.jobs
    _remember(evidence, scheduler_memory.Seen(memory.at if answer is None else now, jobs, missing))
    if verdict.state == names.RUNNING and not verdict.message and evidence.summary.stages and evidence.attempt:
        from serried.records import staging  # only while data is copied

        verdict = dataclasses.replace(
            verdict, message=staging.progress(evidence.record.where.attempt(evidence.attempt))
        )
    last = evidence.document.get("job") or job or ""
    live = word if isinstance(word, Job) else Job(str(last), None, "")
    return RunStatus(
        evidence.record,
        evidence.summary,
        arrays.in_context(verdict, evidence, live.reason),
        job=live.id or None,
        attempt=evidence.attempt,
        started=evidence.claimed,
        seconds=_seconds(evidence.document, evidence.claimed, verdict),
        reason=live.reason if verdict.state == names.PENDING else "",
        starts=live.starts if verdict.state == names.PENDING else None,
        node_names=live.nodes or final_status.node_names(evidence.document),
        warnings=final_status.warnings(evidence.document) if verdict.has_ended else (),
    )


def _array(evidence: Evidence, answer: Answer, now: float) -> RunStatus:
    job = evidence.submission.job if evidence.submission else None
    verdicts, memory = arrays.judge_elements(evidence, answer, now)
    _remember(evidence, memory)
    said: dict[int | None, Job] = {} if answer is None else {one.element: one for one in memory.jobs}
    waiting = next((one for one in said.values() if one.state == names.PENDING), None)
    return RunStatus(
        evidence.record,
        evidence.summary,
        arrays.whole(verdicts),
        job=job,
        reason=waiting.reason if waiting else "",
        starts=waiting.starts if waiting else None,
        elements=verdicts,
        jobs={index: one for index, one in said.items() if index is not None},
    )


def _remember(evidence: Evidence, memory: scheduler_memory.Seen) -> None:
    scheduler_memory.write(evidence.record, evidence.seen, memory)


def _seconds(document: Mapping[str, Any], claimed: float | None, verdict: Verdict) -> float | None:
    if not verdict.has_ended:
        return None
    measured = document.get("seconds")
    if isinstance(measured, int | float):
        return float(measured)
    return max(verdict.since - claimed, 0.0) if verdict.since is not None and claimed is not None else None


def element_of(whole: RunStatus, index: int) -> RunStatus:
    """One element's status out of its array's, with what its own exit.json adds."""
    if whole.elements is None or index not in whole.elements:
        if whole.has_ended or whole.elements is None:
            return RunStatus(whole.record, whole.summary, whole.verdict, element=index, job=whole.job_of(index))
        raise RunNotFoundError(f"run `{whole.record.id}` has no task {index}")
    verdict = whole.elements[index]
    document = read_json(whole.record.where.element(index).exit) or {}
    ending = Ending.parse(document)
    if ending is not None and ending.kind is not Kind.REQUEUED and ending.state == verdict.state:
        verdict = Verdict(
            ending.state,
            ending.exit_code,
            ending.cause,
            ending.message,
            ending.ended,
            settled=True,
            conditions=ending.conditions,
        )
    job = whole.jobs.get(index)
    attempts, started = document.get("attempts"), seconds_of(document.get("started"))
    return RunStatus(
        whole.record,
        whole.summary,
        verdict,
        element=index,
        job=whole.job_of(index),
        attempt=attempts if isinstance(attempts, int) else None,
        started=started,
        seconds=_seconds(document, started, verdict),
        reason=job.reason if job and verdict.state == names.PENDING else "",
        starts=job.starts if job else None,
        node_names=(job.nodes if job else ()) or final_status.node_names(document),
        warnings=final_status.warnings(document),
    )
