"""Revise exit.json by later knowledge of job.sh or of the scheduler. Pure."""

from __future__ import annotations

from typing import Optional

from serried.schema import names, successor_commands
from serried.schema.endings import Condition, End
from serried.schema.reasons import Reason

INTERRUPTED = frozenset({Reason.PREEMPT, Reason.NODE_LOST, Reason.AGENT_KILLED, Reason.JOB_SCRIPT_KILLED})
"""Causes outside the program, which got no stop notice. Another attempt follows without the program's request."""
RESTARTABLE = INTERRUPTED | {Reason.CANCEL}
"""Causes after which a scheduler may restart the same job by itself: its TERM is the same for all of them."""


def _revised(end: End, state: str, cause: Optional[str], message: str, *nodes: str) -> End:
    code = names.EXIT_CODES.get(state)
    return end._replace(state=state, exit_code=code, cause=cause, conditions=(Condition(cause, message, nodes),))


def _cancelled(end: End) -> End:
    return _revised(end, names.CANCELLED, Reason.CANCEL, "cancelled")


def _preempted(end: End) -> End:
    return _revised(end, names.PREEMPTED, Reason.PREEMPT, "preempted")


def stopped(end: End, by: str) -> End:
    """The end of an attempt that was to continue when a user's request to stop arrived."""
    saved = "" if end.saved_step is None else f"; saved at step {end.saved_step}"
    return _revised(end, names.CANCELLED, Reason.USER, f"stopped by {by or 'its user'}{saved}")


def finalise(end: End, reason: str) -> End:
    """The end by job.sh's knowledge: the job was cancelled, preempted, requeued, or could not be requeued (`limit`)."""
    if end.cause == Reason.REQUEUE:
        return end  # job.sh received TERM, but the scheduler reported the reason
    if reason == Reason.REQUEUE:
        again = _revised(end, names.REQUEUED, Reason.REQUEUE, "the job was requeued while its script ran")
        return again._replace(exit_code=names.EXIT_SAVED)
    if reason == Reason.CANCEL and end.state in (names.REQUEUED, names.LAUNCH_FAILED):
        return _cancelled(end)
    if reason == Reason.PREEMPT and end.cause == Reason.CANCEL:
        return _preempted(end)
    if reason == Reason.LIMIT and end.state == names.REQUEUED:
        return _revised(end, names.TIMEOUT, end.cause, "the ranks saved, but the scheduler did not requeue the job")
    return end


def by_the_scheduler(end: End, word: Optional[str], *, is_unrecorded: bool) -> End:
    """The end by the scheduler's state of the job; "" and None mean that the state is unknown.

    `is_unrecorded`: every agent was killed before it could write the end, and `end` comes from the remaining evidence.
    If the scheduler does not know the state either, the attempt is lost: it may have been cancelled.
    """
    state = successor_commands.state_of(word)
    if state == names.CANCELLED:
        return _cancelled(end) if is_unrecorded else finalise(end, Reason.CANCEL)
    if state == names.PREEMPTED:
        return _preempted(end) if is_unrecorded else finalise(end, Reason.PREEMPT)
    if is_unrecorded and state == names.NODE_FAIL:
        host = end.nodes[0]
        return _revised(end, names.NODE_FAIL, Reason.NODE_LOST, f"node {host} was lost", host)
    if is_unrecorded and not word and end.cause in INTERRUPTED:
        return _revised(end, names.LOST, Reason.LOST, f"the end of job {end.job} is unknown, so no attempt may follow")
    return end


def on_full_disk(end: End) -> End:
    """The end of an attempt whose last files needed its reserve."""
    full = Condition(Reason.DISK_FULL, "the disk of the run was full")
    return end._replace(conditions=(*end.conditions, full))


def word(end: End, form: str) -> str:
    if end.state == names.COMPLETED:
        return "done"
    if end.state == names.REQUEUED:
        has_further_job = end.bad_nodes or end.cause in (Reason.REQUEUE, Reason.CHECK_FAILED)
        is_own = form == names.REQUEUE and not has_further_job
        return "requeue" if is_own else "next"
    return f"fail {end.exit_code}"
