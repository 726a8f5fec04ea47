"""Decide whether a run that depends on others may begin, by the ends that Serried recorded for them.

The scheduler only starts its job after theirs. A run that continues in further jobs has not ended with its first job.
Then the dependent run queues again behind the newest of those, and holds no nodes meanwhile.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Iterator, List, Optional, Sequence, Tuple

from serried.agent import notifications
from serried.agent.attempt import Attempt
from serried.agent.attempts import successor_jobs
from serried.agent.comms import job_environment
from serried.agent.outcome import reconcile
from serried.base import NamedTuple, files
from serried.base.text import iso
from serried.schema import layout, names, successor_commands
from serried.schema.endings import Condition, End
from serried.schema.layout import RunDirectory
from serried.schema.names import SubmissionState
from serried.schema.plan import After, Plan
from serried.schema.reasons import Reason

MISSING_SECONDS = 90.0
"""How long the recorded end of a finished job may take to appear: shared file systems show new files late."""
BETWEEN_SECONDS = 2.0
MOST_JOBS = 20
"""The number of an array's jobs to queue behind at once. The next job checks the rest."""
MOST_MOVES = 200
UNTELLING = ("", "COMPLETED")
"""The scheduler's states of an ended job that do not tell how its run ended: only exit.json does."""
AMBIGUOUS = (Reason.CANCEL, *sorted(reconcile.INTERRUPTED))
"""Causes after which the scheduler may have restarted the same job."""


def refusal(attempt: Attempt, token: str) -> Optional[str]:
    """Why the job of `token` may not begin, because it queued again or never may; None if it may begin."""
    if moved := has_moved(attempt, token):
        return moved
    open_jobs: List[str] = []
    for after in attempt.plan.after:
        if after.job is None:
            continue
        ended, jobs = _look(attempt, after)
        failed = [state for state in ended if state != names.COMPLETED]
        which = after.run if after.task is None else f"{after.run}/{after.task}"
        problem = None
        if after.condition == names.AFTER_OK and failed:
            problem = f"run {which} ended {failed[0]}; this run requires its success"
        elif after.condition == names.AFTER_NOTOK and not failed and not jobs:
            problem = f"run {which} has completed; this run requires its failure"
        if problem:
            _end(attempt, token, problem)
            return problem
        open_jobs += jobs
    return _move(attempt, token, open_jobs) if open_jobs else None


def has_moved(attempt: Attempt, token: str) -> Optional[str]:
    """The refusal of the job of `token` if it was too early and the run waits in another job."""
    return "this run is queued again" if was_moved(attempt, _following(attempt, token)) else None


def was_moved(attempt: Attempt, token: str) -> bool:
    """Whether the job of `token` exists because the job before it was too early."""
    return bool((files.read_json(attempt.run.link(token)) or {}).get("moved"))


def _look(attempt: Attempt, after: After) -> Tuple[List[str], List[str]]:
    """Wait until each run or task has ended or continues. The states of those that ended, and the jobs of others."""
    run = RunDirectory(Path(after.directory))
    ended: List[str] = []
    jobs: List[str] = []
    try:
        plan = Plan.from_json(files.read_json(run.plan) or {})
        indices, offsets = plan.array.indices if plan.array else (None,), plan.offsets
    except ValueError:  # the run directory was purged
        indices, offsets = (None,), ()
    of_array = indices if after.task is None else (after.task,)
    for task in of_array:
        if len(jobs) == MOST_JOBS:
            break
        state, job = _stand(attempt, run, after, _Task(task, offsets, attempt.plan.site.dialect.task))
        if state is not None:
            ended.append(state)
        elif job not in jobs:
            jobs.append(job)
    return ended, jobs


class _Task(NamedTuple):
    """A task of another run; `number` None is the run itself."""

    number: Optional[int]
    offsets: Sequence[int]
    """The offsets of its array's jobs, if there are several."""
    spelling: Sequence[str]
    """The scheduler's format for a task's job id; both runs use the same scheduler."""

    def job_of(self, job: str) -> str:
        if self.number is None:
            return job
        return successor_commands.job_of(
            job, self.number - successor_commands.offset_of(self.offsets, self.number), self.spelling
        )

    def its(self, entries: Sequence[str]) -> str:
        is_several = self.number is not None and len(entries) > 1
        return entries[successor_commands.part_of(self.offsets, self.number or 0) if is_several else 0]


def _stand(attempt: Attempt, run: RunDirectory, after: After, task: _Task) -> Tuple[Optional[str], str]:
    """The state in which it ended, or the job in which it continues."""
    deadline = time.monotonic() + MISSING_SECONDS
    while True:
        end = End.read_known(run.task(task.number).exit)
        state = end.state if end else ""
        if end and state and end.cause not in AMBIGUOUS:
            return state, ""
        worker = task if task.number is None else task._replace(number=layout.worker_of(run, task.number))
        numbered = [(1, worker.its(str(after.job).split(","))), *_links(run, None)]
        numbered += _links(run, task.number) if task.number is not None else []
        job = worker.job_of(max(numbered)[1])  # its last job so far
        word = successor_jobs.how_it_stands(attempt, job, successor_jobs.AWAY_SECONDS)
        if word is None or not successor_commands.is_ending(word):
            return None, job
        if successor_commands.has_ended(word):
            if state or word not in UNTELLING:
                return state or str(successor_commands.state_of(word)), ""
            if _never_began(run, str(after.run), task):
                return names.CANCELLED, ""
        if time.monotonic() > deadline:
            return state or names.LOST, ""
        time.sleep(BETWEEN_SECONDS)


def _never_began(run: RunDirectory, name: str, task: _Task) -> bool:
    """Whether it was stopped before its first attempt, which leaves a withdrawn claim and no exit.json."""
    numbers = {1, *(number for number, _ in _links(run, None))}
    for number in () if run.task(task.number).attempts.exists() else numbers:
        token = task.its(successor_commands.tokens_of(successor_commands.token_of(name, None, number), task.offsets))
        try:
            if run.claim(token).read_text(encoding="utf-8") == names.WITHDRAWN:
                return True
        except OSError:
            continue
    return False


def _links(run: RunDirectory, task: Optional[int]) -> Iterator[Tuple[int, str]]:
    try:
        links = os.listdir(run.links)  # noqa: PTH208 - names are enough
    except OSError:
        return
    for name in links:
        token = name[: -len(".json")]
        if name.endswith(".json") and successor_commands.task_of(token) == task:
            link = files.read_json(run.link(token)) or {}
            if link.get("state") == SubmissionState.SUBMITTED and link.get("job"):
                yield successor_commands.number_of(token), str(link["job"])


def _move(attempt: Attempt, token: str, jobs: List[str]) -> str:
    """Queue again behind `jobs`, or end the run if that fails. Returns the message."""
    following = _following(attempt, token)
    behind = ", ".join(jobs)
    problem: Optional[str] = "this run already has further jobs in the queue"
    if (
        not (attempt.plan.limit.continue_by == names.PREQUEUED and attempt.plan.limit.restarts)
        and successor_commands.number_of(following) <= MOST_MOVES
    ):
        problem = successor_jobs.submit(
            attempt,
            following,
            successor_commands.behind(jobs, attempt.plan.site.dialect.awaited),
            lambda: None,
            moved=True,
        )
    if problem is None:
        return f"the run before it continues in job {behind}, so this run is queued again"
    message = f"the run before it continues in job {behind}, and this run cannot be queued again: {problem}"
    _end(attempt, token, message)
    return message


def _following(attempt: Attempt, token: str) -> str:
    return successor_commands.token_of(attempt.plan.run, attempt.task, successor_commands.number_of(token) + 1)


def _end(attempt: Attempt, token: str, message: str) -> None:
    """Record that the run was cancelled before it began, and withdraw its further jobs."""
    end = End(
        run=attempt.plan.run,
        task=attempt.task,
        attempt=None,
        job=None,
        state=names.CANCELLED,
        exit_code=names.EXIT_CODES[names.CANCELLED],
        cause=Reason.AFTER,
        conditions=(Condition(Reason.AFTER, message),),
        ended=iso(time.time()),
        nodes=(os.uname().nodename,),
    )
    files.make_directory(attempt.directory.path, attempt.directory_mode)
    end.write(attempt.directory.exit, attempt.file_mode)
    job_environment.remove_stored(attempt)
    if attempt.plan.limit.continue_by != names.REQUEUE:
        successor_jobs.withdraw(attempt, token)
    notifications.notify_end(attempt, end, lingers=True)
