"""What is doubtful about a run that has not failed: what its agents have said of it, and what to do."""

from __future__ import annotations

from collections.abc import Mapping

from serried.fs.files import read_journal
from serried.protocol.events import JournalEvent
from serried.protocol.reasons import Reason
from serried.records.evidence import latest_attempt
from serried.records.run_status import RunStatus

STEPS: Mapping[str, tuple[str, ...]] = {
    Reason.RANKS_APART: (
        "a program for one process: ask for one, `--nodes 1 --ranks 1`",
        "a distributed one: join the other ranks by torch.distributed or `serried.train`; see docs/launchers.md",
        "Lightning: set `devices` and `num_nodes`",
        "ranks that are meant to be independent: `ranks_meet = false` in the experiment's table",
    ),
}
"""By the code of the warning."""


def warnings_of(status: RunStatus) -> tuple[Mapping[str, str], ...]:
    """An end's, or those of an attempt that runs."""
    if status.has_ended or status.summary is None or status.elements is not None:
        return status.warnings
    attempt = latest_attempt(status.record.where.element(status.element))
    events = list(read_journal(attempt.events)) if attempt else []
    if any(entry.get("event") == JournalEvent.RANKS_CONNECTED for entry in events):
        return ()
    found = (str(entry["message"]) for entry in events if entry.get("event") == Reason.RANKS_APART)
    return tuple({"code": Reason.RANKS_APART, "message": message} for message in found)
