"""Evidence in, exit.json out. Pure: what is known about an attempt when it is over, and what that means."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

from serried.agent.outcome import diagnose, unconnected
from serried.agent.outcome.evidence import Evidence, Exit
from serried.agent.outcome.missing_outputs import missing, sentence
from serried.protocol import SCHEMA, names
from serried.protocol.times import iso

KILLED_CODE = 137
"""Of a run whose own agent or script was killed."""

LAUNCHER_ENDED = "the launcher ended"
"""Why the head gives up agents that it does not hear of any more."""

ASKED = (names.STOP_CANCEL, names.STOP_USER)
"""Reasons after which nothing continues."""
SAVING = (names.STOP_LIMIT, names.STOP_PREEMPT)
"""Reasons after which ranks that saved may continue in another attempt."""
MOST_SUSPECTS = 4
"""Ranks that are named as perhaps lost."""
BY_PROGRAM = "requeue"
"""The cause where the scheduler has the job back already, so that nobody has to ask for it."""


class Verdict(NamedTuple):
    state: str
    exit_code: int
    cause: Optional[str]
    message: str


def judge(evidence: Evidence, failure: Optional[Exit], tail: List[str]) -> Verdict:
    """What the evidence comes to. Nothing but every rank's own 0 is COMPLETED."""
    reason = next(iter(evidence.reasons), None)
    asked = next((reason for reason in evidence.reasons if reason in ASKED), None)
    rules: Sequence[Tuple[bool, Callable[[], Verdict]]] = (
        (not evidence.has_started, lambda: _of_launch(evidence, reason)),
        (evidence.were_all_well or evidence.were_well_though_lost, lambda: _of_peace(evidence)),
        (
            reason not in (*ASKED, "lost", "silence") and failure is not None,
            lambda: _of_failure(evidence, failure or {}, tail),
        ),
        (reason not in ASKED and evidence.has("orphaned"), lambda: _of_orphan(evidence)),
        (reason in SAVING and asked == names.STOP_CANCEL and evidence.was_requeued, lambda: _of_requeue(evidence)),
        (asked is not None and reason not in ("lost", "silence"), lambda: _of_request(evidence, str(asked))),
        (evidence.has("superseded"), lambda: _of_another(evidence)),
        (reason == "lost" or (reason == "failure" and evidence.has("node-lost")), lambda: _of_loss(evidence)),
        (reason == "silence", lambda: _of_silence(evidence)),
        (reason == "launcher", lambda: _of_launcher(evidence)),
        (reason in SAVING, lambda: _of_saving(evidence, str(reason))),
        (True, lambda: _of_peace(evidence)),
    )
    return next(conclude() for holds, conclude in rules if holds)


def document(evidence: Evidence, failure: Optional[Exit], tail: List[str], verdict: Verdict) -> Dict[str, Any]:
    """exit.json."""
    first, absent = None, missing(evidence)
    warned = [] if failure else unconnected.warnings(evidence)
    if failure and verdict.state != names.COMPLETED:
        keys = ("rank", "node", "host", "local_rank", "exit_code", "signal", "seconds")
        error = {"error": failure["error"]} if failure.get("error") else {}
        first = {**{key: failure[key] for key in keys}, **error, "tail": tail}
    return {
        "schema": SCHEMA,
        "run": evidence.run,
        "element": evidence.element,
        "attempt": evidence.attempt,
        "job": evidence.job,
        "state": verdict.state,
        "exit_code": verdict.exit_code,
        "cause": verdict.cause,
        "message": verdict.message + _unsaved(evidence) + sentence(absent),
        "first_failure": first,
        "saved_step": evidence.saved.step,
        "started": iso(evidence.started),
        "ended": iso(evidence.ended),
        "seconds": round(evidence.ended - evidence.started, 1),
        "nodes": [host for _, host in sorted(evidence.hosts.items())] or [evidence.host],
        "world_size": evidence.world_size,
        "progress": evidence.progressed,
        **({"missing": absent} if absent else {}),
        **({"warnings": warned} if warned else {}),
    }


def _ended(state: str, cause: Optional[str], message: str) -> Verdict:
    """Where no rank's own status says more than the state."""
    return Verdict(state, names.EXIT_CODES[state], cause, message)


def _of_launch(evidence: Evidence, reason: Optional[str]) -> Verdict:
    if reason in ASKED:
        return _ended(names.CANCELLED, reason, "cancelled before the ranks started")
    if reason == names.STOP_LIMIT:
        return _ended(names.TIMEOUT, reason, "the time limit came before the ranks started")
    said = [event["message"] for event in evidence.all("launch-failed")]
    if evidence.has("orphaned") and not said:
        message = f"job.sh on {evidence.host} was killed before the ranks started"
        return _ended(names.LAUNCH_FAILED, "job-script-killed", message)
    said += filter(None, (" / ".join(event["said"]) for event in evidence.all("launcher-exit")))
    absent = [", ".join(event["absent"]) for event in evidence.all("stopping") if event.get("absent")]
    said += [f"no agent answered from {hosts}" for hosts in absent]
    message = said[0] if said else f"the head agent on {evidence.host} ended before the ranks started"
    return _ended(names.LAUNCH_FAILED, "launch", message)


def _of_failure(evidence: Evidence, failure: Exit, tail: List[str]) -> Verdict:
    number = failure["signal"]
    code = 128 + number if number else failure["exit_code"]
    cause = diagnose.cause(failure, tail)
    state = names.OUT_OF_MEMORY if failure.get("oom") else names.FAILED
    who = f"rank {failure['rank']} on {failure['host']}"
    if failure.get("problem"):
        return Verdict(state, code, cause, f"{who}: {failure['message']}")
    how = f"was killed by signal {number}" if number else f"exited with status {code}"
    if cause == diagnose.PEER_LOST:
        return Verdict(state, code, cause, f"{who} {how}: it lost another rank{_lost(evidence)}")
    why = {"out-of-memory": ": out of memory", "import-error": ": an import failed"}.get(cause, "")
    return Verdict(state, code, cause, f"{who} {how}{why}")


def _lost(evidence: Evidence) -> str:
    """Which rank that may have been, where only few have not failed themselves; those that left by themselves first."""
    well = [exit_ for exit_ in evidence.exits if not (exit_["ended_by_us"] or exit_["exit_code"] or exit_["signal"])]
    suspects = well or [exit_ for exit_ in evidence.exits if exit_["ended_by_us"]]
    if not 0 < len(suspects) <= MOST_SUSPECTS:
        return ""
    numbers = ", ".join(str(exit_["rank"]) for exit_ in sorted(suspects, key=lambda exit_: int(exit_["rank"])))
    few = "rank" if len(suspects) == 1 else "ranks"
    return f"; {few} {numbers} {'had exited with status 0' if well else 'had not ended'}"


def _of_orphan(evidence: Evidence) -> Verdict:
    return Verdict(names.FAILED, KILLED_CODE, "job-script-killed", f"job.sh on {evidence.host} was killed")


def _of_request(evidence: Evidence, reason: str) -> Verdict:
    by = next((e["because"] for e in evidence.all("stopping") if e["reason"] == reason), "")
    how = f"stopped by {by}" if reason == names.STOP_USER and by else "cancelled"
    if evidence.have_saved:
        how += f"; saved{_at_step(evidence)}"
    elif any(request["reason"] == reason for request in evidence.requests):
        how += "; the ranks did not say that they have saved"
    return _ended(names.CANCELLED, reason, how)


def _of_requeue(evidence: Evidence) -> Verdict:
    """A program that was asked to save had its job run again by itself, as Lightning does. It counts as if we had."""
    what = "the time limit came, and the program had the scheduler run its job again"
    if evidence.obstacle is None:
        return Verdict(names.REQUEUED, names.EXIT_SAVED, BY_PROGRAM, what)
    cause = evidence.obstacle.cause or names.STOP_LIMIT
    return _ended(names.TIMEOUT, cause, f"{what}, but {evidence.obstacle.text}")


def _of_loss(evidence: Evidence) -> Verdict:
    """An agent that was killed takes the launcher with it; a node that is gone leaves it waiting."""
    lost = evidence.all("node-lost")
    where = ", ".join(event["host"] for event in lost) or evidence.host
    order = [event["event"] for event in evidence.head]
    launcher_left = "launcher-exit" in order and "ending-launcher" not in order
    said = " ".join(line for event in evidence.all("launcher-exit") for line in event["said"])
    is_node = any("scheduler" in event["because"] for event in lost) or "node fail" in said.lower()
    if lost and all(event["because"] == LAUNCHER_ENDED for event in lost) and not is_node:
        return Verdict(names.FAILED, KILLED_CODE, "agent-killed", "the launcher ended while ranks still ran")
    if lost and launcher_left and not is_node:
        if all(evidence.was_cut_off(event["node"]) for event in lost):
            return _ended(names.NODE_FAIL, "node-lost", f"the connection to the agent on {where} broke")
        return Verdict(names.FAILED, KILLED_CODE, "agent-killed", f"the agent on {where} was killed")
    return _ended(names.NODE_FAIL, "node-lost", f"node {where} was lost")


def _of_another(evidence: Evidence) -> Verdict:
    message = f"the scheduler has given up {evidence.host}, and a later attempt has begun"
    return _ended(names.NODE_FAIL, "node-lost", message)


def _of_silence(evidence: Evidence) -> Verdict:
    ranks = evidence.all("stopping")[0]["because"]
    few = "rank" if "," not in ranks else "ranks"
    return Verdict(names.FAILED, 1, "silence", f"no output from any rank for too long; {few} {ranks} still ran")


def _of_launcher(evidence: Evidence) -> Verdict:
    """What starts the ranks ended before them, or did not start them as it should."""
    failure = evidence.all("starter-failed")[0]
    return Verdict(names.FAILED, failure["status"], "launcher", failure["message"])


def _of_saving(evidence: Evidence, reason: str) -> Verdict:
    """Ranks were asked to save and leave. Only one that was not told by a signal has completed its work with a 0."""
    if evidence.are_all_well and evidence.notice is None:
        peace = _of_peace(evidence)
        return peace._replace(message=f"{peace.message}, after it was asked to save and leave ({reason})")
    state = names.TIMEOUT if reason == names.STOP_LIMIT else names.PREEMPTED
    what = "the time limit came" if reason == names.STOP_LIMIT else "preempted"
    told = f"{what}; {_how_ranks_left(evidence, reason)}"
    if not evidence.saved.is_newer:
        return _ended(state, reason, f"{told}, and nothing was saved to go on from")
    if evidence.obstacle is None:
        return Verdict(names.REQUEUED, names.EXIT_SAVED, reason, f"{told}, and will continue")
    return _ended(state, evidence.obstacle.cause or reason, f"{told}, and {evidence.obstacle.text}")


def _how_ranks_left(evidence: Evidence, reason: str) -> str:
    if evidence.have_saved:
        return f"the ranks have saved{_at_step(evidence)}"
    was_forced = any(event["reason"] == reason and not event.get("save") for event in evidence.all("stopping"))
    if evidence.are_all_well:
        return f"the ranks left with status 0 after the notice `{evidence.notice}`"
    if not evidence.are_all_ended and (was_forced or evidence.notice is None):
        return "the ranks had not ended by themselves"
    return "the ranks left as they were asked to"


def _at_step(evidence: Evidence) -> str:
    return "" if evidence.saved.step is None else f" at step {evidence.saved.step}"


def _unsaved(evidence: Evidence) -> str:
    """What a full disk or the like has kept from being saved: the program may have gone on in spite of it."""
    told = [event["unsaved"] for event in evidence.all("node-ended") if event.get("unsaved")]
    if not told:
        return ""
    count, problem = told[0]["count"], told[0]["problem"]
    return f"; {count} {'checkpoint' if count == 1 else 'checkpoints'} could not be saved: {problem}"


def _of_peace(evidence: Evidence) -> Verdict:
    """Nobody asked it to stop, or all had ended well by then."""
    if not evidence.are_all_ended:
        return Verdict(names.FAILED, KILLED_CODE, "agent-killed", f"the head agent on {evidence.host} was killed")
    left = [(event["host"], event["left"]) for event in evidence.all("node-ended") if event["left"]]
    if left:
        host, commands = left[0]
        what = ", ".join(f"`{command}`" for command in commands[:3])
        return Verdict(
            names.FAILED, 1, "left-running", f"every rank exited with status 0, but on {host} {what} still ran"
        )
    return Verdict(names.COMPLETED, 0, None, "every rank exited with status 0")
