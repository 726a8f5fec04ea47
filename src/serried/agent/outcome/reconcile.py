"""exit.json in the light of what is known only afterwards, by job.sh or by the scheduler. Pure."""

from __future__ import annotations

from typing import Any, Dict, Optional

from serried.agent.outcome.evidence import Obstacle
from serried.agent.outcome.verdict import BY_PROGRAM
from serried.protocol import names

End = Dict[str, Any]
"""An attempt's exit.json."""

INTERRUPTED = frozenset({"preempt", "node-lost", "agent-killed", "job-script-killed"})
"""Causes that are not the program's: it was not asked, so it need not have asked to go on."""

WERE_CANCELLED = ("CANCELLED", "REVOKED")
WERE_ON_A_LOST_NODE = ("NODE_FAIL", "BOOT_FAIL")


def _told(end: End, state: str, cause: Optional[str], message: str) -> End:
    return {**end, "state": state, "exit_code": names.EXIT_CODES.get(state), "cause": cause, "message": message}


def _cancelled(end: End) -> End:
    return _told(end, names.CANCELLED, names.STOP_CANCEL, "cancelled")


def _preempted(end: End) -> End:
    return _told(end, names.PREEMPTED, names.STOP_PREEMPT, "preempted")


def stopped(end: End, by: str) -> End:
    """How it ended after all: it was to continue, and then a user's request to stop was found."""
    step = end.get("saved_step")
    saved = "" if step is None else f"; saved at step {step}"
    return _told(end, names.CANCELLED, names.STOP_USER, f"stopped by {by or 'its user'}{saved}")


def finalise(end: End, reason: str) -> End:
    """How it ended by what job.sh knows: it was cancelled, or `preempt`ed, or could not be run again (`limit`)."""
    if end["cause"] == BY_PROGRAM:
        return end  # job.sh has heard TERM, but the scheduler has said why
    if reason == names.STOP_CANCEL and end["state"] in (names.REQUEUED, names.LAUNCH_FAILED):
        return _cancelled(end)
    if reason == names.STOP_PREEMPT and end["cause"] == names.STOP_CANCEL:
        return _preempted(end)
    if reason == names.STOP_LIMIT and end["state"] == names.REQUEUED:
        message = "the ranks have saved, but the scheduler did not take the job back"
        return _told(end, names.TIMEOUT, end["cause"], message)
    return end


def by_the_scheduler(end: End, word: Optional[str], *, is_unrecorded: bool) -> End:
    """How an attempt ended by the scheduler's word for its job; "" and None are no word.

    `is_unrecorded`: nobody lived to write the end, and `end` is what was found afterwards. Where the scheduler does not
    know it either the attempt is lost: it may have been cancelled.
    """
    if word in WERE_CANCELLED:
        return _cancelled(end) if is_unrecorded else finalise(end, names.STOP_CANCEL)
    if word == "PREEMPTED":
        return _preempted(end) if is_unrecorded else finalise(end, names.STOP_PREEMPT)
    if is_unrecorded and word in WERE_ON_A_LOST_NODE:
        return _told(end, names.NODE_FAIL, "node-lost", f"node {end['nodes'][0]} was lost")
    if is_unrecorded and not word and end["cause"] in INTERRUPTED:
        message = f"nothing says how job {end['job']} ended, so no attempt may follow it"
        return _told(end, names.LOST, "lost", message)
    return end


def may_go_on(end: End, form: str) -> bool:
    """Whether it was interrupted, so that another attempt may go on without the program's asking for it."""
    if end["state"] == names.REQUEUED or end["cause"] not in INTERRUPTED:
        return False
    return end["cause"] != "job-script-killed" or form != names.REQUEUE  # nobody is left to requeue it


def go_on(end: End, obstacle: Optional[Obstacle]) -> End:
    """An interrupted attempt's end, where another one goes on or `obstacle` keeps it from that."""
    if obstacle is None:
        message = f"{end['message']}; another attempt goes on"
        return {**end, "state": names.REQUEUED, "exit_code": names.EXIT_SAVED, "message": message}
    if obstacle.text in end["message"]:
        return end
    return {**end, "cause": obstacle.cause or end["cause"], "message": f"{end['message']}; {obstacle.text}"}


def word(end: End, form: str) -> str:
    """What job.sh has to do."""
    if end["state"] == names.COMPLETED:
        return "done"
    if end["state"] == names.REQUEUED:
        return "requeue" if form == names.REQUEUE and end["cause"] != BY_PROGRAM else "next"
    return f"fail {end['exit_code']}"
