"""The attempts of a run or task so far, and the requests that users sent to them.

Each line of an attempt's control.jsonl is a request; the head alone reads them while the attempt runs.
`{"request": "stop", "reason": "user", "by": "ada@login1"}` ends the ranks: TERM, `limit.grace`, KILL. With
`"save": true` ranks receive the stop notice, as before the time limit; those that have not exited after
`limit.warn_before` are ended. With reason `limit` or `preempt` the run may continue in another attempt, with `user`
never. `{"request": "stacks", "id": "1763900000-3f9a", "ranks": [3]}` has the nodes write the stacks of their ranks.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import Any, Dict, List, Optional, Union

from serried.agent.attempt import Attempt
from serried.agent.outcome.checkpoint_progress import Position
from serried.base import NamedTuple, files
from serried.schema.events import JournalEvent, ToAttempt
from serried.schema.reasons import STOPS, Reason


def latest(attempt: Attempt, token: str, job: str) -> Optional[Attempt]:
    """The last attempt that `job` began under `token`."""
    for number in reversed(files.numbers(attempt.directory.attempts)):
        owner = files.read_json(attempt.directory.attempt(number).claim) or {}
        if (owner.get("job"), owner.get("token")) == (job, token):
            return Attempt(attempt.run, attempt.plan, attempt.task, number)
    return None


def check_readable(attempt: Attempt) -> None:
    """Raises OSError if attempts may exist that cannot be read now, as on an unreachable file system."""
    attempt.run.plan.read_bytes()
    with contextlib.suppress(FileNotFoundError):
        for name in filter(str.isdecimal, os.listdir(attempt.directory.attempts)):  # noqa: PTH208 - names are enough
            with contextlib.suppress(FileNotFoundError):
                attempt.directory.attempt(int(name)).claim.read_bytes()


def last(attempt: Attempt) -> Optional[Attempt]:
    """The last attempt with a complete attempt.json; an attempt without it never began."""
    for number in reversed(files.numbers(attempt.directory.attempts)):
        attempt = Attempt(attempt.run, attempt.plan, attempt.task, number)
        if {"token", "job"} <= claim_of(attempt).keys():
            return attempt
    return None


def is_superseded(attempt: Attempt) -> bool:
    """Whether a later attempt has begun: then the scheduler considers this one ended."""
    return any(number > attempt.number for number in files.numbers(attempt.directory.attempts))


def claim_of(attempt: Attempt) -> Dict[str, Any]:
    return files.read_json(attempt.files.claim) or {}


def where_it_began(claim: Dict[str, Any]) -> Position:
    """The position of the newest checkpoint when the attempt began, from attempt.json."""
    position = claim.get("position") or {}
    return Position(position.get("step"), int(position.get("newest", 0)))


def is_past_limit(attempt: Attempt) -> bool:
    """Whether the attempt's time limit has passed, by the limit that the head recorded."""
    events = files.read_journal(attempt.files.events)
    end = next((event.get("limit") for event in events if event["event"] == JournalEvent.CLAIMED), None)
    return end is not None and time.time() >= end


class StacksRequest(NamedTuple):
    id: str
    ranks: Optional[List[int]]
    """None for all."""


class Stop(NamedTuple):
    reason: Reason
    by: str
    """The user and host that sent the request."""
    may_save: bool


def outweighs(reason: Reason, before: Optional[Reason]) -> bool:
    """Whether a request to save takes precedence over an earlier stop for the reason `before`."""
    return before is None or (before in STOPS and STOPS.index(reason) > STOPS.index(before))


def stop_by_user(control: Path) -> Optional[Stop]:
    """A user's request to stop, even if no head received it: no attempt follows after that."""
    stops = (request for request in Requests(control).new() if isinstance(request, Stop))
    return next((stop for stop in stops if stop.reason in (Reason.USER, Reason.CANCEL)), None)


class Requests:
    def __init__(self, control: Path) -> None:
        self._control = control
        self._read = 0

    def new(self) -> List[Union[Stop, StacksRequest]]:
        """The requests since the last call. Opens the file each time, so that NFS asks the server."""
        requests = files.read_journal(self._control)
        new, self._read = requests[self._read :], len(requests)
        parsed: List[Union[Stop, StacksRequest]] = []
        for request in new:  # unknown ones are of a later Serried
            if request.get("request") == ToAttempt.STACKS:
                ranks = request.get("ranks")
                chosen = [rank for rank in ranks if isinstance(rank, int)] if isinstance(ranks, list) else None
                parsed.append(StacksRequest(str(request.get("id", "")), chosen))
            elif request.get("request") == ToAttempt.STOP:
                # An unknown reason counts as a user's, after which no attempt follows.
                reason = request.get("reason")
                known = Reason(reason) if reason in (*STOPS, Reason.PROFILED) else Reason.USER
                parsed.append(Stop(known, str(request.get("by", "")), request.get("save") is True))
        return parsed
