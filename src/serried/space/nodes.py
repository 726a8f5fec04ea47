"""What dead jobs have left on a node's disk, removed now, by a small job there."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass

from serried.errors import UsageError
from serried.records.run_status import RunStatus
from serried.space.things import Known
from serried.submission import errands
from serried.submission.errands import Errand

JOURNAL = "tidy.jsonl"


@dataclass(frozen=True)
class Left:
    """A folder on a node."""

    host: str
    name: str
    stays: str
    """Why it does; empty for what went, or would go."""


def sweep(known: Known, host: str, observe: Callable[[str], None], *, dry: bool) -> list[Left]:
    """What was found on `host`. The job is queued and paid for as your newest run there was.

    Raises UsageError where none was, SerriedError where the job could not run.
    """
    status = _newest_on(known, host)
    plan = known.plans[status.record.id]
    folder = status.record.where.path / f"tidying-{os.urandom(4).hex()}"
    role = ("tidy", str(folder / JOURNAL), *(["--dry-run"] if dry else []))
    try:
        told = errands.send(Errand(plan, host, role, folder / JOURNAL), observe)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return [Left(host, str(name), str(stays)) for name, stays in told["found"]]


def _newest_on(known: Known, host: str) -> RunStatus:
    """Its directory has the agent that we know how to start there."""
    fitting = [
        status
        for status in known.statuses
        if host in status.node_names and status.record.id in known.plans and status.record.where.agent.exists()
    ]
    if not fitting:
        raise UsageError(
            f"no run of yours that still has its directory was on `{host}`",
            hint="`serried show RUN` has the nodes of a run; your next job there removes what others have left",
        )
    return max(fitting, key=lambda status: status.created)
