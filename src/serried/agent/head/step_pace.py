"""How often the step of a rank changes, and for how long it may stay the same. Pure."""

from __future__ import annotations

import math
from array import array
from typing import Optional

FIRST_STEPS = 10
"""The first steps compile kernels and fill caches."""
REMEMBERED = 31
"""Changes of the step. The head remembers those of all ranks, which may be ten thousands."""
LONGER_THAN_USUAL = 10.0
LONGER_THAN_EVER = 2.0
"""An evaluation or a checkpoint has been seen before, mostly, and may take longer the next time."""
SHORTEST_SECONDS = 60.0


class StepPace:
    __slots__ = ("_changed_at", "_longest", "_seconds", "_step", "_step_seconds", "_steps")

    def __init__(self) -> None:
        self._step: Optional[float] = None
        self._changed_at = 0.0
        self._steps = 0.0
        """Steps taken since the first look."""
        self._seconds, self._step_seconds = array("f"), array("f")
        """Seconds between two changes that were seen, and the same divided by the steps in them."""
        self._longest = 0.0

    def observe(self, step: float, changed_at: float) -> None:
        """The rank's step, and when that began, by one clock."""
        if self._step is not None and step != self._step:
            seconds = max(changed_at - self._changed_at, 0.0)
            taken = max(step - self._step, 1.0)  # a program may count from 0 again in each epoch
            self._steps += taken
            if self._steps > FIRST_STEPS:
                for values, value in ((self._seconds, seconds), (self._step_seconds, seconds / taken)):
                    values.append(value)
                    del values[:-REMEMBERED]
                self._longest = max(self._longest, seconds)
        if step != self._step:
            self._step, self._changed_at = step, changed_at

    @property
    def longest_pause(self) -> float:
        """Seconds without a change that are still usual; infinite as long as too few steps were seen."""
        if not self._seconds:
            return math.inf
        import statistics

        usual = statistics.median(self._seconds)
        return max(SHORTEST_SECONDS, LONGER_THAN_USUAL * usual, LONGER_THAN_EVER * self._longest)

    def is_usual(self, seconds: float) -> bool:
        """Whether so long a time without a change is usual. That is quick to tell for all ranks that train."""
        return seconds <= SHORTEST_SECONDS or seconds <= self.longest_pause

    @property
    def step_seconds(self) -> float:
        """The usual time of a step, without pauses."""
        import statistics

        return statistics.median(self._step_seconds) if self._step_seconds else 0.0
