"""The end of a run in its record: written by the first reader that is certain of it, read by all later ones."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from serried.protocol import SCHEMA, names, reasons
from serried.protocol.times import iso, seconds_of
from serried.records import arrays
from serried.records.documents import RecordUnreadable
from serried.records.evidence import Evidence
from serried.records.record import Record
from serried.records.run_status import RunStatus
from serried.records.verdict import Verdict
from serried.schedulers.indices import expand

_FOR_GOOD_SECONDS = 86400.0
"""A file system may be away for hours: an end without proof, LOST above all, is written down after a day."""


def keep(state: RunStatus, evidence: Evidence, now: float) -> RunStatus:
    """Write the end into the record where nothing can change it any more."""
    verdict = state.verdict
    since = verdict.since
    old = verdict.has_ended and since is not None and now - since > _FOR_GOOD_SECONDS
    if not verdict.settled and not old:
        return state
    document: dict[str, Any] = {
        **evidence.document,
        "schema": SCHEMA,
        "run": state.record.id,
        "element": None,
        "job": state.job,
        "attempts": state.attempt,
        "state": verdict.state,
        "exit_code": verdict.exit_code,
        "cause": verdict.cause,
        "message": verdict.message,
        "ended": iso(since),
    }
    document["conditions"] = [*verdict.conditions] or reasons.conditions({**document, "conditions": None})
    if state.started is not None:
        document.setdefault("started", iso(state.started))
    document.setdefault("seconds", state.seconds)
    if state.elements is not None:
        document["elements"] = arrays.ranges_by_state(state.elements)
    with contextlib.suppress(OSError):  # a full home must not hide how a run ended
        state.record.write_end(document)
    return state


def read(record: Record) -> RunStatus:
    """From the record alone: one file."""
    end = record.end or {}
    code, attempts = end.get("exit_code"), end.get("attempts", end.get("attempt"))
    verdict = Verdict(
        state=str(end.get("state", names.UNKNOWN)),
        exit_code=code if isinstance(code, int) else None,
        cause=end.get("cause"),
        message=str(end.get("message") or ""),
        since=seconds_of(end.get("ended")),
        settled=True,
        conditions=tuple(reasons.conditions(end)),
    )
    return RunStatus(
        record,
        record.summary,
        verdict,
        job=end.get("job"),
        attempt=attempts if isinstance(attempts, int) else None,
        started=seconds_of(end.get("started")),
        seconds=end.get("seconds"),
        node_names=node_names(end),
        elements=_elements(record, end),
        warnings=warnings(end),
    )


def _elements(record: Record, end: Mapping[str, Any]) -> dict[int, Verdict] | None:
    by_state = end.get("elements")
    if not isinstance(by_state, dict):
        return None
    try:
        states = {index: state for state, text in by_state.items() for index in expand(text)}
    except (ValueError, AttributeError) as error:
        raise RecordUnreadable(f"exit.json of run `{record.id}` makes no sense ({error})") from error
    return {index: Verdict(states[index], settled=True) for index in sorted(states)}


def node_names(document: Mapping[str, Any]) -> tuple[str, ...]:
    nodes = document.get("nodes")
    return tuple(str(node) for node in nodes) if isinstance(nodes, list) else ()


def warnings(document: Mapping[str, Any]) -> tuple[Mapping[str, str], ...]:
    """Those of an exit.json."""
    found = document.get("warnings")
    entries = found if isinstance(found, list) else []
    return tuple(one for one in entries if isinstance(one, dict) and isinstance(one.get("message"), str))
