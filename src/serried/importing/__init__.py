"""A job script for sbatch or qsub -> the settings that do the same, and what became of each of its lines. Pure."""

from __future__ import annotations

from serried.importing.assemble import read
from serried.importing.report import LEFT, NEEDLESS, TAKEN, Imported, ImportedExperiment, Line
from serried.importing.script import MOST_BYTES
from serried.importing.to_toml import submits, text

__all__ = [
    "LEFT",
    "MOST_BYTES",
    "NEEDLESS",
    "TAKEN",
    "Imported",
    "ImportedExperiment",
    "Line",
    "read",
    "submits",
    "text",
]
