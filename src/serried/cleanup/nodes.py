"""What dead jobs have left on nodes' disks, removed now, by a small job on each."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from serried.cleanup.disk_items import Known
from serried.errors import SerriedError, UsageError
from serried.records.run_status import RunStatus
from serried.submission import node_jobs
from serried.submission.node_jobs import Errand

JOURNAL = "tidy.jsonl"


@dataclass(frozen=True)
class Left:
    """A folder on a node."""

    host: str
    name: str
    stays: str
    """Why it does; empty for what went, or would go."""


Heed = Callable[[str, list[Left] | SerriedError], None]


def sweep(known: Known, hosts: Sequence[str], heed: Heed, observe: node_jobs.Observe, *, dry: bool) -> None:
    """`heed` hears what was found on each, or why its job could not run; it is queued and paid for as your newest run.

    Raises UsageError where none was there, before any is sent.
    """
    folders, several = [], []
    for host in hosts:
        status = _newest_on(known, host)
        folder = status.record.where.path / f"tidying-{os.urandom(4).hex()}"
        role = ("tidy", str(folder / JOURNAL), *(["--dry-run"] if dry else []))
        folders.append(folder)
        several.append(Errand(known.plans[status.record.id], host, role, folder / JOURNAL))

    def settle(number: int, answer: node_jobs.Answer) -> None:
        host = hosts[number]
        if isinstance(answer, SerriedError):
            heed(host, answer)
        else:
            heed(host, [Left(host, str(name), str(stays)) for name, stays in answer["found"]])

    try:
        node_jobs.send_all(several, settle, observe)
    finally:
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)


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
