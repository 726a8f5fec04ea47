"""Durations, moments, sizes, counts, ranges of numbers and lists of hosts as text, and back.

Seconds and bytes in code; `1h30m` in files, options and JSON; ISO 8601 in UTC for moments.
"""

from __future__ import annotations

import itertools
import math
import re
import time
from typing import Any, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple, overload

_MINUTE, _HOUR, _DAY = 60, 3600, 86400
_MANY_DAYS = 100 * _DAY
_NUMBER = r"(\d{1,9}(?:\.\d{1,9})?)"
_UNITS = rf"(?ia)(?:{_NUMBER}w)? ?(?:{_NUMBER}d)? ?(?:{_NUMBER}h)? ?(?:{_NUMBER}m(?:in)?)? ?(?:{_NUMBER}s)?"
_UNIT_SECONDS = (604800, 86400, 3600, 60, 1)
_LIMIT = r"(?a)\d{1,4}-\d{1,2}(?::\d{1,2}){0,2}|(?:\d{1,5}:)?\d{1,5}:\d{1,2}"
_CLOCK = r"(?a)(?:(\d{1,9})-)?(\d{1,9}(?::\d{1,9}){0,3})(\.\d{1,9})?"
_AMOUNT = r"(?ai)(\d{1,15}(?:\.\d{1,9})?)([kmgtp]?)([bw]?)"
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
        hint = f"did you mean `{text}m`, `{text}h` or `{text}s`?" if re.fullmatch(r"(?!0+$)\d+\.?\d*", text) else None
        if in_words := re.fullmatch(r"(?i)(\d+)\s*(s|m|h|d|w)(ec|econd|in|inute|r|our|ay|eek)?s?", text):
            hint = f"did you mean `{in_words[1]}{in_words[2].lower()}`?"
        if short := re.fullmatch(r"(?i).*\d([wdhm]) ?\d+", text):  # `1h30`
            hint = f"did you mean `{text}{'dhms'['wdhm'.index(short[1].lower())]}`?"
        raise BadDuration(f"must be a duration such as `90m`, `1h30m` or `2-00:00:00`, not `{shown or text}`", hint)
    if not 0 < seconds <= _LONGEST:
        raise BadDuration(f"must be a duration between a second and ten years, not `{shown or text}`")
    return seconds


def _seconds(text: str) -> Optional[int]:
    match = re.fullmatch(_UNITS, text)
    if text and match:
        amounts = zip(match.groups(), _UNIT_SECONDS)
        return math.ceil(sum(float(number or 0) * unit for number, unit in amounts))
    return clock_seconds(text) if re.fullmatch(_LIMIT, text) else None


def clock_seconds(text: str) -> Optional[int]:
    """Seconds of `90`, `30:00`, `12:00:00`, `1-12:00:00`, `1-12` (with hours), `1:12:00:00`; None for other text.

    A part of a second counts as a whole one.
    """
    match = re.fullmatch(_CLOCK, text)
    if match is None:
        return None
    days, clock, fraction = match.groups()
    parts = [int(part) for part in clock.split(":")]
    if days is not None:
        parts = [int(days), *parts, *[0] * (3 - len(parts))]
    if len(parts) > 4:
        return None
    whole = sum(part * unit for part, unit in zip(reversed(parts), (1, _MINUTE, _HOUR, _DAY)))
    return whole + bool(fraction and fraction.strip(".0"))


def show_duration(seconds: int) -> str:
    """`1h30m`, exact: `read_duration` and `--time` can parse it."""
    parts = [(seconds // 86400, "d"), (seconds // 3600 % 24, "h"), (seconds // 60 % 60, "m"), (seconds % 60, "s")]
    return "".join(f"{number}{unit}" for number, unit in parts if number) or "0s"


def show_minutes(seconds: float) -> str:
    """`12m`, `4h12m`, `40s`: to the minute, and to the second below one."""
    whole = max(0, int(seconds))
    return show_duration(whole if whole < _MINUTE else whole // _MINUTE * _MINUTE)


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
        moment = dt.datetime.fromisoformat(str(text).replace("Z", "+00:00"))
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=dt.timezone.utc)).timestamp()


def duration(seconds: Optional[float]) -> str:
    """`12s`, `3m07s`, `2h05m`, `4d03h`: two units at most."""
    if seconds is None or not -math.inf < seconds < math.inf:  # JSON of Python has `NaN`
        return "-"
    whole = max(0, int(seconds))
    if whole < _MINUTE:
        return f"{whole}s"
    if whole < _HOUR:
        return f"{whole // _MINUTE}m{whole % _MINUTE:02d}s"
    if whole < _DAY:
        return f"{whole // _HOUR}h{whole % _HOUR // _MINUTE:02d}m"
    if whole < _MANY_DAYS:
        return f"{whole // _DAY}d{whole % _DAY // _HOUR:02d}h"
    return f"{whole // _DAY}d"


def fine_time(seconds: float) -> str:
    """`340 us`, `12.3 ms`, `1.20 s`: three digits. A minute and more as `duration` has it."""
    if seconds >= _MINUTE:
        return duration(seconds)
    for scale, unit in ((1, "s"), (1e3, "ms")):
        value = seconds * scale
        if value >= 0.9995:  # else it would be rounded to 1000 of the smaller unit
            return f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f} {unit}"
    return f"{seconds * 1e6:.0f} us"


def ago(seconds: Optional[float]) -> str:
    """`just now`, `5m ago`, `3d ago`: one unit. A time in the future, by another clock, is just now."""
    if seconds is None:
        return ""
    for unit, letter in ((_DAY, "d"), (_HOUR, "h"), (_MINUTE, "m")):
        if seconds >= unit:
            return f"{int(seconds // unit)}{letter} ago"
    return "just now"


def local_time(seconds: Optional[float]) -> str:
    """`2026-11-21 04:00:12`, by this machine's clock and zone: for people."""
    if seconds is None:
        return "-"
    import datetime as dt

    try:
        return dt.datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M:%S")  # noqa: DTZ006 - the reader's own
    except (ValueError, OverflowError, OSError):
        return "-"


def spell(size: int) -> str:
    """`41.2 MB`, in decimal units, as vendors of disks use."""
    value, unit = float(size), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if value < 1000:
            break
        value, unit = value / 1000, larger
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"


def memory_bytes(text: str, unit: str = "") -> Optional[float]:
    """Bytes of `64G`, `4000M`, `24684084kb` or `10gw`, words of 8 bytes: units are powers of 1,024.

    `unit` is that of a number without one. None for other text.
    """
    match = re.fullmatch(_AMOUNT, text)
    if match is None:
        return None
    number, letter, kind = match.groups()
    letter = letter or ("" if kind else unit)
    power: int = 1024 ** " kmgtp".index(letter.lower() or " ")
    return float(number) * power * (8 if kind in ("w", "W") else 1)


def counted(number: int, noun: str) -> str:
    """`1 file`, `1,281,167 files`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def ranges(indices: Iterable[int]) -> str:
    """`0-3,7`."""
    found: List[List[int]] = []
    for index in sorted(indices):
        if found and found[-1][1] == index - 1:
            found[-1][1] = index
        else:
            found.append([index, index])
    return ",".join(f"{first}-{last}" if last > first else str(first) for first, last in found)


def progress(facts: Mapping[str, Any]) -> str:
    """`41 % of 12.0 GB at 102.1 MB/s, 2m05s left`, as far as known; empty if the total is unknown.

    `facts` has `bytes`, `of`, `rate` per second, and the seconds `left`. `unpacks` is true while an archive is being
    unpacked. `waits_for` is the run whose job copies the data, empty if its name is unknown.
    """
    size, of, rate, left, waits_for = (facts.get(name) for name in ("bytes", "of", "rate", "left", "waits_for"))
    if waits_for is not None:
        far = f"{100 * min(size or 0, of) // of} % of {spell(of)}" if of else "0 %"
        return f"{far}, waiting for {maker(waits_for)}, which copies the same data to this node"
    if not of:
        return ""
    speed = f" at {spell(rate)}/s" if rate else ""
    soon = "" if left is None else f", {duration(left)} left"
    unpacked = " unpacked" if facts.get("unpacks") else ""
    return f"{100 * min(size or 0, of) // of} % of {spell(of)}{unpacked}{speed}{soon}"


def maker(run: str) -> str:
    """The run whose job copies the data."""
    return f"run {run}" if run else "another job of yours"


MOST_INDICES = 10_000_000
"""Slurm's highest MaxArraySize is 4,000,001."""
SHORTEST_PROGRESSION = 3
"""Two numbers are written `4,8`; from three on a range with a step is shorter."""


def compress(indices: Iterable[int]) -> str:
    """The shortest-reading list that `expand` turns back into these indices, sorted."""
    return ",".join(
        str(first) if first == last else f"{first}-{last}" if step == 1 else f"{first}-{last}:{step}"
        for first, last, step in _progressions(sorted(set(indices)))
    )


def expand(text: str) -> List[int]:
    """The indices that `text` names, in its order; the limit after `%` is ignored.

    Raises ValueError if it is not such a list (`[1-3,...` cut short, say), or names more indices than any array has.
    """
    indices: List[int] = []
    for item in text.strip("[]").partition("%")[0].split(","):
        span, _, step = item.partition(":")
        first, dash, last = span.partition("-")
        found = range(int(first), int(last if dash else first) + 1, int(step or 1))
        if len(found) > MOST_INDICES:
            raise ValueError(f"{item} are too many")
        indices += found
    return indices


def _progressions(numbers: List[int]) -> Iterator[Tuple[int, int, int]]:
    """Cut into (first, last, step), greedily; a lone number has step 0."""
    position = 0
    while position < len(numbers):
        end, step = position, 0
        if position + 1 < len(numbers):
            step = numbers[position + 1] - numbers[position]
            end = position + 1
            while end + 1 < len(numbers) and numbers[end + 1] - numbers[end] == step:
                end += 1
        long_enough = end - position + 1 >= SHORTEST_PROGRESSION or step == 1
        if not long_enough:
            end, step = position, 0
        yield numbers[position], numbers[end], step
        position = end + 1


_NUMBERED = r"([^.]*?)(\d{1,9})((?:\..*)?)"
"""A host's name up to its number, the number, and the domain."""
_GROUP = r"\[([^\]]*)\]"


def expand_hosts(text: str) -> List[str]:
    """The hosts in one of Slurm's lists, in its order: `gpu-a[1-2]-n[001-004],login` names nine."""
    hosts: List[str] = []
    for part in _host_groups(text):
        pieces = re.split(_GROUP, part)
        choices = [_numbers(piece) if index % 2 else [piece] for index, piece in enumerate(pieces)]
        hosts += map("".join, itertools.product(*choices))
    return hosts


def fold_hosts(hosts: Sequence[str]) -> str:
    """A short list of `hosts`, in their order: neighbours with consecutive numbers become one range."""
    runs: List[List[str]] = []
    for host in hosts:
        match = re.fullmatch(_NUMBERED, host)
        prefix, number, suffix = match.groups() if match else (host, "", "")
        last = runs[-1] if runs else ["", "", "", ""]
        follows = number and last[2] and number == str(int(last[2]) + 1).zfill(len(last[1]))
        if follows and (prefix, suffix) == (last[0], last[3]):
            last[2] = number
        else:
            runs.append([prefix, number, number, suffix])
    return ",".join(
        f"{prefix}{first}{suffix}" if first == last else f"{prefix}[{first}-{last}]{suffix}"
        for prefix, first, last, suffix in runs
    )


def _host_groups(text: str) -> List[str]:
    """Split at commas that are not inside brackets."""
    parts, depth, start = [], 0, 0
    for position, character in enumerate(text):
        depth += (character == "[") - (character == "]")
        if character == "," and depth == 0:
            parts.append(text[start:position])
            start = position + 1
    parts.append(text[start:])
    return [part.strip() for part in parts if part.strip()]


def _numbers(group: str) -> List[str]:
    numbers: List[str] = []
    for item in group.split(","):
        first, dash, last = item.partition("-")
        if dash:
            numbers += [str(n).zfill(len(first)) for n in range(int(first), int(last) + 1)]
        else:
            numbers.append(item)
    return numbers
