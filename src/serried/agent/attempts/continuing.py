"""Whether a run continues in another attempt. The one place that decides.

A run continues if its attempt was cut and nothing hinders it:

- **It was cut.** Its ranks saved after the stop notice and exited with status 85 (`names.EXIT_SAVED`), or with another
  status that obeys the notice (`names.OBEYED_STATUSES`): `outcome.verdict` then calls it REQUEUED. Or it was
  interrupted from outside, without a notice: `may_continue`.
- **Nothing hinders it:** an attempt is left (`limit.restarts`), a checkpoint is further than the one it began from, and
  there is a job for the next attempt: `obstacle`.

A request of the user to stop, or a cancelled job, is never continued: `finalize.reconsider` asks for that first.
`agent.attempts.claims` asks the same of the attempt before, when a job starts whose predecessor wrote no end.

A run whose nodes failed a check is submitted once more, if `limit.resubmit` is set: `without_nodes`. So is one whose
attempt ended because no round may use a node again, if an attempt is left.
"""

from __future__ import annotations

import contextlib
from typing import Optional

from serried.agent.attempt import Attempt
from serried.agent.attempts import history, successor_jobs
from serried.agent.outcome.evidence import NO_ATTEMPT_LEFT, Obstacle
from serried.agent.outcome.reconcile import INTERRUPTED
from serried.agent.outcome.verdict import CONTINUES
from serried.schema import names, successor_commands
from serried.schema.endings import Condition, End
from serried.schema.reasons import Reason


def may_continue(end: End, form: str) -> bool:
    """Whether it was interrupted, so that another attempt may follow without the program's request."""
    if end.state == names.REQUEUED or end.cause not in INTERRUPTED:
        return False
    return end.cause != Reason.JOB_SCRIPT_KILLED or form != names.REQUEUE  # nobody is left to requeue it


def continued(end: End, obstacle: Optional[Obstacle]) -> End:
    """The end of an interrupted attempt that another attempt continues, unless there is an `obstacle`."""
    if obstacle is None:
        conditions = (*end.conditions, Condition(Reason.CONTINUES, CONTINUES))
        return end._replace(state=names.REQUEUED, exit_code=names.EXIT_SAVED, conditions=conditions)
    if any(condition.code == obstacle.reason for condition in end.conditions):
        return end
    conditions = (*end.conditions, Condition(obstacle.reason, obstacle.message))
    return end._replace(cause=obstacle.cause(end.cause), conditions=conditions)


def obstacle(
    attempt: Attempt, reason: Optional[str], *, progressed: bool, next_is_here: bool = False
) -> Optional[Obstacle]:
    """The reason against another attempt: no attempts left, no progress, or no job. None allows it.

    `reason` is the reason of the stop. With `next_is_here` the calling job is the one that starts the next attempt.
    """
    is_requeued_by_site = next_is_here and attempt.is_script
    if attempt.number > attempt.plan.limit.restarts and not is_requeued_by_site:
        return NO_ATTEMPT_LEFT
    if not (progressed or attempt.saves_elsewhere):
        before = End.read(attempt.directory.attempt(attempt.number - 1).exit) if attempt.number > 1 else None
        if reason == Reason.LIMIT or (before is not None and before.progress is False):
            began = history.where_it_began(history.claim_of(attempt))
            where = "its beginning" if began.step is None else f"step {began.step}, where this attempt began"
            return Obstacle(Reason.NO_PROGRESS, f"no checkpoint is further than {where}")
    if attempt.plan.limit.continue_by == names.REQUEUE or next_is_here:
        return None
    absent = successor_jobs.missing(attempt, str(history.claim_of(attempt).get("token", "")))
    return Obstacle(Reason.NO_NEXT_JOB, absent) if absent else None


def can_exclude(attempt: Attempt) -> bool:
    """Whether an attempt may follow, in a job that excludes nodes."""
    if attempt.number > attempt.plan.limit.restarts:
        return False
    with contextlib.suppress(OSError, ValueError):
        commands = successor_commands.read(attempt.run.link_commands)
        return commands is not None and bool(commands.exclude)
    return False


def without_nodes(attempt: Attempt, end: End) -> End:
    """The end of an attempt with bad nodes, once the run's next job excludes them; else with the obstacle.

    After a failed check that happens once in a run: a second node that fails may mean that the check, or the network,
    is at fault.
    """
    is_checked = end.cause == Reason.CHECK_FAILED
    hosts = end.conditions[0].nodes if is_checked else end.bad_nodes
    earlier = (End.read(attempt.directory.attempt(number).exit) for number in range(1, attempt.number))
    hindrance = obstacle(attempt, end.cause, progressed=bool(end.progress), next_is_here=True)
    if not hosts:
        problem: Optional[str] = "no check names a node"
    elif not is_checked and hindrance:
        return continued(end, hindrance)
    elif is_checked and any(before is not None and before.cause == Reason.CHECK_FAILED for before in earlier):
        problem = "that has happened once"
    else:
        problem = successor_jobs.submit_without(attempt, history.claim_of(attempt), hosts)
    if problem:
        return continued(end, Obstacle(Reason.NO_NEXT_JOB, f"not submitted again: {problem}"))
    again = Condition(Reason.CONTINUES, f"submitted again without {', '.join(hosts)}", hosts)
    return end._replace(state=names.REQUEUED, exit_code=names.EXIT_SAVED, conditions=(*end.conditions, again))
