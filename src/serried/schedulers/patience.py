"""How long a scheduler's commands may take: the user can say."""

from __future__ import annotations

import os

from serried.errors import UsageError

VARIABLE = "SERRIED_SCHEDULER_TIMEOUT"


def asked() -> float | None:
    """Seconds; None where nobody asked. Raises UsageError where it is no time to wait."""
    text = os.environ.get(VARIABLE, "")
    if not text:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise UsageError(f"`{VARIABLE}` is `{text}`, not a number of seconds", hint="for example 120")
    return seconds
