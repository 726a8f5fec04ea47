"""A job script for sbatch or qsub -> the settings of an experiment that does the same. Pure.

An experiment says all that the script does, or runs the script. Suggestions are separate and change nothing.
"""

from __future__ import annotations

from serried.importing.reader import read
from serried.importing.report import Imported, ScriptLine, Suggestion
from serried.importing.script import MOST_BYTES
from serried.importing.to_toml import tables, text

__all__ = ["MOST_BYTES", "Imported", "ScriptLine", "Suggestion", "read", "tables", "text"]
