"""The metrics that ranks log by `run.log`, joined over the attempts of a run or task."""

from __future__ import annotations

import math
from typing import Any, Dict, List

from serried.fs import files
from serried.protocol.layout import TaskDirectory

Row = Dict[str, Any]
"""`attempt`, `step`, `t` (seconds since the epoch), and the logged values by name."""

_NOT_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
"""How `run.log` writes the numbers that JSON lacks."""


def metrics(place: TaskDirectory, rank: int = 0) -> List[Row]:
    """The logged metrics of `rank` in all attempts as one curve, in the order of steps.

    An attempt that resumes from a checkpoint repeats the steps after it: the rows of earlier attempts for those
    steps are dropped.
    """
    rows: List[Row] = []
    for number in files.numbers(place.attempts):
        for path in place.attempt(number).path.glob(f"node-*/metrics-{rank}.jsonl"):
            rows = _continued(rows, files.read_journal(path), number)
    return rows


def values_of(entry: Row) -> Row:
    """An entry of the file, with numbers in place of the texts for those that JSON lacks."""
    return {name: _NOT_FINITE.get(value, value) if isinstance(value, str) else value for name, value in entry.items()}


def _continued(rows: List[Row], entries: List[Row], attempt: int) -> List[Row]:
    """`rows`, and the entries of `attempt` after them. Several entries for one step are one row."""
    steps = [entry for entry in entries if isinstance(entry.get("step"), int)]
    if not steps:
        return rows
    resumed = entries[0].get("resumed")
    last = resumed if isinstance(resumed, int) else steps[0]["step"] - 1
    joined = [row for row in rows if row["step"] <= last]
    for entry in steps:
        row = {"attempt": attempt, **values_of(entry)}
        if joined and joined[-1]["step"] == row["step"]:
            joined[-1] = {**joined[-1], **row}
        else:
            joined.append(row)
    return joined
