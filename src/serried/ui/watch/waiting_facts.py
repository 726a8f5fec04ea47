"""Reads what the page of a waiting run shows. Asks no scheduler: that has the turn of `serried queue`."""

from __future__ import annotations

import os

from serried.errors import SerriedError
from serried.protocol.reasons import Reason
from serried.records.explain import Explanation
from serried.records.run_status import RunStatus
from serried.ui.text import duration
from serried.ui.watch.facts import notice_of, size_in_words
from serried.ui.watch.waiting_page import WaitingPage

_OLD_QUEUE_SECONDS = 900.0


def waiting_page(status: RunStatus, explanation: Explanation | None, now: float) -> WaitingPage:
    ahead, openings = _openings(status, now)
    return WaitingPage(
        status.id,
        status.summary.name if status.summary else "?",
        status.state,
        size=size_in_words(status),
        why=explanation.meaning if explanation else status.verdict.message or status.scheduler_explanation,
        reason=status.reason,
        waited=now - status.created if status.created else None,
        starts=status.starts,
        starts_in=status.starts - now if status.starts is not None else None,
        ahead=ahead,
        steps=explanation.steps if explanation else (),
        sooner=openings,
        notice=notice_of(status, now),
    )


def _openings(status: RunStatus, now: float) -> tuple[str, tuple[str, ...]]:
    """The jobs ahead, and what would start sooner, by the last answer to `serried queue`. Asks nothing."""
    from serried.schedulers import occupancy_cache, openings  # only for runs that wait
    from serried.ui.opening_lines import ahead_text, opening_text

    if status.summary is None or not status.job or status.waits_because not in (None, Reason.QUEUED):
        return "", ()
    try:
        look = occupancy_cache.remembered(status.summary.scheduler, os.environ, seconds=_OLD_QUEUE_SECONDS)
    except SerriedError:
        look = None
    if look is None:
        return "", (f"see `serried queue {status.id}`, which asks the scheduler",)
    ids = status.job.split(",")
    job = next((one for one in look.occupancy.mine if one.id in ids), None)
    if job is None or not job.waits_for_resources:
        return "", ()
    before, shape = openings.ahead_of(look.occupancy, job), openings.JobShape.of(job)
    found = openings.sooner(look.occupancy, shape, before, now)
    ahead = f"{ahead_text(before)}, as of {duration(look.age(now))} ago"
    return ahead, tuple(opening_text(one, shape) for one in found)
