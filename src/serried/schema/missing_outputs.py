"""The outputs that a node has not copied back, by its own journal; needed where the node could not report them."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Sequence

from serried.schema.events import JournalEvent

UNWATCHED = "unwatched"
"""The folder of the results for files that lie where checkpoints are watched and match no pattern."""
KILLED = "its agent ended before every file was copied"
_LISTED = 3


def of_journal(events: Sequence[Dict[str, Any]]) -> List[Dict[str, Any]]:
    """For each kind, `results` or `checkpoints`: the size if known, some names, the problem and the folder."""
    begun = next((event for event in events if event["event"] == JournalEvent.STAGE_OUT_STARTED), None)
    ended = next((event for event in events if event["event"] == JournalEvent.STAGE_OUT_ENDED), None)
    if ended is not None:
        return list(ended.get("missing", ()))
    if begun is None:
        return []
    return [{"kind": kind, "names": [], "problem": KILLED, "folder": begun["folder"]} for kind in begun["kinds"]]


def left_out(facts: Mapping[str, Any]) -> List[str]:
    """Sentences about files that match no pattern, from the facts that a node reports after its last copy."""
    sentences = []
    left, unwatched = facts.get("unnamed"), facts.get("unwatched")
    if left:
        which = "1 file matches" if left["files"] == 1 else f"{left['files']} files match"
        kept = "is" if left["files"] == 1 else "are"
        sentences.append(f"{which} no pattern of `data.results` and {kept} not kept: {_listed(left['names'])}")
    if unwatched:
        sentences.append(
            f"no file in `{{checkpoints}}` matches a pattern of `checkpoint.watch`: {_listed(unwatched)}; "
            f"at the end the newest are copied to `{UNWATCHED}` in the results"
        )
    return sentences


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names[:_LISTED]))
