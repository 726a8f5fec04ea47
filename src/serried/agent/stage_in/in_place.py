"""Data that is read in place: each node checks before its ranks start that it can read the paths."""

from __future__ import annotations

import os
from typing import Any, Mapping


def problem(plan: Mapping[str, Any]) -> str:
    """What is wrong with the first path that cannot be read on this node; empty where all can."""
    for path in (plan.get("data") or {}).get("in_place", ()):
        try:
            os.stat(path)
        except OSError as error:
            return f"data: `{path}` is not there" if _is_absent(error) else f"data: `{path}`: {error.strerror}"
        if not os.access(path, os.R_OK):
            return f"data: `{path}` cannot be read"
    return ""


def _is_absent(error: OSError) -> bool:
    return isinstance(error, (FileNotFoundError, NotADirectoryError))
