"""Times and durations: seconds in code, ISO 8601 in UTC or `1h30m` in files, options and JSON."""

from __future__ import annotations

import math
import re
import time
from typing import Optional, overload

_NUMBER = r"(\d{1,9}(?:\.\d{1,9})?)"
_UNITS = rf"(?ia)(?:{_NUMBER}w)? ?(?:{_NUMBER}d)? ?(?:{_NUMBER}h)? ?(?:{_NUMBER}m(?:in)?)? ?(?:{_NUMBER}s)?"
_UNIT_SECONDS = (604800, 86400, 3600, 60, 1)
_DAYS = r"(?a)(\d{1,4})-(\d{1,2})(?::(\d{1,2}))?(?::(\d{1,2}))?"
_CLOCK = r"(?a)(?:(\d{1,5}):)?(\d{1,5}):(\d{1,2})"
_LONGEST = 10 * 366 * 86400


class BadDuration(ValueError):  # noqa: N818 - names the value
    """`str()` completes a sentence that begins with the option; `hint` suggests a valid value."""

    def __init__(self, message: str, hint: Optional[str] = None) -> None:
        super().__init__(message)
        self.hint = hint


def read_duration(text: str, shown: Optional[str] = None) -> int:
    """Parse `90m`, `1h30m`, `2d`, `2-00:00:00`, `12:00:00` or `30:00`, which are minutes and seconds as for Slurm.

    Raises BadDuration, whose message quotes `shown` if given, else `text`.
    """
    seconds = _seconds(text)
    if seconds is None:
        hint = f"did you mean `{text}m`, `{text}h` or `{text}s`?" if re.fullmatch(r"\d+(\.\d+)?", text) else None
        raise BadDuration(f"must be a duration such as `90m`, `1h30m` or `2-00:00:00`, not `{shown or text}`", hint)
    if not 0 < seconds <= _LONGEST:
        raise BadDuration(f"must be a duration between a second and ten years, not `{shown or text}`")
    return seconds


def _seconds(text: str) -> Optional[int]:
    match = re.fullmatch(_UNITS, text)
    if text and match:
        amounts = zip(match.groups(), _UNIT_SECONDS)  # noqa: B905 - `strict` is 3.10's
        return math.ceil(sum(float(number or 0) * unit for number, unit in amounts))
    match = re.fullmatch(_DAYS, text)
    if match:
        days, hours, minutes, seconds = (int(number or 0) for number in match.groups())
        return days * 86400 + hours * 3600 + minutes * 60 + seconds
    match = re.fullmatch(_CLOCK, text)
    if match:
        hours, minutes, seconds = (int(number or 0) for number in match.groups())
        return hours * 3600 + minutes * 60 + seconds
    return None


def show_duration(seconds: int) -> str:
    """`1h30m`, which `read_duration` can parse."""
    parts = [(seconds // 86400, "d"), (seconds // 3600 % 24, "h"), (seconds // 60 % 60, "m"), (seconds % 60, "s")]
    return "".join(f"{number}{unit}" for number, unit in parts if number) or "0s"


def show_walltime(seconds: int) -> str:
    """A time limit in Slurm's format: `2-00:00:00`, `1:30:00`."""
    days, rest = divmod(seconds, 86400)
    hours, rest = divmod(rest, 3600)
    tail = f"{rest // 60:02}:{rest % 60:02}"
    return f"{days}-{hours:02}:{tail}" if days else f"{hours}:{tail}"


@overload
def iso(seconds: float) -> str: ...
@overload
def iso(seconds: None) -> None: ...
@overload
def iso(seconds: Optional[float]) -> Optional[str]: ...
def iso(seconds: Optional[float]) -> Optional[str]:
    """`2026-11-20T04:00:12Z`, from seconds since the epoch."""
    return None if seconds is None else time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def seconds_of(text: object) -> Optional[float]:
    """Seconds since the epoch of an ISO 8601 time, in UTC unless it names a zone; None for any other value."""
    import datetime as dt

    try:
        moment = dt.datetime.fromisoformat(str(text).replace("Z", "+00:00"))  # noqa: FURB162 - Python 3.9
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=dt.timezone.utc)).timestamp()
