"""What a check of resuming finds: the curves and traces of two runs in, a judgement out.

Ranks write the traces during a check (`serried.train.resume_trace`). They tell which states were not restored.
"""

from __future__ import annotations

import contextlib
import fnmatch
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from serried.base.errors import SerriedError
from serried.base.files import read_journal
from serried.records.logs import last_lines
from serried.records.status import attempt_numbers
from serried.schema.layout import TaskDirectory
from serried.schema.series import OWN, LoggedStep

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
        for before, after in zip(self.attempts, self.attempts[1:]):
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


def read(place: TaskDirectory) -> list[Trace]:
    numbers = attempt_numbers(place)
    names = {path.name for path in place.attempts.glob("*/node-*/rehearsal-*.jsonl")}
    traces = []
    for rank in sorted(int(name[len("rehearsal-") : -len(".jsonl")]) for name in names):
        attempts = []
        for number in numbers:
            paths = place.attempt(number).path.glob(f"node-*/rehearsal-{rank}.jsonl")
            events = [event for path in paths for event in read_journal(path)]
            attempts.append([event for event in events if "event" in event and "step" in event])
        traces.append(Trace(rank, attempts))
    return traces


def last_event(place: TaskDirectory, attempt: int) -> Event | None:
    for line in last_lines(place.attempt(attempt).node(0) / "rehearsal-0.jsonl", 1):
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
    for one, other in zip(whole, stopped):
        left, right = one.batches(), other.batches()
        others += [(step, one.rank) for step in left.keys() & right.keys() if left[step] != right[step]]
    return min(others, default=None)


Curves = Mapping[int, Sequence[LoggedStep]]
"""The metrics of each rank."""

_TIMING = frozenset(
    {"time", "seconds", "second", "secs", "sec", "ms", "duration", "elapsed", "eta", "wait", "timestamp", "date"}
    | {"throughput", "speed", "fps", "memory", "mem"}
)
"""Words in names of metrics that measure speed, not learning."""

_ELSEWHERE_TOLERANCE = 1e-3
"""Relative; other devices than CPUs add in an order that changes from run to run."""

_ROUNDING = 1e-5
"""Relative: the change by another order of addition, in single precision, in the first step that shows it."""


@dataclass(frozen=True)
class Difference:
    step: int
    rank: int
    name: str
    """The metric; empty if one of the runs has not logged the step at all."""
    whole: Any
    """The value of the uninterrupted run; None if it has none."""
    stopped: Any


@dataclass(frozen=True)
class Comparison:
    ranks: int
    steps: int
    """Steps of all ranks' curves that were compared."""
    values: int
    left_out: tuple[str, ...]
    """Names that were not compared."""
    differences: tuple[Difference, ...]
    """In the order of their steps."""


def compare(whole: Curves, stopped: Curves, *, tolerance: float = 0.0, ignore: Sequence[str] = ()) -> Comparison:
    """Compare every value of every rank and step. `tolerance` is relative, 0 is bit by bit; `ignore` are patterns."""
    found: list[Difference] = []
    steps: set[int] = set()
    values = 0
    left_out: set[str] = set()
    ranks = sorted(whole.keys() | stopped.keys())
    for rank in ranks:
        left, right = (
            {
                point.step: {name: value for name, value in point.values.items() if not name.startswith(OWN)}
                for point in curves.get(rank, ())
            }
            for curves in (whole, stopped)
        )
        for step in sorted(left.keys() | right.keys()):
            names = left.get(step, {}).keys() | right.get(step, {}).keys()
            skipped = {name for name in names if is_left_out(name, ignore)}
            left_out |= skipped
            steps.add(step)
            if step not in left or step not in right:
                found.append(Difference(step, rank, "", left.get(step), right.get(step)))
                continue
            for name in sorted(names - skipped):
                values += 1
                one, other = left[step].get(name), right[step].get(name)
                if not _are_equal(one, other, tolerance):
                    found.append(Difference(step, rank, name, one, other))
    found.sort(key=lambda difference: (difference.step, difference.rank, difference.name))
    return Comparison(len(ranks), len(steps), values, tuple(sorted(left_out)), tuple(found))


def is_left_out(name: str, ignore: Sequence[str] = ()) -> bool:
    """Whether `name` is ignored or measures speed: `images_per_second`, `step_time`, `gpu/memory`."""
    if any(fnmatch.fnmatchcase(name, pattern) for pattern in ignore):
        return True
    words = set(re.split(r"[^a-z0-9]+", name.lower()))
    return bool(words & _TIMING) or name.lower().endswith("/s")


def _are_equal(one: Any, other: Any, tolerance: float) -> bool:
    if not (isinstance(one, (int, float)) and isinstance(other, (int, float))):
        return bool(one == other)
    if math.isnan(one) or math.isnan(other):
        return math.isnan(one) and math.isnan(other)
    if one == other:
        # 0.0 and -0.0 differ in their bits, and in the result of a division by them.
        return tolerance > 0 or math.copysign(1, one) == math.copysign(1, other)
    return tolerance > 0 and math.isclose(one, other, rel_tol=tolerance)


@dataclass(frozen=True)
class Judgement:
    comparison: Comparison
    stops: tuple[int, ...]
    """The steps after which it was stopped."""
    tolerance: float
    lost: tuple[Lost, ...]
    """States that were not restored as they had been."""
    other_batch: tuple[int, int] | None
    """The first step in which the model received another batch, and its rank."""

    @property
    def is_exact(self) -> bool:
        return not self.comparison.differences and not any(one.is_grave for one in self.lost)


def check_whole(curves: Curves, found: Sequence[Trace], stops: int, ignore: Sequence[str] = ()) -> int:
    """The number of steps of the uninterrupted training. Raises SerriedError if there is nothing to compare."""
    if not any(curves.values()):
        hint = "a training logs by `run.log(loss=loss)` of `serried.train`, once a step"
        raise SerriedError("nothing to compare: no rank has logged anything", hint=hint)
    if compare(curves, curves, ignore=ignore).values == 0:
        hint = "log the loss: `run.log(loss=loss)`"
        raise SerriedError("nothing to compare: all logged metrics measure speed, not learning", hint=hint)
    steps = min((trace.steps for trace in found), default=0)
    if steps == 0:
        message = "the training never checks for a stop notice, so it cannot be stopped and resumed"
        hint = "call `ckpt.step()` once a step, and exit when it is true: see `serried docs train-session`"
        raise SerriedError(message, hint=hint)
    if steps <= stops:
        hint = f"at most `--stops {steps - 1}`, or a longer training" if steps > 1 else "a longer training"
        raise SerriedError(f"the training takes {steps} step{'s' * (steps > 1)}, too few for {stops} stops", hint=hint)
    return steps


def check_stopped(found: Sequence[Trace], planned: Sequence[int], state: str) -> None:
    """Raises SerriedError if the training was not stopped after the planned steps."""
    stops = found[0].stops if found else []
    if stops == list(planned):
        return
    if not stops and found and found[0].of("waiting"):
        message = f"the training waited for a stop notice after step {planned[0]}, and did not see it"
        hint = "serried why last explains its end; a file system that shows changes late may be the reason"
        raise SerriedError(message, hint=hint)
    done = ", ".join(map(str, stops)) or "none"
    raise SerriedError(
        f"stops were planned after steps {', '.join(map(str, planned))}, and took place after {done}; it ended {state}",
        hint="at a stop notice, a training saves all and leaves the session: `if ckpt.step(): return`",
    )


def judge(
    whole: Curves,
    stopped: Curves,
    traces_of_whole: Sequence[Trace],
    traces_of_stopped: Sequence[Trace],
    *,
    tolerance: float | None,
    ignore: Sequence[str],
) -> Judgement:
    """`tolerance` None: bit by bit on CPUs, `_ELSEWHERE_TOLERANCE` if any rank had another device."""
    if tolerance is None:
        devices = {event["device"] for trace in traces_of_whole for event in trace.of("begin")}
        tolerance = 0.0 if devices <= {"cpu"} else _ELSEWHERE_TOLERANCE
    return Judgement(
        compare(whole, stopped, tolerance=tolerance, ignore=ignore),
        tuple(traces_of_stopped[0].stops),
        tolerance,
        tuple(lost(traces_of_stopped)),
        first_other_batch(traces_of_whole, traces_of_stopped),
    )


def is_rounding(one: Difference) -> bool:
    """Whether both runs logged the same number except for its last digits."""
    numbers = [value for value in (one.whole, one.stopped) if isinstance(value, (int, float))]
    return len(numbers) == 2 and math.isclose(*numbers, rel_tol=_ROUNDING)


def explain(one: Lost) -> str:
    """The lost state, and what to do, in a line."""
    if one.role == RANDOM:
        what = {"torch": "torch's", "python": "Python's", "numpy": "numpy's"}.get(one.name, f"{one.name}'s")
        return (
            f"{what} random numbers were others when training resumed after step {one.step}: something draws "
            "from them between `run.checkpoints` and the loop"
        )
    if one.role == ORDER:
        return (
            f"gradients of `{one.name}` were added in another order right after step {one.step}, until {one.kind} had "
            "rebuilt its buckets: torch's rounding, and no state of the script (serried docs train-checkpoints)"
        )
    if one.role == GIVEN:
        return f"`{one.name}` ({one.kind}) was restored with other values after step {one.step}: its `load_state_dict`"
    return f"`{one.name}` ({one.kind}) was not restored after step {one.step}: give it to `run.checkpoints`"
