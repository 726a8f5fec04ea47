"""Moments: seconds since the epoch inside, ISO 8601 in UTC in every file and every JSON."""

from __future__ import annotations

import datetime as dt
from typing import overload


@overload
def iso(seconds: float) -> str: ...
@overload
def iso(seconds: None) -> None: ...
@overload
def iso(seconds: float | None) -> str | None: ...
def iso(seconds: float | None) -> str | None:
    """UTC, ISO 8601, as in every JSON that Serried prints."""
    if seconds is None:
        return None
    return dt.datetime.fromtimestamp(seconds, dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def seconds_of(text: object) -> float | None:
    """Seconds since the epoch of an ISO 8601 time; None where it is none."""
    try:
        moment = dt.datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=dt.UTC)).timestamp()
