"""What a node could not bring back, by its own journal: of use to whoever finds that it told nobody else."""

from __future__ import annotations

from typing import Any, Dict, List, Sequence

KILLED = "its agent ended before it had brought everything"


def of_journal(events: Sequence[Dict[str, Any]]) -> List[Dict[str, Any]]:
    """For each kind, `results` or `checkpoints`: how much, if that is known, some names, why, and where."""
    begun = next((event for event in events if event["event"] == "bringing"), None)
    ended = next((event for event in events if event["event"] == "all-brought"), None)
    if ended is not None:
        return list(ended.get("missing", ()))
    if begun is None:
        return []
    return [{"kind": kind, "names": [], "problem": KILLED, "folder": begun["folder"]} for kind in begun["kinds"]]
