"""What ranks wrote on their nodes and could not be brought to the run directory. It never makes a run fail."""

from __future__ import annotations

from typing import Any, Dict, List, Sequence

from serried.agent.outcome.evidence import Evidence
from serried.protocol.events import JournalEvent
from serried.protocol.missing_outputs import of_journal


def missing(evidence: Evidence) -> List[Dict[str, Any]]:
    """For each node and kind, `results` or `checkpoints`: how much, if that is known, some names, why, and where."""
    found = [
        {"node": event["node"], "host": event["host"], **one}
        for event in evidence.all(JournalEvent.NODE_ENDED)
        for one in event.get("missing", ())
    ]
    if evidence.has(JournalEvent.ORPHANED) and not evidence.has(JournalEvent.ENDED):
        return found  # the head writes what it knows at once, and again when its nodes have done what they can
    for node, events in sorted(evidence.nodes.items()):
        host = evidence.hosts.get(node, evidence.host)
        found += [{"node": node, "host": host, **one} for one in of_journal(events)]
    return found


def sentence(found: Sequence[Dict[str, Any]]) -> str:
    """What is missing, and why; `found` is not empty."""
    counts = [one.get("files", 0) for one in found]
    kinds = " and ".join(sorted({one["kind"] for one in found}, reverse=True))
    count = "" if 0 in counts else f"{sum(counts)} {'file' if sum(counts) == 1 else 'files'} of "
    hosts = ", ".join(dict.fromkeys(one["host"] for one in found))
    return f"{count}{kinds} could not be brought back from {hosts}: {found[0]['problem']}"
