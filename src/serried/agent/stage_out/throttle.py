"""Limits a copy: bandwidth, a deadline, and interruption by urgent requests."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from typing import Optional

IDLE, BEST_EFFORT = 3 << 13, 2 << 13 | 4
"""I/O priorities of ioprio_set(2): only when the disk is otherwise idle, and the usual one."""
_SYSCALL = {"x86_64": 251, "aarch64": 30, "ppc64le": 273}
LONGEST_SLEEP = 0.2


class OutOfTimeError(Exception):
    """The copy has no time left."""


class InterruptedByUrgentError(Exception):
    """A more urgent request interrupts the copy."""


class Throttle:
    """The pauses of a copy after each piece."""

    def __init__(self, bandwidth: Optional[int] = None) -> None:
        self._bandwidth = bandwidth
        self._debt = 0.0
        self._is_raised = False
        self._lock = threading.Lock()
        self._updated_at = time.monotonic()
        self.ends_at: Optional[float] = None
        """When all copies must end, on the monotonic clock; None without a limit."""
        self.bytes_moved = 0
        """The number of copied bytes, incomplete copies included."""
        self.urgent_requests = 0
        """The number of requests that cannot wait for copies that are not urgent."""

    def set_urgent(self) -> None:
        """Copy at full speed from now on: the training has ended or soon will. Any thread may call this."""
        self._bandwidth = None
        self.urgent_requests += 1

    def advance(self, count: int, urgent_before: Optional[int] = None) -> None:
        """Pause after `count` bytes, within the bandwidth.

        Raises OutOfTimeError, and InterruptedByUrgentError if `urgent_requests` exceeds `urgent_before`.
        """
        if self.urgent_requests and not self._is_raised:  # each thread has its own priority
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
        """Wait until the copied bytes are within the bandwidth, in short sleeps: `set_urgent` ends the wait."""
        if self._bandwidth is None:
            return
        with self._lock:
            now = time.monotonic()
            self._debt = max(0.0, self._debt - (now - self._updated_at)) + count / self._bandwidth
            self._updated_at = now
        while self._bandwidth is not None and time.monotonic() - self._updated_at < self._debt:
            time.sleep(min(LONGEST_SLEEP, max(0.0, self._debt - (time.monotonic() - self._updated_at))))


def prioritise(value: int) -> None:
    """Set the I/O priority of this thread, if the kernel supports priorities."""
    number = _SYSCALL.get(os.uname().machine)
    if sys.platform == "linux" and number:
        with contextlib.suppress(ImportError, OSError, AttributeError):
            import ctypes

            ctypes.CDLL(None).syscall(number, 1, 0, value)
