"""Kinds of values that only the table `environment` has."""

from __future__ import annotations

import re
from typing import Any

from serried.config.values import BadValue, Kind, free_text, text


def place(value: Any) -> str | bool:
    """A path, `true` for what Serried builds from what it finds, or `false` for none."""
    if isinstance(value, bool) or value in ("true", "false"):
        return value in (True, "true")
    return text(value)


def lines(value: Any) -> str:
    """One or more lines of a program; `false` is none."""
    if value is False or value == "false":
        return ""
    said = "\n".join(free_text(item) for item in value) if isinstance(value, list | tuple) else free_text(value)
    return said.strip("\n")


def torch(value: Any) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"cpu|xpu|(cu|rocm)[0-9.]+", value):
        raise BadValue(f"must be `cpu`, or what PyTorch calls a build: `cu126`, `rocm6.3`; not `{value}`")
    return value


def is_source(place: str) -> bool:
    """Whether a place is the file that an environment is built from, and no folder or name."""
    return place.endswith((".txt", ".toml", ".lock", ".yml", ".yaml", "/Pipfile")) or place == "Pipfile"


def is_path(place: str) -> bool:
    """Whether it says where a conda environment is, and not what it is called."""
    return "/" in place or place.startswith(("~", "$", ".")) or is_source(place)


def _show_lines(value: str) -> str:
    return value.replace("\n", "; ")


def _show_place(value: str | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else value


PLACE = Kind("path, `true` or `false`", place, show=_show_place)
NAMED_PLACE = Kind("name, path, `true` or `false`", place, show=_show_place)
LINES = Kind("text or list of lines", lines, show=_show_lines)
TORCH = Kind("`cpu`, `cu126` …", torch)
