"""Where the time of a run went since its submission: steps that were kept, and what was lost, by cause.

Goodput is "the fraction of elapsed time during which a training job is making useful progress" (docs.nvidia.com,
Cluster Readiness Engine). Here, that is the time of steps that no later attempt or round repeated. The head's journal
has the times of an attempt, and the series of rank 0 those of its steps. Each second counts once, so the parts add up.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from serried.base import NamedTuple
from serried.base.files import numbers, read_journal, read_json
from serried.base.text import seconds_of
from serried.records.record import Record
from serried.schema import series
from serried.schema.endings import End
from serried.schema.events import JournalEvent
from serried.schema.reasons import Reason
from serried.schema.series import DoneStep

HANG_SECONDS, HANG_GAPS = 60.0, 5
"""A failed round that made no step for so long, and for so many times its longest gap, had hung."""
_LOSSES = (Reason.FAILURE, Reason.LOST, Reason.SILENCE, Reason.LAUNCHER)
"""Reasons of stops that cut off a step."""
_FAILURES = (JournalEvent.RANK_FAILED, JournalEvent.NODE_LOST)


@dataclass(frozen=True)
class TimeSpent:
    """In seconds."""

    steps: float = 0.0
    """Steps that no later attempt or round repeated, with evaluations and saves in between."""
    queue: float = 0.0
    start: float = 0.0
    """Agents, data, imports and the checkpoint, up to the first step."""
    check: float = 0.0
    """Ranks waited for checks of the nodes."""
    hang: float = 0.0
    """Silence of ranks or of a node, until it was noticed."""
    repeated: float = 0.0
    """Steps that were done again later, and those that a failure cut off."""
    stop: float = 0.0
    """From a failure, a stop notice or the last step until ranks start again or the attempt ends."""
    unknown: float = 0.0
    """Ranks ran, but logged no steps."""

    @property
    def total(self) -> float:
        return float(sum(dataclasses.astuple(self)))

    @property
    def goodput(self) -> float | None:
        """The share of all time; None if the steps are not known."""
        return None if self.unknown or not self.total else self.steps / self.total

    @property
    def goodput_without_queue(self) -> float | None:
        return dataclasses.replace(self, queue=0.0).goodput

    @property
    def lost(self) -> dict[str, float]:
        """By cause, the largest first."""
        causes = dataclasses.asdict(self)
        del causes["steps"], causes["unknown"]
        return {name: causes[name] for name in sorted(causes, key=causes.__getitem__, reverse=True) if causes[name] > 0}

    def to_json(self) -> dict[str, Any]:
        parts = {f"{name}_seconds": round(value, 3) for name, value in dataclasses.asdict(self).items()}
        shares = {"goodput": self.goodput, "goodput_without_queue": self.goodput_without_queue}
        return {"total_seconds": round(self.total, 3), **parts, **shares}

    @classmethod
    def from_json(cls, value: object) -> TimeSpent | None:
        """None for what is not a summary of `to_json`."""
        found = value if isinstance(value, dict) else {}
        known = {each.name: series.number(found.get(f"{each.name}_seconds")) for each in fields(cls)}
        given = {name: seconds for name, seconds in known.items() if seconds is not None}
        return cls(**given) if len(given) == len(known) else None


class AttemptTimes(NamedTuple):
    started: float
    ended: float | None
    """None while it runs."""
    events: Sequence[Mapping[str, Any]]
    """Of the head's journal, each with a time."""
    steps: Sequence[DoneStep] = ()


@dataclass
class _Walk:
    """Through the time from `at` to `end`, in one direction: clocks of nodes differ a little."""

    at: float
    end: float
    spent: dict[str, float] = field(default_factory=dict)

    def until(self, t: float, cause: str) -> None:
        t = min(t, self.end)
        if t > self.at:
            self.spent[cause] = self.spent.get(cause, 0.0) + t - self.at
            self.at = t

    def wait_until(self, t: float, cause: str, events: Sequence[Mapping[str, Any]]) -> None:
        """Checks beside the copying of data cost nothing."""
        staged = max((it["t"] for it in events if it["event"] == JournalEvent.STAGED and it["t"] <= t), default=0.0)
        for checked in events:
            if checked["event"] == JournalEvent.CHECKED and self.at < checked["t"] <= t:
                self.until(max(checked["t"] - (series.number(checked.get("seconds")) or 0.0), staged), cause)
                self.until(checked["t"], "check")
        self.until(t, cause)


def time_spent(submitted: float, end: float, attempts: Sequence[AttemptTimes], *, has_ended: bool) -> TimeSpent:
    """From `submitted` to `end`, which is the end of the run, or now."""
    walk = _Walk(submitted, end)
    pace = _pace(attempts)
    for attempt in attempts:
        walk.until(attempt.started, "queue")
        begun = [it["t"] for it in attempt.events if it["event"] == JournalEvent.STARTING_RANKS]
        if not begun and (attempt.steps or not attempt.events):  # the journal is lost
            begun = [attempt.started]
        for go, until in zip(begun, [*begun[1:], end if attempt.ended is None else attempt.ended]):
            walk.wait_until(go, "stop" if go != begun[0] else "start", attempt.events)
            first, last = go == begun[0], until not in begun  # the end is known to the second
            inside = [it for it in attempt.events if it["t"] >= go and (last or it["t"] <= until)]
            steps = [it for it in attempt.steps if (first or it.t >= go) and (last or it.t < until)]
            _run(walk, inside, steps, until, pace)
        if attempt.ended is not None:
            walk.wait_until(attempt.ended, "stop" if begun else "start", attempt.events)
        else:
            walk.until(end, "start")
    walk.until(end, "stop" if attempts and has_ended else "queue")
    return TimeSpent(**walk.spent)


def _run(
    walk: _Walk, events: Sequence[Mapping[str, Any]], steps: Sequence[DoneStep], until: float, pace: float | None
) -> None:
    """The time of a round's ranks, until they end or are to end."""
    stop = next((it for it in events if it["event"] in (JournalEvent.STOPPING, *_FAILURES)), None)
    ended = next((it["t"] for it in events if it["event"] == JournalEvent.ALL_RANKS_ENDED), until)
    is_loss = stop is not None and (stop["event"] in _FAILURES or stop.get("reason") in _LOSSES)
    tail_ends = ended if stop is None else stop["t"]
    if pace is None:
        walk.until(tail_ends, "unknown")
        return
    if steps:
        walk.until(steps[0].t - pace * steps[0].steps, "start")
    elif stop is not None or tail_ends == walk.end:
        walk.until(tail_ends, "start")
    gaps = [HANG_SECONDS / HANG_GAPS]
    for step in steps:
        gaps.append(step.t - walk.at)
        walk.until(step.t, "steps" if step.is_kept else "repeated")
    if is_loss and stop is not None:
        is_silent = stop["event"] == JournalEvent.NODE_LOST or stop.get("reason") in (Reason.SILENCE, Reason.LOST)
        walk.until(tail_ends, "hang" if is_silent or tail_ends - walk.at > HANG_GAPS * max(gaps) else "repeated")
    walk.until(tail_ends, "steps")


def _pace(attempts: Sequence[AttemptTimes]) -> float | None:
    """The usual seconds of a step; None without steps."""
    every = [step for attempt in attempts for step in attempt.steps]
    pairs = zip(every, every[1:])
    gaps = [(b.t - a.t) / b.steps for a, b in pairs if b.step - a.step == b.steps and b.t > a.t]
    return statistics.median(gaps) if gaps else 0.0 if every else None


def time_spent_of(record: Record, task: int | None, *, now: float, ended: float | None) -> TimeSpent | None:
    """Of a run or a task. `ended` is None before its end. None before its first attempt, and without its files."""
    place = record.where.task(task)
    submitted = next((seconds_of(each.at) for each in record.submissions_of(task) if each.is_submitted), None)
    found: list[AttemptTimes] = []
    files: dict[Path, int] = {}
    order = numbers(place.attempts)
    for number in order:
        attempt = place.attempt(number)
        started = series.number((read_json(attempt.claim) or {}).get("started"))
        events = [it for it in read_journal(attempt.events) if "event" in it and series.number(it.get("t")) is not None]
        known = End.read_known(attempt.exit)
        end = seconds_of(known.ended) if known else None
        if end is None and (number != order[-1] or ended is not None):  # nothing recorded how it ended
            end = max((it["t"] for it in events), default=started)
        if started is not None:
            gos = [it for it in events if it["event"] == JournalEvent.STARTING_RANKS]
            nodes = [(it.get("nodes") or [0])[0] for it in gos] or [0]  # of rank 0
            files.update((attempt.metrics(node, 0), len(found)) for node in nodes)
            found.append(AttemptTimes(started, end, events))
    if submitted is None or not found:
        kept = read_json(record.directory.usage) if task is None and not order else None
        return TimeSpent.from_json(kept.get("time")) if kept else None
    steps = series.done(files.items())
    attempts = [each._replace(steps=[it for it in steps if it.attempt == at]) for at, each in enumerate(found)]
    return time_spent(submitted, now if ended is None else ended, attempts, has_ended=ended is not None)
