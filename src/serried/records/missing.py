"""What of a run's results and checkpoints stayed on its nodes' disks, because it could not be brought back in time."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from serried.contract.files import read_json, write_json
from serried.contract.layout import AttemptDirectory, ElementDirectory
from serried.records.evidence import attempt_numbers
from serried.records.index import Selection

KEY = "missing"
"""In exit.json."""
_SENTENCE = re.compile(r"; [^;]*could not be brought back from .*", re.DOTALL)
"""Of the message there."""


@dataclass(frozen=True)
class Missing:
    element: int | None
    attempt: int
    node: int
    host: str
    folder: str
    """On that node's disk."""
    kinds: tuple[str, ...]
    files: int | None
    """None where that is not known: the agent was killed."""
    bytes: int | None
    names: tuple[str, ...]
    """Some of them."""
    problem: str
    """Why the first of them could not be brought back."""

    def to_json(self) -> dict[str, Any]:
        return {**self.__dict__, "kinds": list(self.kinds), "names": list(self.names)}

    @property
    def told(self) -> str:
        count = "" if self.files is None else f"{self.files} {'file' if self.files == 1 else 'files'} of "
        return f"{count}{self.what} on {self.host} ({self.problem})"

    @property
    def what(self) -> str:
        """`results`, `checkpoints and results`."""
        return " and ".join(self.kinds)


def of(selection: Selection) -> list[Missing]:
    """What every attempt has left, of an array that of every element."""
    places = _places(selection)
    return [each for place in places for number in attempt_numbers(place) for each in _of(place.attempt(number))]


def told(document: Mapping[str, Any] | None) -> list[Missing]:
    """What an exit.json tells of it, one for each node."""
    entries = (document or {}).get(KEY)
    by_node: dict[tuple[int, str], list[dict[str, Any]]] = {}
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, dict) and isinstance(entry.get("folder"), str):
            by_node.setdefault((int(entry.get("node", 0)), entry["folder"]), []).append(entry)
    return [_merged(document or {}, node, folder, several) for (node, folder), several in sorted(by_node.items())]


def strike(selection: Selection, found: Missing) -> None:
    """It is there now: nobody shall be told of it any more."""
    record = selection.record
    place = record.where.element(found.element)
    for path in (place.attempt(found.attempt).exit, place.exit):
        _rewrite(path, found)
    if record.end is not None:
        record.write_end(_without(record.end, found))


def _places(selection: Selection) -> Sequence[ElementDirectory]:
    where, array = selection.record.where, selection.record.plan.array
    if selection.element is not None or array is None:
        return [where.element(selection.element)]
    return [where.element(index) for index in array.indices]


def _of(attempt: AttemptDirectory) -> Iterator[Missing]:
    yield from told(read_json(attempt.exit))


def _merged(document: Mapping[str, Any], node: int, folder: str, several: Sequence[dict[str, Any]]) -> Missing:
    return Missing(
        element=document.get("element"),
        attempt=int(document.get("attempt") or 1),
        node=node,
        host=str(several[0].get("host", "?")),
        folder=folder,
        kinds=tuple(str(each.get("kind", "results")) for each in several),
        files=_sum(several, "files"),
        bytes=_sum(several, "bytes"),
        names=tuple(str(name) for each in several for name in each.get("names", ())),
        problem=str(several[0].get("problem", "")),
    )


def _sum(several: Sequence[dict[str, Any]], key: str) -> int | None:
    counts = [each.get(key) for each in several]
    known = [count for count in counts if isinstance(count, int)]
    return sum(known) if len(known) == len(counts) else None


def _rewrite(path: Path, found: Missing) -> None:
    document = read_json(path)
    if document is not None and document.get(KEY):
        write_json(path, _without(document, found), path.stat().st_mode & 0o777)


def _without(document: dict[str, Any], found: Missing) -> dict[str, Any]:
    entries = document.get(KEY)
    if not isinstance(entries, list):
        return document
    left = [each for each in entries if each.get("folder") != found.folder]
    message = str(document.get("message") or "")
    if not left:
        message = _SENTENCE.sub("; what had stayed on nodes was fetched later", message)
    return {**document, KEY: left, "message": message}
