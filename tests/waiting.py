"""Waiting for what a test awaits, rather than sleeping for as long as it may take."""

from __future__ import annotations

import time


def until(predicate, seconds=120, what=""):
    """Polls until `predicate()` is truthy and returns that; fails after `seconds`.

    What it looks at may go while it looks (a process and its /proc, a file that is renamed): then it looks again.
    Looking takes a third of the time at most, so that what is awaited has the processor.
    """
    deadline = time.monotonic() + seconds
    while True:
        began = time.monotonic()
        try:
            if value := predicate():
                return value
        except (FileNotFoundError, ProcessLookupError):
            if time.monotonic() >= deadline:
                raise
        assert time.monotonic() < deadline, f"not within {seconds} s: {what or predicate}"
        time.sleep(min(max(0.05, 2 * (time.monotonic() - began)), 1))
