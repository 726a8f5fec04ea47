"""Data on its way to the nodes, as the agents' journals have it: how far it is, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from serried.fs.files import read_journal
from serried.protocol.events import JournalEvent
from serried.protocol.layout import AttemptDirectory
from serried.protocol.sizes import maker, spell
from serried.protocol.sizes import progress as words

_FROM = {
    "source": "from the source",
    "peer": "from the node before it",
    "cache": "from its own disk",
    "in place": "where it is",
}


def progress(attempt: AttemptDirectory) -> str:
    """`staging 41 % of 12.0 GB at 102.1 MB/s, 2 min left`; nothing where no rank waits for data."""
    last = ""
    for entry in read_journal(attempt.events):
        if entry.get("event") == JournalEvent.STAGING:
            last = f"staging {words(entry)}".rstrip()
        elif entry.get("event") in (
            JournalEvent.STAGED,
            JournalEvent.STARTING_RANKS,
            JournalEvent.LAUNCH_FAILED,
            JournalEvent.STOPPING,
        ):
            last = ""
    return last


def head_text(entry: Mapping[str, Any]) -> str | None:
    """A line of the timeline, for what the head says of it."""
    if entry.get("event") != JournalEvent.STAGED:
        return None
    return f"every node has its data: {spell(int(entry['bytes']))} after {entry.get('seconds')} s"


def node_text(host: str, entry: Mapping[str, Any]) -> str | None:
    """The same for one node."""
    event = entry.get("event")
    if event == JournalEvent.ITEM_STAGED:
        return f"{host} {_item_text(entry)}"
    if event == JournalEvent.STAGING_WAITS:
        run = maker(str(entry.get("run") or ""))
        return f"{host} waits for {entry.get('item')}, as {run} is copying the same there"
    if event == JournalEvent.STAGING_PROBLEM:
        item = f"in {entry['item']}, " if entry.get("item") else ""
        return f"{host}: {item}{entry.get('problem')}"
    if event == JournalEvent.STAGING_ALONE:
        return f"{host} goes on from the source, as the node before it is of no more use: {entry.get('because')}"
    if event == JournalEvent.STAGING_REFUSED:
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
