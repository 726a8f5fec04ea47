"""One small file by which our own processes share a scheduler's answers for a few seconds.

An answer serves until it is `max(3 s, 20 x what it took)` old, and no longer than a minute: a slow controller is asked
less often.
The last writer wins; a torn or foreign file is no answer.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from serried.fs import files
from serried.protocol.layout import state_directory

SHORTEST_SECONDS = 3.0
TIMES_AS_LONG = 20.0
LONGEST_SECONDS = 60.0


@dataclass(frozen=True)
class Answer:
    """What the scheduler's commands printed, and for which ids they were asked."""

    at: float
    took: float
    asked: tuple[str, ...]
    texts: Mapping[str, str]

    def is_fresh(self, now: float) -> bool:
        return 0 <= now - self.at < max(SHORTEST_SECONDS, min(TIMES_AS_LONG * self.took, LONGEST_SECONDS))


class Cache:
    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def of(cls, *identity: str) -> Cache:
        """The cache of one scheduler, which `identity` tells from any other that shares this home."""
        key = hashlib.sha256("\0".join(identity).encode("utf-8", "surrogateescape")).hexdigest()[:12]
        return cls(state_directory(os.environ) / "cache" / f"{key}.json")

    def get(self, now: float | None = None) -> Answer | None:
        """The last answer, if it still serves."""
        answer = _answer(files.read_json(self.path) or {})
        return answer if answer and answer.is_fresh(time.time() if now is None else now) else None

    def put(self, asked: Sequence[str], texts: Mapping[str, str], took: float, now: float | None = None) -> None:
        """Share an answer. Where that cannot be written (a full home), everybody asks for themselves."""
        value = {"at": time.time() if now is None else now, "took": took, "asked": list(asked), "texts": dict(texts)}
        with contextlib.suppress(OSError):
            files.make_directory(self.path.parent)
            files.write_json(self.path, value)

    def forget(self) -> None:
        """After we have changed something."""
        with contextlib.suppress(OSError):
            self.path.unlink()


def _answer(value: Mapping[str, Any]) -> Answer | None:
    try:
        return Answer(float(value["at"]), float(value["took"]), tuple(value["asked"]), dict(value["texts"]))
    except (KeyError, TypeError, ValueError):
        return None
