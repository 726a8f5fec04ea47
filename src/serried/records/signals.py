"""Signals by name."""

from __future__ import annotations

import signal


def signal_name(number: object) -> str:
    """`signal 11 (SIGSEGV)`."""
    try:
        return f"signal {number} ({signal.Signals(int(str(number))).name})"
    except ValueError:
        return f"signal {number}"
