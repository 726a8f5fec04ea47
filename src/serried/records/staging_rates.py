"""How fast data came to the nodes of a cluster, by what the newest runs there have written down."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from serried.fs.files import read_journal
from serried.protocol.events import JournalEvent
from serried.records import index
from serried.records.documents import RecordUnreadable
from serried.records.evidence import latest_attempt
from serried.records.record import Record

LOOKED_AT = 40
"""Runs at most: each is a few small files on a shared file system."""
ENOUGH_BYTES = 10_000_000
COPIED = ("source", "peer")
"""Where an item came from that took time to come."""


@dataclass(frozen=True)
class Rate:
    bytes_per_second: float
    run: str
    """The run that says so."""


def staging(cluster: str, records: Iterable[Record] | None = None) -> Rate | None:
    """Of the newest run on `cluster` that copied enough to tell; None where there is none."""
    found = [
        (it.summary.created, it) for it in (index.records() if records is None else records) if _is_on(it, cluster)
    ]
    for _, record in sorted(found, key=lambda pair: pair[0], reverse=True)[:LOOKED_AT]:
        attempt = latest_attempt(record.where)
        if attempt is None:
            continue
        items = [it for it in read_journal(attempt.node_events(0)) if it["event"] == JournalEvent.ITEM_STAGED]
        copied = [(it["bytes"], it["seconds"]) for it in items if it["origin"] in COPIED]
        size, seconds = sum(size for size, _ in copied), sum(seconds for _, seconds in copied)
        if size >= ENOUGH_BYTES and seconds > 0:
            return Rate(size / seconds, record.id)
    return None


def _is_on(record: Record, cluster: str) -> bool:
    try:
        return record.summary.cluster == cluster
    except RecordUnreadable:
        return False
