"""The traces that ranks write during a check (`serried.train.resume_trace`), and the states that were not restored."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from serried.base.files import read_journal
from serried.records.evidence import attempt_numbers
from serried.records.logs import last_lines
from serried.schema.layout import TaskDirectory

Event = dict[str, Any]

GIVEN, RANDOM, TORCHS, OTHER, ORDER = "given", "random", "torch", "other", "order"
"""Roles of a state: given to `run.checkpoints`; random numbers; torch's kinds, as an optimizer; any other; and the
order in which gradients are added, which belongs to torch and not to the script."""


@dataclass(frozen=True)
class Lost:
    """A state that differs between the stop of a run and its resumption."""

    step: int
    rank: int
    name: str
    kind: str
    role: str

    @property
    def is_grave(self) -> bool:
        """Whether a training needs it to resume, even if no loss has shown that yet."""
        return self.role in (GIVEN, TORCHS)


class Trace:
    """One rank's events, in one list for each attempt."""

    def __init__(self, rank: int, attempts: Sequence[list[Event]]) -> None:
        self.rank = rank
        self.attempts = attempts

    @property
    def events(self) -> Iterator[Event]:
        for attempt in self.attempts:
            yield from attempt

    def of(self, kind: str) -> list[Event]:
        return [event for event in self.events if event.get("event") == kind]

    @property
    def steps(self) -> int:
        """The number of steps after which the training has checked for a stop notice."""
        return max((event["step"] for event in self.of("step")), default=0)

    @property
    def stops(self) -> list[int]:
        return [event["step"] for event in self.of("stop")]

    def batches(self) -> dict[int, str]:
        """The digest of the model's input in each step, by the last attempt that took the step."""
        return {event["step"]: event["batch"] for event in self.of("step") if event.get("batch")}

    def lost(self) -> Iterator[Lost]:
        """Compare each stop with the beginning of the attempt after it."""
        for before, after in zip(self.attempts, self.attempts[1:], strict=False):
            stop = next((event for event in before if event["event"] == "stop"), None)
            begin = next((event for event in after if event["event"] == "begin"), None)
            if stop is None or begin is None:
                continue
            came_back = {key: entry["digest"] for key, entry in _keyed(begin["states"])}
            for key, entry in _keyed(stop["states"]):
                if came_back.get(key, entry["digest"]) != entry["digest"]:
                    yield Lost(stop["step"], self.rank, entry["name"], entry["kind"], entry["role"])


def _keyed(states: Sequence[dict[str, str]]) -> Iterator[tuple[tuple[str, str, str, int], dict[str, str]]]:
    """By what the script calls it; where several are called alike, or nothing, by its number among those."""
    counts: dict[tuple[str, str, str], int] = {}
    for entry in states:
        what = (entry["role"], entry["kind"], entry["name"])
        counts[what] = counts.get(what, 0) + 1
        yield (*what, counts[what]), entry


def path_of(place: TaskDirectory, attempt: int, rank: int = 0, node: int = 0) -> Path:
    return place.attempt(attempt).node(node) / f"rehearsal-{rank}.jsonl"


def read(place: TaskDirectory) -> list[Trace]:
    """The traces of all ranks, in order."""
    numbers = attempt_numbers(place)
    names = {path.name for path in place.attempts.glob("*/node-*/rehearsal-*.jsonl")}
    ranks = sorted(int(name[len("rehearsal-") : -len(".jsonl")]) for name in names)
    return [Trace(rank, [_events(place, number, rank) for number in numbers]) for rank in ranks]


def _events(place: TaskDirectory, attempt: int, rank: int) -> list[Event]:
    found = place.attempt(attempt).path.glob(f"node-*/rehearsal-{rank}.jsonl")
    return [event for path in found for event in read_journal(path) if "event" in event and "step" in event]


def last_event(place: TaskDirectory, attempt: int) -> Event | None:
    """What rank 0 wrote last."""
    for line in last_lines(path_of(place, attempt), 1):
        with contextlib.suppress(ValueError):
            event = json.loads(line)
            return event if isinstance(event, dict) and "event" in event and "step" in event else None
    return None


def lost(traces: Sequence[Trace]) -> list[Lost]:
    """Each state once, where it was first missed: by rank 0, if by that too."""
    first: dict[tuple[str, str, str], Lost] = {}
    for one in sorted((one for trace in traces for one in trace.lost()), key=lambda one: (one.step, one.rank)):
        first.setdefault((one.role, one.kind, one.name), one)
    return list(first.values())


def first_other_batch(whole: Sequence[Trace], stopped: Sequence[Trace]) -> tuple[int, int] | None:
    """The first step, and its rank, in which the model was given something else."""
    others = []
    for one, other in zip(whole, stopped, strict=False):
        left, right = one.batches(), other.batches()
        others += [(step, one.rank) for step in left.keys() & right.keys() if left[step] != right[step]]
    return min(others, default=None)
