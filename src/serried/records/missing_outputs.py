"""Results and checkpoints that stayed on nodes' disks because they could not be copied back in time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from serried.base.files import read_journal, read_json, write_json
from serried.records.evidence import attempt_numbers
from serried.records.index import Selection
from serried.records.record import read_exit
from serried.schema.events import JournalEvent
from serried.schema.layout import AttemptDirectory, TaskDirectory
from serried.schema.missing_outputs import of_journal
from serried.schema.reasons import Reason, condition, conditions, described

KEY = "missing"
"""In exit.json."""
ALL, LOST = "all", "lost"

Change = Callable[[dict[str, Any], "Missing"], dict[str, Any]]


@dataclass(frozen=True)
class Missing:
    task: int | None
    attempt: int
    node: int
    host: str
    folder: str
    """On that node's disk."""
    kinds: tuple[str, ...]
    files: int | None
    """None if unknown: the agent was killed."""
    bytes: int | None
    names: tuple[str, ...]
    """Some of the files."""
    problem: str
    """Why the first file could not be copied back."""
    is_lost: bool = False
    """The node does not have the files any more."""

    def to_json(self) -> dict[str, Any]:
        return {**self.__dict__, "kinds": list(self.kinds), "names": list(self.names)}

    @property
    def text(self) -> str:
        count = "" if self.files is None else f"{self.files} {'file' if self.files == 1 else 'files'} of "
        where = f"lost with {self.host}" if self.is_lost else f"on {self.host}"
        return f"{count}{self.what} {where} ({self.problem})"

    @property
    def what(self) -> str:
        """`results`, `checkpoints and results`."""
        return " and ".join(self.kinds)


def of(selection: Selection, *, has_ended: bool) -> list[Missing]:
    """The files that each attempt has left on nodes; for an array, those of each task."""
    return [
        each
        for task in selection.tasks
        for place in [selection.record.where.task(task)]
        for attempt in map(place.attempt, attempt_numbers(place))
        for each in of_document(read_exit(attempt.exit) or _unwritten(task, place, attempt, has_ended=has_ended))
    ]


def of_document(document: Mapping[str, Any] | None) -> list[Missing]:
    """The missing outputs that an exit.json lists, one entry per node."""
    entries = (document or {}).get(KEY)
    by_node: dict[tuple[int, str], list[dict[str, Any]]] = {}
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, dict) and isinstance(entry.get("folder"), str):
            by_node.setdefault((int(entry.get("node", 0)), entry["folder"]), []).append(entry)
    return [_merged(document or {}, node, folder, several) for (node, folder), several in sorted(by_node.items())]


def _unwritten(task: int | None, place: TaskDirectory, attempt: AttemptDirectory, *, has_ended: bool) -> dict[str, Any]:
    """The entries that exit.json would have, from the journals of the nodes, for an attempt that could not write it."""
    is_last = attempt.number == max(attempt_numbers(place), default=attempt.number)  # a site may have purged all
    if is_last and not has_ended:
        return {}
    claim = read_json(attempt.claim) or {}
    hosts = {0: claim.get("host", "?")}
    hosts |= {
        event["node"]: event["host"]
        for event in read_journal(attempt.events)
        if event["event"] == JournalEvent.CONNECTED
    }
    entries = [
        {"node": node, "host": hosts.get(node, "?"), **one, "is_lost": word == LOST}
        for node in sorted(hosts)
        if (word := _fetched(attempt, node)) != ALL
        for one in of_journal(read_journal(attempt.node_events(node)))
    ]
    return {"task": task, "attempt": attempt.number, KEY: entries}


def _fetched(attempt: AttemptDirectory, node: int) -> str:
    """The result of the last `serried fetch` from that node: ALL, LOST, or empty if the node may still have files."""
    ends = [event for event in read_journal(attempt.fetched(node)) if event["event"] == JournalEvent.ENDED]
    if not ends:
        return ""
    return ALL if ends[-1].get("problem") is None else LOST if ends[-1].get("is_gone") else ""


def can_be_fetched(document: Mapping[str, Any] | None) -> bool:
    """Whether an exit.json lists files that a node may still have."""
    return any(not each.is_lost for each in of_document(document))


def strike(selection: Selection, found: Missing) -> None:
    """Remove the entry of files that have been recovered."""
    _change(selection, found, _without)


def give_up(selection: Selection, found: Missing) -> None:
    """Mark files as lost that their node does not have any more."""
    _change(selection, found, _as_lost)


def _change(selection: Selection, found: Missing, change: Change) -> None:
    record = selection.record
    place = record.where.task(found.task)
    for path in (place.attempt(found.attempt).exit, place.exit):
        document = read_json(path)
        if document is not None and document.get(KEY):
            write_json(path, change(document, found), path.stat().st_mode & 0o777)
    if record.end is not None and record.end.get(KEY):
        record.write_end(change(record.end, found))


def _merged(document: Mapping[str, Any], node: int, folder: str, several: Sequence[dict[str, Any]]) -> Missing:
    return Missing(
        task=document.get("task"),
        attempt=int(document.get("attempt") or 1),
        node=node,
        host=str(several[0].get("host", "?")),
        folder=folder,
        kinds=tuple(str(each.get("kind", "results")) for each in several),
        files=_sum(several, "files"),
        bytes=_sum(several, "bytes"),
        names=tuple(str(name) for each in several for name in each.get("names", ())),
        problem=str(several[0].get("problem", "")),
        is_lost=bool(several[0].get("is_lost")),
    )


def _sum(several: Sequence[dict[str, Any]], key: str) -> int | None:
    counts = [each.get(key) for each in several]
    known = [count for count in counts if isinstance(count, int)]
    return sum(known) if len(known) == len(counts) else None


def _without(document: dict[str, Any], found: Missing) -> dict[str, Any]:
    left = [each for each in document[KEY] if each.get("folder") != found.folder]
    if left:
        return {**document, KEY: left}
    stated = conditions(document)
    fetched = condition(Reason.RESULTS_FETCHED, "files that had stayed on nodes were fetched later")
    at = next((at for at, one in enumerate(stated) if one.get("code") == Reason.RESULTS_MISSING), len(stated))
    return {**document, KEY: left, **described([*stated[:at], fetched, *stated[at + 1 :]])}


def _as_lost(document: dict[str, Any], found: Missing) -> dict[str, Any]:
    changed = [{**each, "is_lost": True} if each.get("folder") == found.folder else each for each in document[KEY]]
    return {**document, KEY: changed}
