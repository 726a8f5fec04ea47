"""What the last lines of a rank's output say about why it ended."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, Dict, List, Optional

from serried.protocol import failure_report

LINES = 20
WINDOW = 16384

SIGNS = (
    ("out-of-memory", re.compile(r"OutOfMemoryError|CUDA out of memory|^MemoryError\b|std::bad_alloc|^Killed$")),
    ("import-error", re.compile(r"^(ModuleNotFoundError|ImportError): ")),
    ("command-not-found", re.compile(r"^\S*bash: line \d+: .*: command not found$")),
)
"""In the order in which they are believed."""

PEER_LOST = "peer-lost"
"""The rank failed because another one had gone, of which no failure is known."""


def read_tail(path: Path, count: int = LINES) -> List[str]:
    """The last `count` lines of a file of any size and content."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - WINDOW))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return []
    lines = text.replace("\r\n", "\n").rstrip("\n").split("\n")
    return [line.rpartition("\r")[2] for line in lines][-count:] if text else []


def has_stumbled(log: Path) -> bool:
    """Whether a rank that failed has only lost another, by its last exception. Stacks of its threads may follow."""
    return failure_report.ends_with_a_lost_peer(read_tail(log, WINDOW))


def cause(exit_: Dict[str, Any], tail: List[str]) -> str:
    """One word for why the rank of `exit_` ended: what the agent saw, else what its output says, else its status."""
    if exit_.get("problem"):
        return str(exit_["problem"])
    if exit_.get("oom"):
        return "out-of-memory"
    usual = PEER_LOST if exit_.get("stumbled") else "signal" if exit_.get("signal") else "exit"
    return _from_text(tail) or usual


def _from_text(tail: List[str]) -> Optional[str]:
    for word, pattern in SIGNS:
        if any(pattern.search(line) for line in tail):
            return word
    return None
