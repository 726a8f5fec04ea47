"""The save interval: the option `every`, and Young's interval."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any, Optional, Sequence, Tuple, Union

SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
EXAMPLES = '"5m", "100 steps", "1 epoch", "auto"'

FAILURE_FREE_SECONDS = 24 * 3600.0
"""Mean time between two losses of a job for any reason: an assumption."""
RANK_FAILURE_FREE_SECONDS = 8000 * 3600.0
"""Mean time between failures of one GPU: 7.9 h at 1024 GPUs (Kokolis et al., arXiv 2410.21680)."""
FIRST_SECONDS = 60.0
SHORTEST_SECONDS = 30.0
LONGEST_SECONDS = 3600.0
WRITING_SHARE = 0.1
"""Slow-down of the training while the writer runs; see docs/train-checkpoints.md."""
LOOK_SECONDS = 2.0
"""Ranks compare clocks at least this often: steps may become slower."""

Every = Union[None, str, Sequence[str]]


@dataclass(frozen=True)
class Cadence:
    seconds: Optional[float] = None
    steps: Optional[int] = None
    epochs: Optional[int] = None
    is_auto: bool = False


def parse(every: Every) -> Cadence:
    """Parse `"5m"`, `"100 steps"`, `"1 epoch"`, `"auto"`, a tuple of these, or None for never. Raises ValueError."""
    found = {}
    words = every if isinstance(every, (tuple, list)) else [] if every is None else [every]
    for word in words:
        field, value = _parse_one(word)
        if field in found:
            raise ValueError(f"`every` has two values of one kind: {every!r}")
        found[field] = value
    if "seconds" in found and "is_auto" in found:
        raise ValueError(f'`every` has both a time and "auto": {every!r}')
    return Cadence(**found)  # type: ignore[arg-type]


def _parse_one(word: Any) -> Tuple[str, Union[int, float, bool]]:
    text = word.strip().lower() if isinstance(word, str) else ""
    if text == "auto":
        return "is_auto", True
    time = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhd])", text)
    if time and float(time[1]) > 0:
        return "seconds", float(time[1]) * SECONDS[time[2]]
    count = re.fullmatch(r"(\d+)\s*(step|epoch)s?", text)
    if count and int(count[1]) > 0:
        return f"{count[2]}s", int(count[1])
    raise ValueError(f"`every` cannot be {word!r}\nhint: {EXAMPLES}, or a tuple of these")


def young(cost_seconds: float, failure_free_seconds: float) -> float:
    """The optimal interval: sqrt(2 * cost * mean time between failures). Young 1974, doi 10.1145/361147.361115."""
    return math.sqrt(2 * cost_seconds * failure_free_seconds)


def failure_free_seconds(world_size: int) -> float:
    return min(FAILURE_FREE_SECONDS, RANK_FAILURE_FREE_SECONDS / world_size)


def best_interval(stall_seconds: float, write_seconds: float, world_size: int) -> float:
    """Young's interval, for saves as long as the last one; at most half of the time goes to writing."""
    cost = stall_seconds + WRITING_SHARE * write_seconds
    wanted = young(cost, failure_free_seconds(world_size))
    return max(min(wanted, LONGEST_SECONDS), SHORTEST_SECONDS, 2 * write_seconds)


class Clock:
    """The time until the next save, in steps: ranks can only save together, and only at a step.

    At step `next_look` all ranks compute `steps_left` and agree on the maximum: 0 is "save now", n is "check again in
    n steps". The checks become more frequent as the time approaches, so there are few.
    """

    def __init__(self, interval: float, now: float, step: int) -> None:
        self.interval = interval
        self.restart(now, step)

    def restart(self, now: float, step: int) -> None:
        """Restart the interval after a save."""
        self._began, self._began_step = now, step
        self.next_look = step + 1

    def steps_left(self, now: float, step: int) -> int:
        elapsed = now - self._began
        left = self.interval - elapsed
        done = max(1, step - self._began_step)
        if left <= 0:
            return 0
        pace = max(elapsed / done, 1e-9)
        # At most half of the estimate, and no more than the steps so far: the pace may change.
        return max(1, min(int(left / 2 / pace), int(LOOK_SECONDS / pace), done))
