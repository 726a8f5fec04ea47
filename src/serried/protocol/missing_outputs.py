"""What a node has not brought back, by its own journal: of use to whoever finds that it told nobody else."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Sequence

from serried.protocol.events import JournalEvent

UNWATCHED = "unwatched"
"""The folder of the results for what lay where checkpoints are watched, and was named by no pattern."""
KILLED = "its agent ended before it had brought everything"
_LISTED = 3


def of_journal(events: Sequence[Dict[str, Any]]) -> List[Dict[str, Any]]:
    """For each kind, `results` or `checkpoints`: how much, if that is known, some names, why, and where."""
    begun = next((event for event in events if event["event"] == JournalEvent.STAGE_OUT_STARTED), None)
    ended = next((event for event in events if event["event"] == JournalEvent.STAGE_OUT_ENDED), None)
    if ended is not None:
        return list(ended.get("missing", ()))
    if begun is None:
        return []
    return [{"kind": kind, "names": [], "problem": KILLED, "folder": begun["folder"]} for kind in begun["kinds"]]


def left_out(facts: Mapping[str, Any]) -> List[str]:
    """Sentences on what ranks wrote and no pattern names, by what a node says when all is brought."""
    sentences = []
    left, unwatched = facts.get("unnamed"), facts.get("unwatched")
    if left:
        what = "a file that is not kept" if left["files"] == 1 else f"{left['files']} files that are not kept"
        sentences.append(f"no pattern of `data.results` names {what}: {_listed(left['names'])}")
    if unwatched:
        sentences.append(
            f"no pattern of `checkpoint.watch` names anything, and in `{{checkpoints}}` there is {_listed(unwatched)}: "
            f"at the end the newest come to `{UNWATCHED}` of the results"
        )
    return sentences


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names[:_LISTED]))
