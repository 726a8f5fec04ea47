"""What an experiment may say about the data that goes to its nodes, and about what comes back."""

from __future__ import annotations

from dataclasses import dataclass

from serried.config import values
from serried.config.definitions.key import key
from serried.config.values import data


@dataclass(frozen=True)
class Data:
    stage: tuple[data.Item, ...] = key(
        data.ITEMS,
        "What each node gets a copy of on its own disk before ranks start; archives are unpacked. "
        "Relative paths are below `root`.",
        value=(),
    )
    root: str | None = key(
        values.TEXT,
        "Where data is that `stage` names by relative paths.",
        default="`scratch`/PROJECT, else `data` in the project's folder",
    )
    in_place: tuple[str, ...] = key(
        values.TEXTS, "Paths that only compute nodes may see; each node looks before ranks start.", value=()
    )
    prepare: tuple[str, ...] = key(
        values.COMMAND,
        "A command that makes the data: run once before submitting, on this machine, in the project's folder.",
        value=(),
    )
    results: tuple[str, ...] = key(
        data.RESULTS,
        "What of `$SERRIED_RESULTS_DIR`, then a folder on the node's disk, is brought back: names and patterns.",
        value=(),
    )
    results_every: int = key(values.DURATION, "How often that is done while ranks run.", default="5m", value=300)
    verify: str = key(
        data.VERIFY,
        "What tells whether a copy is as its source: sizes and times, or all that is in the files.",
        default="`times`",
        value="times",
    )


@dataclass(frozen=True)
class Checkpoint:
    watch: tuple[str, ...] = key(
        data.WATCHED,
        "Checkpoints that a program writes by itself: patterns, from where ranks start, or below `{checkpoints}`. "
        "Whole ones are brought to the run's checkpoints while it runs.",
        value=(),
    )
    sync_every: int = key(values.DURATION, "How often is looked for new ones.", default="30s", value=30)
    keep: int = key(values.COUNT, "How many of them stay there.", default="3", value=3)
    keep_local: int | None = key(
        values.COUNT,
        "How many stay on the node's disk: older ones are removed there when they, or `keep` newer ones, are brought.",
        default="all",
    )
    bandwidth: int | None = key(data.SIZE, "Most that is copied in a second while ranks run.", default="no limit")
