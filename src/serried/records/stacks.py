"""The stacks of a running run's ranks: requested through control.jsonl, answered by a file from each node."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from serried.base.errors import SerriedError
from serried.base.files import Journal, read_journal, read_json
from serried.schema.events import JournalEvent, ToAttempt
from serried.schema.layout import AttemptDirectory

HEAD_SECONDS = 15.0
"""For the head to find the request; it looks every two seconds."""
ANSWER_SECONDS = 25.0
"""For the nodes, after the head; they leave out ranks that they cannot read in 12 s."""
POLL_SECONDS = 0.1
LOOKS_PER_SECOND = 500
"""The most answers of nodes that are looked for in a second: a file server has others to serve."""

Frames = tuple[tuple[str, int, str], ...]


@dataclass(frozen=True)
class RankStacks:
    """The processes of one rank, the rank's own program first, as in `schema.stacks`."""

    rank: int
    node: int
    host: str
    launch: str | None
    processes: tuple[dict[str, Any], ...]
    omitted: int = 0

    @property
    def main_frames(self) -> Frames:
        """Where its main thread is, innermost frame first; empty if unknown."""
        threads = self.processes[0]["threads"] if self.processes else ()
        return tuple((str(path), int(line), str(name)) for path, line, name in threads[0]["frames"]) if threads else ()


@dataclass(frozen=True)
class StacksAnswer:
    ranks: tuple[RankStacks, ...] = ()
    silent: Mapping[int, str] = field(default_factory=dict)
    """Nodes that did not answer, and their hosts."""


RankGroup = Sequence[RankStacks]
"""Ranks whose main threads are at the same place."""


def request(attempt: AttemptDirectory, ranks: Sequence[int] | None, by: str) -> str:
    """Request the stacks of `ranks`, or of all; return the id of the request. Raises SerriedError."""
    name = f"{int(time.time())}-{secrets.token_hex(4)}"
    try:
        journal = Journal(attempt.control)
    except OSError as error:
        raise SerriedError(f"`{attempt.control}` cannot be written ({error.strerror})") from error
    facts = {} if ranks is None else {"ranks": list(ranks)}
    journal.append({"t": time.time(), "request": ToAttempt.STACKS, "id": name, "by": by, **facts})
    journal.close()
    return name


def wait_for_answer(
    attempt: AttemptDirectory, name: str, *, has_ended: Callable[[], bool] = lambda: False
) -> StacksAnswer | None:
    """The nodes' answers to request `name`; None if the head did not receive it."""
    found: dict[int, dict[str, Any]] = {}

    def requested_nodes() -> list[int] | None:
        for event in reversed(read_journal(attempt.events)):
            if event.get("event") == JournalEvent.STACKS and event.get("id") == name:
                return [node for node in event.get("nodes", ()) if isinstance(node, int)]
        return None

    nodes = _until(requested_nodes, HEAD_SECONDS, has_ended)
    if nodes is None:
        return None

    def have_all_answered() -> bool | None:
        for node in nodes:
            document = read_json(attempt.stacks(node, name)) if node not in found else None
            if isinstance(document, dict):
                found[node] = document
        return len(found) == len(nodes) or None

    pause = max(POLL_SECONDS, len(nodes) / LOOKS_PER_SECOND)
    _until(have_all_answered, ANSWER_SECONDS, has_ended, pause)
    # As the scheduler and `serried show` call the nodes.
    events = [event for event in read_journal(attempt.events) if event.get("event") == JournalEvent.CONNECTED]
    hosts = {event["node"]: str(event["host"]) for event in events if {"node", "host"} <= event.keys()}
    ranks = [
        RankStacks(
            rank=entry["rank"],
            node=node,
            host=hosts.get(node) or str(found[node].get("host", "")),
            launch=entry.get("launch"),
            processes=tuple(entry["processes"]),
            omitted=entry.get("omitted", 0),
        )
        for node in sorted(found)
        for entry in found[node].get("ranks", ())
    ]
    silent = {node: hosts.get(node, "") for node in nodes if node not in found}
    return StacksAnswer(tuple(sorted(ranks, key=lambda one: (one.launch or "", one.rank))), silent)


def _until(look: Callable[[], Any], seconds: float, has_ended: Callable[[], bool], pause: float = POLL_SECONDS) -> Any:
    """The first result of `look` that is not None; None after `seconds`, or if the attempt has ended."""
    deadline = time.monotonic() + seconds
    while True:
        result = look()
        if result is not None or time.monotonic() >= deadline or has_ended():
            return result
        time.sleep(pause)


def groups(ranks: Iterable[RankStacks]) -> list[RankGroup]:
    """The ranks by the place of their main thread, the smallest group first: a rank that differs holds up the rest.

    Ranks whose stacks are unknown are groups of their own, by what is known of them.
    """
    found: dict[str, list[RankStacks]] = {}
    for one in ranks:
        key: Any = one.main_frames or [(p["wait"], p["state"], p["problems"]) for p in one.processes]
        found.setdefault(str(key), []).append(one)
    return sorted(found.values(), key=lambda group: (len(group), group[0].rank))
