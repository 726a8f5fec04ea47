"""How often the step of a rank changes, and for how long it may stay the same. Pure."""

from __future__ import annotations

import math
from collections import deque
from typing import Deque, Optional, Tuple

FIRST_STEPS = 10
"""The first steps compile kernels and fill caches."""
REMEMBERED = 101
LONGER_THAN_USUAL = 10.0
LONGER_THAN_EVER = 2.0
"""An evaluation or a checkpoint has been seen before, mostly, and may take longer the next time."""
SHORTEST_SECONDS = 60.0


class StepPace:
    def __init__(self) -> None:
        self._step: Optional[float] = None
        self._changed_at = 0.0
        self._steps = 0.0
        """Steps taken since the first look."""
        self._changes: Deque[Tuple[float, float]] = deque(maxlen=REMEMBERED)
        """Seconds between two changes that were seen, and the steps in them."""
        self._longest = 0.0

    def observe(self, step: float, changed_at: float) -> None:
        """The rank's step, and when that began, by one clock."""
        if self._step is not None and step != self._step:
            seconds = max(changed_at - self._changed_at, 0.0)
            taken = max(step - self._step, 1.0)  # a program may count from 0 again in each epoch
            self._steps += taken
            if self._steps > FIRST_STEPS:
                self._changes.append((seconds, taken))
                self._longest = max(self._longest, seconds)
        if step != self._step:
            self._step, self._changed_at = step, changed_at

    @property
    def longest_pause(self) -> float:
        """Seconds without a change that are still usual; infinite as long as too few steps were seen."""
        if not self._changes:
            return math.inf
        import statistics

        usual = statistics.median(seconds for seconds, _ in self._changes)
        return max(SHORTEST_SECONDS, LONGER_THAN_USUAL * usual, LONGER_THAN_EVER * self._longest)

    def is_usual(self, seconds: float) -> bool:
        """Whether so long a time without a change is usual. That is quick to tell for all ranks that train."""
        return seconds <= SHORTEST_SECONDS or seconds <= self.longest_pause

    @property
    def step_seconds(self) -> float:
        """The usual time of a step, without pauses."""
        import statistics

        rates = sorted(seconds / taken for seconds, taken in self._changes)
        return statistics.median(rates) if rates else 0.0
