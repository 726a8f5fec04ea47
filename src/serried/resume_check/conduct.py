"""Runs a training for a rehearsal: uninterrupted, or asked to stop, from outside, when its ranks wait for that."""

from __future__ import annotations

import dataclasses
import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from serried.builds import Observe, silent
from serried.fs.files import Journal
from serried.protocol import names
from serried.protocol.layout import ElementDirectory, RunDirectory
from serried.protocol.reasons import Reason
from serried.records import logs
from serried.records.evidence import attempt_numbers
from serried.records.record import Record
from serried.resume_check import traces
from serried.resume_check.curves import Curves
from serried.resume_check.traces import Trace
from serried.submission.deliver import see_through
from serried.submission.foreground import INTERRUPTED, run_here
from serried.submission.prepare import prepare
from serried.submission.prepared import Prepared
from serried.submission.request import Request, decide

WHOLE, STOPPED = "whole", "stopped"

Observer = Callable[[int, int], None]
"""Hears the step that rank 0 has come to, and how often it was stopped."""


@dataclass(frozen=True)
class Take:
    """One run of the training, ended."""

    record: Record
    end: Mapping[str, Any]
    """Its exit.json; empty where there is none."""
    is_interrupted: bool
    """From this terminal."""

    @property
    def state(self) -> str:
        return str(self.end.get("state", names.UNKNOWN))

    @property
    def place(self) -> RunDirectory:
        return self.record.where

    def curves(self) -> Curves:
        return {rank: logs.metrics(self.place, rank) for rank in logs.ranks_with_metrics(self.place)}

    def traces(self) -> list[Trace]:
        return traces.read(self.place)


def prepare_take(
    request: Request,
    kind: str,
    stops: Sequence[int],
    steps: int,
    directory: Path,
    *,
    observe: Observe | None = silent,
) -> Prepared:
    """All that one run needs, checked before anything is touched. It ends after `steps`; 0 is when it ends by itself.

    `observe` is as for `prepare`. Raises UsageError.
    """
    asked = request.with_setting("limit.restarts", value=len(stops)).with_setting("limit.total_time", value="off")
    decided = decide(asked, directory, os.environ)
    plan = decided.plan
    variables = {**plan.environment.env, names.REHEARSAL: str(list(stops))}
    plan = dataclasses.replace(
        plan,
        name=f"{plan.name}.{kind}",
        smoke=steps,
        notify=None,
        environment=plan.environment._replace(env=variables),
    )
    return prepare(plan, decided.resolved, os.environ, observe=observe)


def choose_stops(steps: int, count: int, seed: int) -> list[int]:
    """After which of a training's steps it is stopped: `count` different ones, never the last."""
    return sorted(random.Random(seed).sample(range(1, steps), count))  # noqa: S311 - to be had again by the seed


def perform(prepared: Prepared, *, here: bool, observe: Observer) -> Take:
    """Run it to its end, and ask it to stop whenever its ranks wait for that.

    `here`: in the foreground, in this process; else through the cluster's scheduler.
    """
    caller = Prompter(RunDirectory(Path(prepared.plan.directory)), observe)
    if here:
        with open(os.devnull, "wb") as nowhere:  # noqa: PTH123 - no file of a project
            outcome = run_here(prepared, output=nowhere, tick=caller.tick)
        return Take(outcome.record, outcome.end or {}, outcome.status == INTERRUPTED)
    status = see_through(prepared, caller.tick)
    end = status.record.end or {"state": status.state, "message": status.verdict.message}
    return Take(status.record, end, is_interrupted=False)


class Prompter:
    """Looks at rank 0's trace, and asks the attempt to stop once for each time that it waits."""

    def __init__(self, place: ElementDirectory, observe: Observer) -> None:
        self._place = place
        self._observe = observe
        self._asked: set[int] = set()
        self._seen = (-1, -1)

    def tick(self) -> None:
        numbers = attempt_numbers(self._place)
        if not numbers:
            return
        last = traces.last_event(self._place, numbers[-1])
        if last is None:
            return
        if last["event"] == "waiting" and numbers[-1] not in self._asked:
            self._asked.add(numbers[-1])
            self._ask(numbers[-1])
        seen = (int(last["step"]), len(self._asked))
        if seen != self._seen:
            self._seen = seen
            self._observe(*seen)

    def _ask(self, attempt: int) -> None:
        journal = Journal(self._place.attempt(attempt).control)
        request = {"request": "stop", "reason": Reason.LIMIT, "save": True, "by": "serried rehearse"}
        journal.append({"t": time.time(), **request})
        journal.close()
