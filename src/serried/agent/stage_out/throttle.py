"""Limits a copy: bandwidth, a deadline, and interruption by urgent requests."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from typing import Optional

IDLE, BEST_EFFORT = 3 << 13, 2 << 13 | 4
"""I/O priorities as ioprio_set(2) has them: only what the disk has left, and what everybody has."""
_SYSCALL = {"x86_64": 251, "aarch64": 30, "ppc64le": 273}
LONGEST_SLEEP = 0.2


class OutOfTimeError(Exception):
    """The budget is used up."""


class InterruptedByUrgentError(Exception):
    """Something more urgent has come."""


class Throttle:
    """The pauses of a copy after each piece."""

    def __init__(self, bandwidth: Optional[int] = None) -> None:
        self._bandwidth = bandwidth
        self._debt = 0.0
        self._is_raised = False
        self._lock = threading.Lock()
        self._updated_at = time.monotonic()
        self.ends_at: Optional[float] = None
        """When nothing may be brought any more, on the monotonic clock; None for no such moment."""
        self.bytes_moved = 0
        """How many bytes have been copied, also of what is not complete."""
        self.urgent_requests = 0
        """How many requests have come that cannot wait for a copy of what is not urgent."""

    def set_urgent(self) -> None:
        """From now on nothing is spared: training is over, or soon. Any thread may say so."""
        self._bandwidth = None
        self.urgent_requests += 1

    def advance(self, count: int, urgent_before: Optional[int] = None) -> None:
        """After `count` bytes. Raises InterruptedByUrgentError where more urgent requests have come than `urgent`."""
        if self.urgent_requests and not self._is_raised:  # each thread has a priority of its own
            self._is_raised = True
            prioritise(BEST_EFFORT)
        with self._lock:
            self.bytes_moved += count
        self._wait(count)
        if self.ends_at is not None and time.monotonic() > self.ends_at:
            raise OutOfTimeError
        if urgent_before is not None and self.urgent_requests > urgent_before:
            raise InterruptedByUrgentError

    def _wait(self, count: int) -> None:
        """Until what was copied is within the bandwidth; in short sleeps, as somebody may come to hurry us."""
        if self._bandwidth is None:
            return
        with self._lock:
            now = time.monotonic()
            self._debt = max(0.0, self._debt - (now - self._updated_at)) + count / self._bandwidth
            self._updated_at = now
        while self._bandwidth is not None and time.monotonic() - self._updated_at < self._debt:
            time.sleep(min(LONGEST_SLEEP, max(0.0, self._debt - (time.monotonic() - self._updated_at))))


def prioritise(value: int) -> None:
    """The I/O priority of this process; nothing where the kernel has none."""
    number = _SYSCALL.get(os.uname().machine)
    if sys.platform == "linux" and number:
        with contextlib.suppress(ImportError, OSError, AttributeError):
            import ctypes

            ctypes.CDLL(None).syscall(number, 1, 0, value)
