"""The settings of staged data, results and checkpoints."""

from __future__ import annotations

from dataclasses import dataclass

from serried.config import values
from serried.config.definitions.key import key
from serried.config.values import data


@dataclass(frozen=True)
class Data:
    stage: tuple[data.Item, ...] = key(
        data.ITEMS,
        "Files, folders and archives (unpacked) to copy to each node's disk before ranks start.",
        value=(),
    )
    root: str | None = key(
        values.TEXT,
        "Folder of relative paths in `stage`.",
        default="`scratch`/PROJECT, else `data` in the project's folder",
    )
    require: tuple[str, ...] = key(
        values.TEXTS, "Paths that must exist on every node, checked before ranks start.", value=(), old="in_place"
    )
    prepare: tuple[str, ...] = key(
        values.COMMAND,
        "Command that creates the data. `submit` runs it once, on this machine, in the project's folder.",
        value=(),
    )
    results: tuple[str, ...] = key(
        data.RESULTS,
        "Names and patterns of results to copy back. `$SERRIED_RESULTS_DIR` is then on the node's disk.",
        value=(),
    )
    results_every: int = key(values.DURATION, "Interval between two copies while ranks run.", default="5m", value=300)
    verify: str = key(
        data.VERIFY,
        "How to compare a copy with its source: by sizes and times, or by checksums.",
        default="`times`",
        value="times",
    )
