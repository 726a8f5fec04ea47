"""What a training is told, its settings by dotted name: how they are written, and a name for all of them together."""

from __future__ import annotations

import hashlib
import json
from pathlib import PurePath
from typing import Any, Mapping

PLACEHOLDER = r"config\.[^{}\s:?]+"
"""Within braces in a command, `{config.lr}`."""


def spelled(value: Any) -> str:
    """A value as a command line has it: text as it is, anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def fingerprint(settings: Mapping[str, Any]) -> str:
    """Twelve characters that are the same for the same settings, on any machine: paths do not count.

    A path is a `pathlib` path, or text that begins with `/`, `~/`, `./` or `../`.
    """
    counted = {name: value for name, value in settings.items() if not _is_path(value)}
    text = json.dumps(counted, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _is_path(value: Any) -> bool:
    return isinstance(value, PurePath) or (isinstance(value, str) and value.startswith(("/", "~/", "./", "../")))
