"""A few threads that write small files: creating a file takes the kernel longer than Python needs to request it."""

from __future__ import annotations

import queue
import threading
from types import TracebackType
from typing import Callable, Generic, List, Optional, Type, TypeVar

Batch = TypeVar("Batch")

THREADS = 4
AHEAD = 8
"""Batches that wait, at most."""


class WritePool(Generic[Batch]):
    """`write` is called with what is given, by any thread and in any order; at the end with all of it, or it raises."""

    def __init__(self, write: Callable[[Batch], None]) -> None:
        self._write = write
        self._batches: "queue.Queue[Optional[Batch]]" = queue.Queue(AHEAD)
        self._threads: List[threading.Thread] = []
        self._problem: Optional[Exception] = None

    def __enter__(self) -> "WritePool[Batch]":
        return self

    def submit(self, batch: Batch) -> None:
        """Raises what one before it could not be written for."""
        if self._problem:
            raise self._problem
        while len(self._threads) < THREADS:
            self._threads.append(threading.Thread(target=self._work, daemon=True))
            self._threads[-1].start()
        self._batches.put(batch)

    def _work(self) -> None:
        while True:
            batch = self._batches.get()
            if batch is None:
                return
            if self._problem is None:
                try:
                    self._write(batch)
                except Exception as problem:  # noqa: BLE001 - `give` raises it, or the end
                    self._problem = problem

    def __exit__(
        self, kind: Optional[Type[BaseException]], value: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        for _ in self._threads:
            self._batches.put(None)
        for thread in self._threads:
            thread.join()
        if kind is None and self._problem:
            raise self._problem
