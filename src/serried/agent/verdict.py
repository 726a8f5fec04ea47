"""Evidence in, exit.json out. Pure: whatever is known about an attempt when it is over, and what that means.

The evidence is the head's journal, and the nodes' own where the head's misses them because it was killed.
"""

from __future__ import annotations

import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

from serried.agent import diagnose
from serried.contract import SCHEMA, names

Event = Dict[str, Any]
Exit = Dict[str, Any]

LAUNCH_FAILED_CODE = 70
NODE_FAIL_CODE = 71
TIMEOUT_CODE = 124
KILLED_CODE = 137
TERMINATED_CODE = 143

LAUNCHER_ENDED = "the launcher ended"
"""Why the head gives up agents that it does not hear of any more."""

ASKED = (names.STOP_CANCEL, names.STOP_USER)
"""Reasons after which nothing continues."""
SAVING = (names.STOP_LIMIT, names.STOP_PREEMPT)
"""Reasons after which ranks that saved may continue in another attempt."""


class Evidence(NamedTuple):
    run: str
    element: Optional[int]
    attempt: int
    job: str
    host: str
    """Where the head agent ran."""
    world_size: int
    started: float
    ended: float
    head: Sequence[Event]
    nodes: Dict[int, Sequence[Event]]
    """Journals of the nodes of which the head's journal does not tell the end."""
    has_checkpoint: bool
    """Something in the checkpoints directory is newer than the attempt."""
    may_continue: bool
    """The restart budget and the site allow another attempt."""


class Verdict(NamedTuple):
    state: str
    exit_code: int
    cause: Optional[str]
    message: str


def exits(evidence: Evidence) -> List[Exit]:
    """How every rank that is known to have ended did, each with its node and host."""
    found = [
        {**exit_, "node": event["node"], "host": event["host"]}
        for event in evidence.head
        if event["event"] == "node-ended"
        for exit_ in event["exits"]
    ]
    told = {exit_["rank"] for exit_ in found}
    hosts = _hosts(evidence)
    found += [
        {**event, "node": node, "host": hosts.get(node, evidence.host)}
        for node, events in evidence.nodes.items()
        for event in events
        if event["event"] == "rank-exit" and event["rank"] not in told
    ]
    told = {exit_["rank"] for exit_ in found}
    found += [
        {**event["exit"], "node": event["node"], "host": event["host"]}
        for event in evidence.head
        if event["event"] == "rank-failed" and event["exit"]["rank"] not in told
    ]
    return found


def first_failure(evidence: Evidence) -> Optional[Exit]:
    """The rank that failed first by itself, on its node's clock since the ranks began.

    85 after a request to save is no failure if something was saved.
    """
    was_asked = any(_is_stop(event, SAVING) or event.get("save") for event in evidence.head)
    saved = was_asked and evidence.has_checkpoint
    failures = [
        exit_
        for exit_ in exits(evidence)
        if not exit_["ended_by_us"]
        and (exit_["exit_code"] or exit_["signal"])
        and not (saved and exit_["exit_code"] == names.EXIT_SAVED)
    ]
    return min(failures, key=lambda exit_: exit_["seconds"], default=None)


def judge(evidence: Evidence, failure: Optional[Exit], tail: List[str]) -> Verdict:
    """What the evidence comes to. Nothing but every rank's own 0 is COMPLETED."""
    reason = _first_reason(evidence)
    asked = next((event["reason"] for event in evidence.head if _is_stop(event, ASKED)), None)
    rules: Sequence[Tuple[bool, Callable[[], Verdict]]] = (
        (not _has_started(evidence), lambda: _of_launch(evidence, reason)),
        (reason not in (*ASKED, "lost", "silence") and failure is not None, lambda: _of_failure(failure or {}, tail)),
        (_has(evidence, "orphaned"), lambda: _of_orphan(evidence)),
        (asked is not None and reason not in ("lost", "silence"), lambda: _of_request(evidence, str(asked))),
        (reason == "lost", lambda: _of_loss(evidence)),
        (reason == "silence", lambda: _of_silence(evidence)),
        (reason in SAVING, lambda: _of_saving(evidence, str(reason))),
        (True, lambda: _of_peace(evidence)),
    )
    return next(conclude() for holds, conclude in rules if holds)


def document(evidence: Evidence, failure: Optional[Exit], tail: List[str], verdict: Verdict) -> Dict[str, Any]:
    """exit.json."""
    first = None
    if failure and verdict.state != names.COMPLETED:
        keys = ("rank", "node", "host", "local_rank", "exit_code", "signal", "seconds")
        first = {**{key: failure[key] for key in keys}, "tail": tail}
    return {
        "schema": SCHEMA,
        "run": evidence.run,
        "element": evidence.element,
        "attempt": evidence.attempt,
        "job": evidence.job,
        "state": verdict.state,
        "exit_code": verdict.exit_code,
        "cause": verdict.cause,
        "message": verdict.message,
        "first_failure": first,
        "started": _iso(evidence.started),
        "ended": _iso(evidence.ended),
        "seconds": round(evidence.ended - evidence.started, 1),
        "nodes": [host for _, host in sorted(_hosts(evidence).items())] or [evidence.host],
        "world_size": evidence.world_size,
    }


def finalise(exit_json: Dict[str, Any], reason: str) -> Dict[str, Any]:
    """How it ended in the light of what only job.sh knows: it was cancelled, or could not be run again (`limit`)."""
    cancelled = {
        "state": names.CANCELLED,
        "exit_code": TERMINATED_CODE,
        "cause": names.STOP_CANCEL,
        "message": "cancelled",
    }
    left_alone = {
        "state": names.TIMEOUT,
        "exit_code": TIMEOUT_CODE,
        "message": "the ranks have saved, but the scheduler did not take the job back",
    }
    if reason == names.STOP_CANCEL and exit_json["state"] in (names.REQUEUED, names.LAUNCH_FAILED):
        return {**exit_json, **cancelled}
    if reason == names.STOP_LIMIT and exit_json["state"] == names.REQUEUED:
        return {**exit_json, **left_alone}
    return exit_json


def word(exit_json: Dict[str, Any]) -> str:
    """What job.sh has to do."""
    if exit_json["state"] == names.COMPLETED:
        return "done"
    if exit_json["state"] == names.REQUEUED:
        return "requeue"
    return f"fail {exit_json['exit_code']}"


def _of_launch(evidence: Evidence, reason: Optional[str]) -> Verdict:
    if reason in ASKED:
        return Verdict(names.CANCELLED, TERMINATED_CODE, reason, "cancelled before the ranks started")
    if reason == names.STOP_LIMIT:
        return Verdict(names.TIMEOUT, TIMEOUT_CODE, reason, "the time limit came before the ranks started")
    said = [event["message"] for event in evidence.head if event["event"] == "launch-failed"]
    message = said[0] if said else f"the head agent on {evidence.host} ended before the ranks started"
    return Verdict(names.LAUNCH_FAILED, LAUNCH_FAILED_CODE, "launch", message)


def _of_failure(failure: Exit, tail: List[str]) -> Verdict:
    number = failure["signal"]
    code = 128 + number if number else failure["exit_code"]
    cause = diagnose.cause(failure, tail)
    state = names.OUT_OF_MEMORY if failure.get("oom") else names.FAILED
    who = f"rank {failure['rank']} on {failure['host']}"
    if failure.get("problem"):
        return Verdict(state, code, cause, f"{who}: {failure['message']}")
    how = f"was killed by signal {number}" if number else f"exited with status {code}"
    why = {"out-of-memory": ": out of memory", "import-error": ": an import failed"}.get(cause, "")
    return Verdict(state, code, cause, f"{who} {how}{why}")


def _of_orphan(evidence: Evidence) -> Verdict:
    return Verdict(names.FAILED, KILLED_CODE, "job-script-killed", f"job.sh on {evidence.host} was killed")


def _of_request(evidence: Evidence, reason: str) -> Verdict:
    by = next((e["because"] for e in evidence.head if e["event"] == "stopping" and e["reason"] == reason), "")
    how = f"stopped by {by}" if reason == names.STOP_USER and by else "cancelled"
    if evidence.has_checkpoint and any(exit_["exit_code"] == names.EXIT_SAVED for exit_ in exits(evidence)):
        how += "; the ranks have saved"
    return Verdict(names.CANCELLED, TERMINATED_CODE, reason, how)


def _of_loss(evidence: Evidence) -> Verdict:
    """An agent that was killed takes the launcher with it; a node that is gone leaves it waiting."""
    lost = [event for event in evidence.head if event["event"] == "node-lost"]
    where = ", ".join(event["host"] for event in lost) or evidence.host
    order = [event["event"] for event in evidence.head]
    launcher_left = "launcher-exit" in order and "ending-launcher" not in order
    said = " ".join(line for event in evidence.head if event["event"] == "launcher-exit" for line in event["said"])
    is_node = any("scheduler" in event["because"] for event in lost) or "node fail" in said.lower()
    if lost and all(event["because"] == LAUNCHER_ENDED for event in lost) and not is_node:
        return Verdict(names.FAILED, KILLED_CODE, "agent-killed", "the launcher ended while ranks still ran")
    if lost and launcher_left and not is_node:
        return Verdict(names.FAILED, KILLED_CODE, "agent-killed", f"the agent on {where} was killed")
    return Verdict(names.NODE_FAIL, NODE_FAIL_CODE, "node-lost", f"node {where} was lost")


def _of_silence(evidence: Evidence) -> Verdict:
    ranks = next(event["because"] for event in evidence.head if event["event"] == "stopping")
    few = "rank" if "," not in ranks else "ranks"
    return Verdict(names.FAILED, 1, "silence", f"no output from any rank for too long; {few} {ranks} still ran")


def _of_saving(evidence: Evidence, reason: str) -> Verdict:
    known = exits(evidence)
    was_ended = len(known) < evidence.world_size or any(exit_["ended_by_us"] for exit_ in known)
    state, code = (names.TIMEOUT, TIMEOUT_CODE) if reason == names.STOP_LIMIT else (names.PREEMPTED, TERMINATED_CODE)
    what = "the time limit came" if reason == names.STOP_LIMIT else "preempted"
    if was_ended:
        return Verdict(state, code, reason, f"{what} and the ranks had not ended by themselves")
    if not any(exit_["exit_code"] == names.EXIT_SAVED for exit_ in known):
        return Verdict(names.COMPLETED, 0, None, "every rank exited with status 0")
    if evidence.may_continue:
        return Verdict(names.REQUEUED, names.EXIT_SAVED, reason, f"{what}; the ranks have saved and will continue")
    return Verdict(state, code, reason, f"{what}; the ranks have saved, and no further attempt is allowed")


def _of_peace(evidence: Evidence) -> Verdict:
    """Nobody asked it to stop and no rank is known to have failed."""
    known = exits(evidence)
    if len(known) < evidence.world_size or any(exit_["ended_by_us"] for exit_ in known):
        return Verdict(names.FAILED, KILLED_CODE, "agent-killed", f"the head agent on {evidence.host} was killed")
    left = [
        (event["host"], event["left"]) for event in evidence.head if event["event"] == "node-ended" and event["left"]
    ]
    if left:
        host, commands = left[0]
        what = ", ".join(f"`{command}`" for command in commands[:3])
        return Verdict(
            names.FAILED, 1, "left-running", f"every rank exited with status 0, but on {host} {what} still ran"
        )
    return Verdict(names.COMPLETED, 0, None, "every rank exited with status 0")


def _first_reason(evidence: Evidence) -> Optional[str]:
    return next((str(event["reason"]) for event in evidence.head if event["event"] == "stopping"), None)


def _is_stop(event: Event, reasons: Sequence[str]) -> bool:
    return event["event"] == "stopping" and event["reason"] in reasons


def _has_started(evidence: Evidence) -> bool:
    return _has(evidence, "started") or any(
        event["event"] == "started" for events in evidence.nodes.values() for event in events
    )


def _has(evidence: Evidence, event: str) -> bool:
    return any(entry["event"] == event for entry in evidence.head)


def _hosts(evidence: Evidence) -> Dict[int, str]:
    return {event["node"]: event["host"] for event in evidence.head if event["event"] == "connected"}


def _iso(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
