"""What ranks have logged, all attempts as one curve: each step once, as the last attempt that made it did."""

from __future__ import annotations

import math
from typing import Any

from serried.fs.files import read_journal
from serried.protocol.layout import ElementDirectory
from serried.records.evidence import attempt_numbers

Row = dict[str, Any]
"""`attempt`, `step`, `t` (seconds since the epoch), and what was logged by its name."""

_NO_NUMBERS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
"""How `run.log` writes what JSON has no word for."""


def metrics(place: ElementDirectory, rank: int = 0) -> list[Row]:
    """The rows of `rank`, in the order of their steps; none where it has logged nothing.

    An attempt that goes on from a checkpoint makes the steps after it again: what an earlier attempt had logged of
    those is dropped.
    """
    rows: list[Row] = []
    for number in attempt_numbers(place):
        for path in place.attempt(number).path.glob(f"node-*/metrics-{rank}.jsonl"):
            rows = _continued(rows, read_journal(path), number)
    return rows


def _continued(rows: list[Row], entries: list[dict[str, Any]], attempt: int) -> list[Row]:
    """`rows`, and what `attempt` has logged after them. What was logged of a step at several times is one row."""
    made = [entry for entry in entries if isinstance(entry.get("step"), int)]
    if not made:
        return rows
    resumed = entries[0].get("resumed")
    last = resumed if isinstance(resumed, int) else made[0]["step"] - 1
    joined = [row for row in rows if row["step"] <= last]
    for entry in made:
        row = {"attempt": attempt, **{name: _value(value) for name, value in entry.items()}}
        if joined and joined[-1]["step"] == row["step"]:
            joined[-1] = {**joined[-1], **row}
        else:
            joined.append(row)
    return joined


def ranks(place: ElementDirectory) -> list[int]:
    """The ranks that have a file of metrics, in any attempt."""
    found = place.attempts.glob("*/node-*/metrics-*.jsonl")
    numbers = {path.stem.removeprefix("metrics-") for path in found}
    return sorted(int(number) for number in numbers if number.isdecimal())


def _value(value: Any) -> Any:
    return _NO_NUMBERS.get(value, value) if isinstance(value, str) else value
