"""The settings of a training by dotted name: their text on a command line, and a hash of all of them."""

from __future__ import annotations

import json
from pathlib import PurePath
from typing import Any, Mapping


def spelled(value: Any) -> str:
    """A value for a command line: text unchanged, any other value as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def as_argument(value: Any) -> str:
    """A value as W&B passes it: text unchanged, `True`, `None` and numbers as Python, lists and tables as JSON."""
    if isinstance(value, str):
        return value
    return str(value) if _is_simple(value) else json.dumps(value, ensure_ascii=False)


def _is_simple(value: Any) -> bool:
    return value is None or isinstance(value, (bool, int, float))


def fingerprint(settings: Mapping[str, Any]) -> str:
    """A hash of twelve characters, equal for equal settings on any machine. Paths do not count.

    A path is a `pathlib` path, or text that begins with `/`, `~/`, `./` or `../`.
    """
    without_paths = {name: value for name, value in settings.items() if not _is_path(value)}
    text = json.dumps(without_paths, sort_keys=True, default=str)
    import hashlib

    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _is_path(value: Any) -> bool:
    return isinstance(value, PurePath) or (isinstance(value, str) and value.startswith(("/", "~/", "./", "../")))
