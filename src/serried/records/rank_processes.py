"""The processes of the ranks that run now, by the journals of their nodes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from serried.base.files import read_journal
from serried.schema.events import JournalEvent
from serried.schema.layout import AttemptDirectory
from serried.schema.names import SCRIPT_RANK

_BEGIN = (JournalEvent.STARTED, JournalEvent.LAUNCHED_RANK_STARTED)
_END = (JournalEvent.RANK_EXIT, JournalEvent.LAUNCHED_RANK_ENDED, JournalEvent.RANK_EXCUSED)


class RankProcess(NamedTuple):
    rank: int
    node: int
    pid: int
    launch: str = ""
    """The launch in a job script that started it."""


def running(attempt: AttemptDirectory) -> list[RankProcess]:
    """The ranks that have started and not ended, by number; of several launches the newest comes first."""
    found: dict[tuple[str, int, int], RankProcess] = {}
    for path in sorted(attempt.path.glob("node-*/events.jsonl")):
        node = path.parent.name.removeprefix("node-")
        for process, has_begun in _changes(int(node), read_journal(path)) if node.isdecimal() else ():
            key = (process.launch, process.rank, process.node)
            if has_begun:
                found[key] = process
            else:
                found.pop(key, None)
    script = _script(read_journal(attempt.events))
    newest_first = [*reversed(found.values()), *script]
    return sorted(newest_first, key=lambda process: (process.rank == SCRIPT_RANK, process.rank))


def _changes(node: int, events: list[dict[str, Any]]) -> Iterator[tuple[RankProcess, bool]]:
    for event in events:
        kind, rank = event.get("event"), event.get("rank")
        if isinstance(rank, int) and kind in (*_BEGIN, *_END):
            pid = event.get("pid")
            process = RankProcess(rank, node, pid if isinstance(pid, int) else 0, str(event.get("launch") or ""))
            yield process, kind in _BEGIN


def _script(events: list[dict[str, Any]]) -> list[RankProcess]:
    """The user's job script, which the head starts on the first node."""
    pids = [event.get("pid") for event in events if event.get("event") == JournalEvent.STARTED]
    return [RankProcess(SCRIPT_RANK, 0, pid) for pid in pids if isinstance(pid, int)][-1:]
