"""exit.json in the light of what is known only afterwards, by job.sh or by the scheduler. Pure."""

from __future__ import annotations

from typing import Any, Dict, Optional

from serried.agent.outcome.evidence import Obstacle
from serried.agent.outcome.verdict import CONTINUES
from serried.protocol import job_states, names
from serried.protocol.reasons import Reason, condition, conditions, described, parse

End = Dict[str, Any]
"""An attempt's exit.json."""

INTERRUPTED = frozenset({Reason.PREEMPT, Reason.NODE_LOST, Reason.AGENT_KILLED, Reason.JOB_SCRIPT_KILLED})
"""Causes that are not the program's: it was not asked, so it need not have asked to go on."""


def _revised(end: End, state: str, cause: Optional[Reason], message: str, **facts: Any) -> End:
    code = names.EXIT_CODES.get(state)
    return {**end, "state": state, "exit_code": code, "cause": cause, **described([condition(cause, message, **facts)])}


def _cancelled(end: End) -> End:
    return _revised(end, names.CANCELLED, Reason.CANCEL, "cancelled")


def _preempted(end: End) -> End:
    return _revised(end, names.PREEMPTED, Reason.PREEMPT, "preempted")


def stopped(end: End, by: str) -> End:
    """How it ended after all: it was to continue, and then a user's request to stop was found."""
    step = end.get("saved_step")
    saved = "" if step is None else f"; saved at step {step}"
    return _revised(end, names.CANCELLED, Reason.USER, f"stopped by {by or 'its user'}{saved}")


def finalise(end: End, reason: str) -> End:
    """How it ended by what job.sh knows: it was cancelled, or `preempt`ed, or could not be run again (`limit`)."""
    if end["cause"] == Reason.REQUEUE:
        return end  # job.sh has heard TERM, but the scheduler has said why
    if reason == Reason.CANCEL and end["state"] in (names.REQUEUED, names.LAUNCH_FAILED):
        return _cancelled(end)
    if reason == Reason.PREEMPT and end["cause"] == Reason.CANCEL:
        return _preempted(end)
    if reason == Reason.LIMIT and end["state"] == names.REQUEUED:
        message = "the ranks saved, but the scheduler did not requeue the job"
        return _revised(end, names.TIMEOUT, parse(end["cause"]), message)
    return end


def by_the_scheduler(end: End, word: Optional[str], *, is_unrecorded: bool) -> End:
    """How an attempt ended by the scheduler's word for its job; "" and None are no word.

    `is_unrecorded`: nobody lived to write the end, and `end` is what was found afterwards. Where the scheduler does not
    know it either the attempt is lost: it may have been cancelled.
    """
    state = job_states.state_of(word)
    if state == names.CANCELLED:
        return _cancelled(end) if is_unrecorded else finalise(end, Reason.CANCEL)
    if state == names.PREEMPTED:
        return _preempted(end) if is_unrecorded else finalise(end, Reason.PREEMPT)
    if is_unrecorded and state == names.NODE_FAIL:
        host = end["nodes"][0]
        return _revised(end, names.NODE_FAIL, Reason.NODE_LOST, f"node {host} was lost", nodes=[host])
    if is_unrecorded and not word and end["cause"] in INTERRUPTED:
        message = f"the end of job {end['job']} is unknown, so no attempt may follow"
        return _revised(end, names.LOST, Reason.LOST, message)
    return end


def may_go_on(end: End, form: str) -> bool:
    """Whether it was interrupted, so that another attempt may go on without the program's asking for it."""
    if end["state"] == names.REQUEUED or end["cause"] not in INTERRUPTED:
        return False
    return end["cause"] != Reason.JOB_SCRIPT_KILLED or form != names.REQUEUE  # nobody is left to requeue it


def go_on(end: End, obstacle: Optional[Obstacle]) -> End:
    """An interrupted attempt's end, where another one goes on or `obstacle` keeps it from that."""
    stated = conditions(end)
    if obstacle is None:
        continued = {"state": names.REQUEUED, "exit_code": names.EXIT_SAVED}
        return {**end, **continued, **described([*stated, condition(Reason.CONTINUES, CONTINUES)])}
    if any(one["code"] == obstacle.reason for one in stated):
        return end
    return {
        **end,
        "cause": obstacle.cause(parse(end["cause"])),
        **described([*stated, condition(obstacle.reason, obstacle.message)]),
    }


def word(end: End, form: str) -> str:
    """What job.sh has to do."""
    if end["state"] == names.COMPLETED:
        return "done"
    if end["state"] == names.REQUEUED:
        return "requeue" if form == names.REQUEUE and end["cause"] != Reason.REQUEUE else "next"
    return f"fail {end['exit_code']}"
