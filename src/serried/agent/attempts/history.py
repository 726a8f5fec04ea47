"""The attempts that a run, or an element, has had so far: which there are, whose they were, and where each began."""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any, Dict, Optional

from serried.agent.attempt import Work
from serried.agent.outcome.checkpoint_progress import Position
from serried.fs import files


def latest(work: Work, token: str, job: str) -> Optional[Work]:
    """The last attempt that `job` began under `token`."""
    for number in reversed(files.numbers(work.place.attempts)):
        owner = files.read_json(work.place.attempt(number).claim) or {}
        if (owner.get("job"), owner.get("token")) == (job, token):
            return Work(work.run, work.plan, work.element, number)
    return None


def check_readable(work: Work) -> None:
    """Raises OSError where attempts may be there that cannot be read now: the file system may be away."""
    work.run.plan.read_bytes()
    with contextlib.suppress(FileNotFoundError):
        for name in filter(str.isdecimal, os.listdir(work.place.attempts)):  # noqa: PTH208 - names are enough
            with contextlib.suppress(FileNotFoundError):
                work.place.attempt(int(name)).claim.read_bytes()


def last(work: Work) -> Optional[Work]:
    """The last attempt that lived to say whose it is; one that did not has never begun."""
    for number in reversed(files.numbers(work.place.attempts)):
        found = Work(work.run, work.plan, work.element, number)
        if {"token", "job"} <= claim_of(found).keys():
            return found
    return None


def is_superseded(work: Work) -> bool:
    """Whether a later attempt has begun: the scheduler believes that this one is over."""
    return any(number > work.number for number in files.numbers(work.place.attempts))


def claim_of(work: Work) -> Dict[str, Any]:
    """attempt.json."""
    return files.read_json(work.place.attempt(work.number).claim) or {}


def where_it_began(claim: Dict[str, Any]) -> Position:
    """What `attempt.json` says of the checkpoints that the attempt found."""
    found = claim.get("position") or {}
    return Position(found.get("step"), int(found.get("newest", 0)))


def is_past_limit(work: Work) -> bool:
    """Whether the scheduler may be ending the attempt's job for its limit by now: what the head knew of it."""
    events = files.read_journal(work.place.attempt(work.number).events)
    end = next((event.get("limit") for event in events if event["event"] == "claimed"), None)
    return end is not None and time.time() >= end
