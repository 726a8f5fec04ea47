"""Where exit.json is missing, the journals of an attempt may still prove that every rank exited with status 0."""

from __future__ import annotations

import dataclasses
from typing import Any

from serried.fs.files import read_journal
from serried.protocol import names
from serried.protocol.events import JournalEvent
from serried.protocol.layout import AttemptDirectory
from serried.records.evidence import Evidence, latest_attempt
from serried.records.verdict import MISSING_SECONDS, UNREACHABLE, Ending, Kind, Verdict
from serried.schedulers.interface import Job

MESSAGE = "every rank exited with status 0; exit.json could not be written"
STOPPED = frozenset(
    {
        JournalEvent.STOPPING,
        JournalEvent.ORPHANED,
        JournalEvent.SUPERSEDED,
        JournalEvent.NODE_LOST,
        JournalEvent.LAUNCH_FAILED,
        JournalEvent.LAUNCHER_FAILED,
    }
)
"""Events after which a 0 may mean something else."""


def of(evidence: Evidence, element: int | None, word: Job | str) -> Ending | None:
    """The end that the journals prove; None where they do not, or where its job may still write exit.json."""
    if word == UNREACHABLE or (isinstance(word, Job) and word.state not in names.ENDED):
        return None
    attempt = latest_attempt(evidence.record.where.element(element))
    plan = evidence.record.plan
    ended = None if attempt is None else all_ended_well(attempt, plan.allocation.nodes, plan.world_size)
    return None if ended is None else Ending(names.COMPLETED, 0, None, MESSAGE, ended, Kind.FINAL)


def all_ended_well(attempt: AttemptDirectory, nodes: int, world_size: int) -> float | None:
    """When the last rank had ended, if all ended by themselves, with status 0, before anything ended the attempt."""
    head = read_journal(attempt.events)
    order = [event.get("event") for event in head]
    before = order[: order.index(JournalEvent.ALL_RANKS_ENDED)] if JournalEvent.ALL_RANKS_ENDED in order else order
    ends = [event for event in head if event.get("event") == JournalEvent.NODE_ENDED]
    if STOPPED.intersection(before) or any(event.get("left") for event in ends):
        return None
    exits: list[dict[str, Any]] = [exit_ for event in ends for exit_ in event["exits"]]
    told = {event.get("node") for event in ends}
    for node in set(range(nodes)) - told:
        exits += [
            event for event in read_journal(attempt.node_events(node)) if event.get("event") == JournalEvent.RANK_EXIT
        ]
    is_well = all(exit_["exit_code"] == 0 and not (exit_["signal"] or exit_["ended_by_us"]) for exit_ in exits)
    if {exit_["rank"] for exit_ in exits} != set(range(world_size)) or not is_well:
        return None
    return max((float(event["t"]) for event in head), default=None)


def with_patience(verdict: Verdict, missing_since: float, now: float) -> Verdict:
    """A verdict from journals: exit.json, which tells more, may still appear for a while."""
    return dataclasses.replace(verdict, settled=now - missing_since > MISSING_SECONDS, missing=True)
