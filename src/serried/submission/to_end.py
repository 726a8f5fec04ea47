"""A run for a command that needs its result: seen to its end, here or through the cluster's scheduler."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from serried.base.errors import RunFailed
from serried.records.record import Record
from serried.schema import names
from serried.schema.layout import RunDirectory
from serried.submission.deliver import Prepared, see_through
from serried.submission.foreground import INTERRUPTED, run_here

_TAIL = 5


@dataclass(frozen=True)
class FinishedRun:
    record: Record
    end: Mapping[str, Any]
    """Its exit.json; empty without one."""
    is_interrupted: bool
    """From this terminal."""

    @property
    def state(self) -> str:
        return str(self.end.get("state", names.UNKNOWN))

    @property
    def place(self) -> RunDirectory:
        return self.record.where

    def check(self, doing: str = "") -> None:
        """Raises RunFailed unless the run completed, and KeyboardInterrupt after an interruption."""
        if self.is_interrupted:
            raise KeyboardInterrupt
        if self.state == names.COMPLETED:
            return
        run = self.record.id
        failure = self.end.get("first_failure") or {}
        raise RunFailed(
            f"run {run}{doing and f', {doing},'} ended {self.state}: {self.end.get('message') or 'no reason is known'}",
            hint=f"serried why {run}",
            details="\n".join(failure.get("tail", ())[-_TAIL:]) or None,
        )


def run_to_end(prepared: Prepared, *, here: bool, tick: Callable[[], None] = lambda: None) -> FinishedRun:
    """Run it; call `tick` meanwhile. `here`: in the foreground, without its output, else through the scheduler."""
    if here:
        with open(os.devnull, "wb") as nowhere:  # noqa: PTH123 - no file of a project
            outcome = run_here(prepared, output=nowhere, tick=tick)
        return FinishedRun(outcome.record, outcome.end or {}, outcome.status == INTERRUPTED)
    status = see_through(prepared, tick)
    end = status.record.end or {"state": status.state, "message": status.verdict.message}
    return FinishedRun(status.record, end, is_interrupted=False)
