"""Ranks that never joined one another: as many separate programs, of which each believes to be the only one. Pure."""

from __future__ import annotations

from typing import Dict, List

from serried.agent.outcome.evidence import Evidence
from serried.protocol.events import JournalEvent
from serried.protocol.reasons import Reason

BUSY_SECONDS = 0.5
"""A rank that has computed for less than that is no training: `hostname` on four nodes needs no warning."""


def warnings(evidence: Evidence) -> List[Dict[str, str]]:
    """What exit.json says about it; nothing where a single node does not know, or a rank has failed before it could."""
    ends = evidence.all(JournalEvent.NODE_ENDED)
    is_known = bool(ends) and len(ends) == len(evidence.hosts) and all(end.get("contact") is False for end in ends)
    if not is_known or evidence.has(JournalEvent.RANKS_CONNECTED):
        return []
    reported = evidence.all(Reason.RANKS_APART)
    if evidence.are_all_ended:
        was_busy = sum(end["cpu_seconds"] for end in ends) >= BUSY_SECONDS * evidence.world_size
        text = message(evidence.world_size) if was_busy or reported else None
    else:  # a rank that was ended while it imported torch would have connected later
        text = str(reported[0]["message"]) if reported else None
    return [{"code": Reason.RANKS_APART, "message": text}] if text else []


def message(count: int) -> str:
    return f"no rank has connected to another: the program ran {count} times, each by itself"


def early_message(count: int, seconds: float) -> str:
    """While ranks run: they may only be slow to import what they need."""
    return f"no rank has connected to another in {seconds:.0f} s: the program may run {count} times, each by itself"
