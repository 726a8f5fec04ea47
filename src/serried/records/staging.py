"""Data on its way to the nodes, by the agents' journals: the progress, the events, and the rate."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from serried.fs.files import read_journal
from serried.protocol.events import JournalEvent
from serried.protocol.layout import AttemptDirectory
from serried.protocol.sizes import maker, spell
from serried.protocol.sizes import progress as words
from serried.records import index
from serried.records.evidence import latest_attempt
from serried.records.record import Record, RecordUnreadable

_FROM = {
    "source": "from the source",
    "peer": "from the node before it",
    "cache": "from its own disk",
    "in place": "where it is",
}
_LOOKED_AT = 40
"""Runs that are read at most: each costs a few small files on a shared file system."""
_ENOUGH_BYTES = 10_000_000
_COPIED = ("source", "peer")
"""The origins of an item that was copied."""


def progress(attempt: AttemptDirectory) -> str:
    """`staging 41 % of 12.0 GB at 102.1 MB/s, 2 min left`; empty if no rank waits for data."""
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
    """A line of the timeline from the head's journal."""
    if entry.get("event") != JournalEvent.STAGED:
        return None
    return f"every node has its data: {spell(int(entry['bytes']))} after {entry.get('seconds')} s"


def node_text(host: str, entry: Mapping[str, Any]) -> str | None:
    """A line of the timeline from a node's journal."""
    event = entry.get("event")
    if event == JournalEvent.ITEM_STAGED:
        return f"{host} {_item_text(entry)}"
    if event == JournalEvent.STAGING_WAITS:
        run = maker(str(entry.get("run") or ""))
        return f"{host} waits for {entry.get('item')}: {run} is copying it to this node"
    if event == JournalEvent.STAGING_PROBLEM:
        item = f"in {entry['item']}, " if entry.get("item") else ""
        return f"{host}: {item}{entry.get('problem')}"
    if event == JournalEvent.STAGING_ALONE:
        return f"{host} reads from the source, because the node before it cannot serve: {entry.get('because')}"
    if event == JournalEvent.STAGING_REFUSED:
        return f"{host} refused a request for data from {entry.get('address')}: {entry.get('because')}"
    return None


def _item_text(entry: Mapping[str, Any]) -> str:
    if entry.get("origin") == "in place":
        why = entry.get("because") or "it has no disk of its own"
        return f"uses {entry.get('item')} where it is: {why}"
    origin = _FROM.get(str(entry.get("origin")), str(entry.get("origin")))
    if entry.get("origin") == "cache" and not entry["bytes"]:  # unpacked before, from an archive elsewhere
        return f"has {entry.get('item')} {origin}"
    return f"has {entry.get('item')} {origin}: {spell(int(entry['bytes']))} in {entry.get('seconds')} s"


@dataclass(frozen=True)
class Rate:
    bytes_per_second: float
    run: str
    """The run that measured it."""


def rate(cluster: str, records: Iterable[Record] | None = None) -> Rate | None:
    """The rate of the newest run on `cluster` that copied enough; None without such a run."""
    found = [
        (it.summary.created, it) for it in (index.records() if records is None else records) if _is_on(it, cluster)
    ]
    for _, record in sorted(found, key=lambda pair: pair[0], reverse=True)[:_LOOKED_AT]:
        attempt = latest_attempt(record.where)
        if attempt is None:
            continue
        items = [it for it in read_journal(attempt.node_events(0)) if it["event"] == JournalEvent.ITEM_STAGED]
        copied = [(it["bytes"], it["seconds"]) for it in items if it["origin"] in _COPIED]
        size, seconds = sum(size for size, _ in copied), sum(seconds for _, seconds in copied)
        if size >= _ENOUGH_BYTES and seconds > 0:
            return Rate(size / seconds, record.id)
    return None


def _is_on(record: Record, cluster: str) -> bool:
    try:
        return record.summary.cluster == cluster
    except RecordUnreadable:
        return False
