"""What ranks have logged, all attempts as one curve: each step once, as the last attempt that made it did."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from serried.contract.files import read_journal
from serried.contract.layout import ElementDirectory
from serried.records.evidence import attempt_numbers

Row = dict[str, Any]
"""`attempt`, `step`, `t` (seconds since the epoch), and what was logged by its name."""

_NO_NUMBERS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
"""How `run.log` writes what JSON has no word for."""


def metrics(place: ElementDirectory, rank: int = 0) -> list[Row]:
    """The rows of `rank`, in the order of their steps; none where it has logged nothing.

    An attempt that goes on from a checkpoint makes the steps after it again: what an earlier attempt had logged from
    its first step on is dropped.
    """
    rows: list[Row] = []
    for number in attempt_numbers(place):
        made = [row for path in place.attempt(number).path.glob(f"node-*/metrics-{rank}.jsonl") for row in read(path)]
        first = made[0]["step"] if made else math.inf
        rows = [row for row in rows if row["step"] < first] + [{"attempt": number, **row} for row in made]
    return rows


def read(path: Path) -> list[Row]:
    """One file's rows, without `attempt`. What was logged of a step at several times is one row."""
    rows: list[Row] = []
    for entry in read_journal(path):
        if not isinstance(entry.get("step"), int):
            continue
        row = {name: _value(value) for name, value in entry.items()}
        if rows and rows[-1]["step"] == row["step"]:
            rows[-1].update(row)
        else:
            rows.append(row)
    return rows


def ranks(place: ElementDirectory) -> list[int]:
    """The ranks that have a file of metrics, in any attempt."""
    found = place.attempts.glob("*/node-*/metrics-*.jsonl")
    numbers = {path.stem.removeprefix("metrics-") for path in found}
    return sorted(int(number) for number in numbers if number.isdecimal())


def _value(value: Any) -> Any:
    return _NO_NUMBERS.get(value, value) if isinstance(value, str) else value
