"""Data on its way to the nodes, as the agents' journals have it: how far it is, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from serried.contract.files import read_journal
from serried.contract.layout import AttemptDirectory
from serried.contract.sizes import spell

_MINUTE, _HOUR = 60, 3600
_FROM = {
    "source": "from the source",
    "peer": "from the node before it",
    "cache": "from its own disk",
    "in place": "where it is",
}


def progress(attempt: AttemptDirectory) -> str:
    """`staging 41 % of 12 GB, 2 min left`; nothing where no rank waits for data."""
    last = ""
    for entry in read_journal(attempt.events):
        if entry.get("event") == "staging":
            last = _progress(entry)
        elif entry.get("event") in ("staged", "go", "launch-failed", "stopping"):
            last = ""
    return last


def _progress(entry: Mapping[str, Any]) -> str:
    size, of, left = entry.get("bytes") or 0, entry.get("of"), entry.get("left")
    if not of:
        return "staging"
    soon = "" if left is None else f", {_spelled(left)} left"
    return f"staging {100 * min(size, of) // of} % of {spell(of)}{soon}"


def _spelled(seconds: int) -> str:
    if seconds < _MINUTE:
        return f"{seconds} s"
    return f"{round(seconds / _MINUTE)} min" if seconds < _HOUR else f"{seconds / _HOUR:.1f} h"


def head_text(entry: Mapping[str, Any]) -> str | None:
    """A line of the timeline, for what the head says of it."""
    if entry.get("event") != "staged":
        return None
    return f"every node has its data: {spell(int(entry['bytes']))} after {entry.get('seconds')} s"


def node_text(host: str, entry: Mapping[str, Any]) -> str | None:
    """The same for one node."""
    event = entry.get("event")
    if event == "staged-item":
        return f"{host} {_item_text(entry)}"
    if event == "staging-problem":
        item = f"in {entry['item']}, " if entry.get("item") else ""
        return f"{host}: {item}{entry.get('problem')}"
    if event == "staging-alone":
        return f"{host} goes on from the source, as the node before it is of no more use: {entry.get('because')}"
    if event == "staging-refused":
        return f"{host} refused {entry.get('address')}, who asked for data: {entry.get('because')}"
    return None


def _item_text(entry: Mapping[str, Any]) -> str:
    if entry.get("origin") == "in place":
        why = entry.get("because") or "it has no disk of its own"
        return f"uses {entry.get('item')} where it is, as {why}"
    origin = _FROM.get(str(entry.get("origin")), str(entry.get("origin")))
    if entry.get("origin") == "cache" and not entry["bytes"]:  # unpacked before, from what is not here
        return f"has {entry.get('item')} {origin}"
    return f"has {entry.get('item')} {origin}: {spell(int(entry['bytes']))} in {entry.get('seconds')} s"
