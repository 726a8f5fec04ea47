"""A run whose ranks profile some of their steps. It is stopped once they have."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

from serried.base.errors import UsageError
from serried.records import profiles, stopping
from serried.records.index import Selection
from serried.records.profiles import Wanted
from serried.records.record import Record
from serried.schema import names
from serried.schema.layout import RunDirectory
from serried.schema.reasons import Reason
from serried.submission.builds import Observe, silent
from serried.submission.deliver import Prepared
from serried.submission.prepare import prepare
from serried.submission.request import Request, decide


def prepare_profile(request: Request, wanted: Wanted, directory: Path, *, observe: Observe | None = silent) -> Prepared:
    """The run, without a change to anything. Raises UsageError, also if a rank to profile does not exist."""
    asked = dataclasses.replace(request, array="off").with_setting("limit.restarts", value=0)
    decided = decide(asked, directory, os.environ)
    plan = decided.plan
    missing = [rank for rank in wanted.ranks if rank >= plan.world_size and plan.script is None]
    if missing:
        ranks = "only rank 0" if plan.world_size == 1 else f"ranks 0 to {plan.world_size - 1}"
        raise UsageError(f"rank {missing[0]} does not exist: the run has {ranks}", hint="--rank 0")
    environment = plan.environment._replace(env={**plan.environment.env, names.PROFILE: wanted.to_text()})
    plan = plan._replace(name=f"{plan.name}.profile", notify=None, environment=environment)
    return prepare(plan, decided.resolved, os.environ, observe=observe)


class Stopper:
    """Ends the run once each chosen rank has its profile, or its profiler has failed."""

    def __init__(self, run: str, directory: str, wanted: Wanted) -> None:
        self._run = run
        self._place = RunDirectory(Path(directory))
        self._wanted = wanted
        self.has_stopped = False

    def tick(self) -> None:
        if self.has_stopped or not self._place.profiles.is_dir():
            return
        if all(
            one.state in (profiles.WRITTEN, profiles.FAILED) for one in profiles.read(self._place, self._wanted.ranks)
        ):
            self.has_stopped = True
            stopping.send_request(Selection(Record.load(self._run)), save=False, reason=Reason.PROFILED)
