"""The launches of a job script: their command lines, ranks and ends, from the files of an attempt.

`agent/launchers/interception.py` describes the documents. A launch has ended if all its ranks have.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from serried.base.files import read_journal, read_json
from serried.base.text import iso
from serried.records.logs import launch_order
from serried.records.verdict import signal_name
from serried.schema.events import JournalEvent
from serried.schema.layout import AttemptDirectory


@dataclass(frozen=True)
class FailedRank:
    rank: int
    host: str
    exit_code: int | None
    signal: int | None
    t: float

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> FailedRank:
        return cls(entry["rank"], entry["host"], entry.get("exit_code"), entry.get("signal"), float(entry["t"]))

    @property
    def how(self) -> str:
        return f"was killed by {signal_name(self.signal)}" if self.signal else f"exited with status {self.exit_code}"

    def to_json(self) -> dict[str, Any]:
        return {"rank": self.rank, "host": self.host, "exit_code": self.exit_code, "signal": self.signal}


@dataclass(frozen=True)
class ScriptLaunch:
    """A call of a launcher in a job script."""

    launch: str
    """`2`; `1.2` is the second launch inside a rank of launch 1."""
    argv: tuple[str, ...]
    untouched: str | None
    """Why its ranks have no logs of their own."""
    began: float
    ranks: int
    """Those that have started."""
    nodes: tuple[str, ...]
    ended: float | None
    status: int | None
    """Of the launcher; None while it runs, and if nothing shows it."""
    handled: bool
    """The script handled its failure."""
    first_failed: FailedRank | None

    @property
    def command(self) -> str:
        return shlex.join(self.argv)

    def to_json(self) -> dict[str, Any]:
        return {
            "launch": self.launch,
            "argv": list(self.argv),
            "untouched": self.untouched,
            "began": iso(self.began),
            "ended": None if self.ended is None else iso(self.ended),
            "ranks": self.ranks,
            "nodes": list(self.nodes),
            "exit_code": self.status,
            "handled": self.handled,
            "first_failed": self.first_failed and self.first_failed.to_json(),
        }


def launches(attempt: AttemptDirectory, nodes: int) -> list[ScriptLaunch]:
    """All launches of an attempt, in the order of their ids. Several ranks may have started the same launch."""
    documents: dict[str, list[Mapping[str, Any]]] = {}
    for document in _documents(attempt.launches):
        documents.setdefault(str(document["launch"]), []).append(document)
    if not documents:
        return []
    failures = {document["call"]: document for document in _read(attempt.launches / "failures")}
    entries = _entries(attempt, nodes)
    return [
        _launch(
            documents[launch],
            entries.get(launch, []),
            [failures[document["call"]] for document in documents[launch] if document.get("call") in failures],
        )
        for launch in sorted(documents, key=launch_order)
    ]


@dataclass(frozen=True)
class FailedProgram:
    """A program in a job script that is no launcher, and whose failure the script did not handle."""

    argv: tuple[str, ...]
    status: int
    t: float


def failed_programs(attempt: AttemptDirectory) -> list[FailedProgram]:
    """The earliest first."""
    launched = {document.get("call") for document in _documents(attempt.launches)}
    failures = [it for it in _read(attempt.launches / "failures") if not (it.get("handled") or it.get("signalled"))]
    found = [
        FailedProgram((str(it.get("name")), *map(str, it.get("argv") or ())), int(it["status"]), float(it["time"]))
        for it in failures
        if it.get("call") not in launched and not it.get("within")
    ]
    return sorted(found, key=lambda program: program.t)


def _launch(
    documents: Sequence[Mapping[str, Any]], entries: Iterable[Mapping[str, Any]], failures: Sequence[Mapping[str, Any]]
) -> ScriptLaunch:
    document = documents[0]
    by_event: dict[str, list[Mapping[str, Any]]] = {}
    for entry in entries:
        by_event.setdefault(str(entry["event"]), []).append(entry)
    started = by_event.get(JournalEvent.LAUNCHED_RANK_STARTED, [])
    ends = by_event.get(JournalEvent.LAUNCHED_RANK_ENDED, [])
    have_ended = bool(started) and len(ends) == len(started)
    status = int(failures[0]["status"]) if failures else None
    if status is None and have_ended and not any(map(_has_failed, ends)):
        status = 0
    own = [entry for entry in ends if _has_failed(entry) and not entry.get("ended_by_us")]
    first = min(own, key=lambda entry: (bool(entry.get("stumbled")), entry["t"], entry["rank"]), default=None)
    times = [float(entry["t"]) for entry in ends if have_ended] + [float(failure["time"]) for failure in failures]
    return ScriptLaunch(
        launch=str(document["launch"]),
        argv=(str(document.get("name")), *map(str, document.get("argv") or ())),
        untouched=document.get("untouched"),
        began=float(document["time"]),
        ranks=len(started),
        nodes=tuple(dict.fromkeys(entry["host"] for entry in sorted(started, key=lambda entry: entry["rank"]))),
        ended=max(times, default=None),
        status=status,
        handled=bool(failures) and all(failure.get("handled") for failure in failures),
        first_failed=FailedRank.of(first) if first else None,
    )


def _has_failed(entry: Mapping[str, Any]) -> bool:
    return bool(entry.get("exit_code") or entry.get("signal"))


def _entries(attempt: AttemptDirectory, nodes: int) -> dict[str, list[dict[str, Any]]]:
    """The starts and ends of ranks by launch, each with the name of its node."""
    hosts = {
        entry.get("node"): str(entry.get("host"))
        for entry in read_journal(attempt.events)
        if entry.get("event") == JournalEvent.CONNECTED
    }
    found: dict[str, list[dict[str, Any]]] = {}
    for node in range(nodes):
        for entry in read_journal(attempt.node_events(node)):
            if entry.get("event") in (JournalEvent.LAUNCHED_RANK_STARTED, JournalEvent.LAUNCHED_RANK_ENDED):
                host = hosts.get(node, f"node {node}")
                found.setdefault(str(entry.get("launch")), []).append({**entry, "host": host})
    return found


def _documents(folder: Path) -> list[dict[str, Any]]:
    """Of the launches, also of those that ranks of launches started."""
    found = _read(folder)
    for rank in folder.glob("[0-9]*/**/rank-*"):
        found += _read(rank)
    return sorted(found, key=lambda document: float(document["time"]))


def _read(folder: Path) -> list[dict[str, Any]]:
    """The complete documents in a folder."""
    documents = (read_json(path) for path in folder.glob("*.json"))
    return [document for document in documents if document and "time" in document]
