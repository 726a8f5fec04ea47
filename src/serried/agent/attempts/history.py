"""The attempts of a run or task so far: their numbers, their jobs, and the step at which each began."""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any, Dict, Optional

from serried.agent.attempt import Attempt
from serried.agent.outcome.checkpoint_progress import Position
from serried.fs import files
from serried.protocol.events import JournalEvent


def latest(work: Attempt, token: str, job: str) -> Optional[Attempt]:
    """The last attempt that `job` began under `token`."""
    for number in reversed(files.numbers(work.directory.attempts)):
        owner = files.read_json(work.directory.attempt(number).claim) or {}
        if (owner.get("job"), owner.get("token")) == (job, token):
            return Attempt(work.run, work.plan, work.task, number)
    return None


def check_readable(work: Attempt) -> None:
    """Raises OSError if attempts may exist that cannot be read now, as on an unreachable file system."""
    work.run.plan.read_bytes()
    with contextlib.suppress(FileNotFoundError):
        for name in filter(str.isdecimal, os.listdir(work.directory.attempts)):  # noqa: PTH208 - names are enough
            with contextlib.suppress(FileNotFoundError):
                work.directory.attempt(int(name)).claim.read_bytes()


def last(work: Attempt) -> Optional[Attempt]:
    """The last attempt with a complete attempt.json; an attempt without it never began."""
    for number in reversed(files.numbers(work.directory.attempts)):
        attempt = Attempt(work.run, work.plan, work.task, number)
        if {"token", "job"} <= claim_of(attempt).keys():
            return attempt
    return None


def is_superseded(work: Attempt) -> bool:
    """Whether a later attempt has begun: then the scheduler considers this one ended."""
    return any(number > work.number for number in files.numbers(work.directory.attempts))


def claim_of(work: Attempt) -> Dict[str, Any]:
    """attempt.json."""
    return files.read_json(work.directory.attempt(work.number).claim) or {}


def where_it_began(claim: Dict[str, Any]) -> Position:
    """The position of the newest checkpoint when the attempt began, from attempt.json."""
    position = claim.get("position") or {}
    return Position(position.get("step"), int(position.get("newest", 0)))


def is_past_limit(work: Attempt) -> bool:
    """Whether the attempt's time limit has passed, by the limit that the head recorded."""
    events = files.read_journal(work.directory.attempt(work.number).events)
    end = next((event.get("limit") for event in events if event["event"] == JournalEvent.CLAIMED), None)
    return end is not None and time.time() >= end
