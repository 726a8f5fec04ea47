"""The attempts that a run, or an element, has had so far: which there are, whose they were, and where each began."""

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
            return Attempt(work.run, work.plan, work.element, number)
    return None


def check_readable(work: Attempt) -> None:
    """Raises OSError where attempts may be there that cannot be read now: the file system may be away."""
    work.run.plan.read_bytes()
    with contextlib.suppress(FileNotFoundError):
        for name in filter(str.isdecimal, os.listdir(work.directory.attempts)):  # noqa: PTH208 - names are enough
            with contextlib.suppress(FileNotFoundError):
                work.directory.attempt(int(name)).claim.read_bytes()


def last(work: Attempt) -> Optional[Attempt]:
    """The last attempt that lived to say whose it is; one that did not has never begun."""
    for number in reversed(files.numbers(work.directory.attempts)):
        found = Attempt(work.run, work.plan, work.element, number)
        if {"token", "job"} <= claim_of(found).keys():
            return found
    return None


def is_superseded(work: Attempt) -> bool:
    """Whether a later attempt has begun: the scheduler believes that this one is over."""
    return any(number > work.number for number in files.numbers(work.directory.attempts))


def claim_of(work: Attempt) -> Dict[str, Any]:
    """attempt.json."""
    return files.read_json(work.directory.attempt(work.number).claim) or {}


def where_it_began(claim: Dict[str, Any]) -> Position:
    """What `attempt.json` says of the checkpoints that the attempt found."""
    found = claim.get("position") or {}
    return Position(found.get("step"), int(found.get("newest", 0)))


def is_past_limit(work: Attempt) -> bool:
    """Whether the scheduler may be ending the attempt's job for its limit by now: what the head knew of it."""
    events = files.read_journal(work.directory.attempt(work.number).events)
    end = next((event.get("limit") for event in events if event["event"] == JournalEvent.CLAIMED), None)
    return end is not None and time.time() >= end
