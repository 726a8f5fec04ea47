"""Whether a source still answers: a file system that is away may neither do so ever again nor say that it is."""

from __future__ import annotations

import contextlib
import time
from typing import Iterator

SILENT_SECONDS = 600.0
"""Servers that take over from others take minutes."""


class Pulse:
    def __init__(self) -> None:
        self._source = ""
        self._at = 0.0

    @contextlib.contextmanager
    def of(self, source: str) -> Iterator[None]:
        """`source` is looked at or read, and is to answer."""
        self.beat()
        self._source = source
        try:
            yield
        finally:
            self._source = ""

    def beat(self) -> None:
        """It has."""
        self._at = time.monotonic()

    @property
    def silent(self) -> str:
        """The source that has not for too long; empty where none has to, or it does."""
        return self._source if time.monotonic() - self._at > SILENT_SECONDS else ""
