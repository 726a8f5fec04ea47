"""Detects a source that stopped answering: an unreachable file system may block a read forever."""

from __future__ import annotations

import contextlib
import time
from typing import Iterator

SILENT_SECONDS = 600.0
"""Servers that take over from others take minutes."""


class Watchdog:
    def __init__(self) -> None:
        self._source = ""
        self._answered_at = 0.0

    @contextlib.contextmanager
    def watch(self, source: str) -> Iterator[None]:
        """`source` is looked at or read, and is to answer."""
        self.beat()
        self._source = source
        try:
            yield
        finally:
            self._source = ""

    def beat(self) -> None:
        """It has."""
        self._answered_at = time.monotonic()

    @property
    def silent_source(self) -> str:
        """The source that has not for too long; empty where none has to, or it does."""
        return self._source if time.monotonic() - self._answered_at > SILENT_SECONDS else ""
