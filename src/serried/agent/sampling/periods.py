"""Samples of a period as one line of `samples.jsonl`."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional

from serried.protocol.samples import range_of

Quantities = Mapping[str, Any]
LAST = ("disk_free", "memory_peak", "step", "total_steps", "metrics", "ecc_errors", "log")
"""Of these a line has the last value. Of other numbers it has the range."""
NOT_WRITTEN = ("step_age", "step_gap", "output_age")
"""Ages are true at a moment only, and so is what a reader compares with them."""


class Measured:
    """What has been measured of one thing, such as a GPU, in a period."""

    def __init__(self) -> None:
        self._numbers: Dict[str, List[float]] = {}
        self._last: Dict[str, Any] = {}
        self._united: Dict[str, List[Any]] = {}

    def add(self, quantities: Quantities) -> None:
        for name, value in quantities.items():
            if name in LAST:
                self._last[name] = value
            elif isinstance(value, (list, tuple, set)):
                united = self._united.setdefault(name, [])
                united += [entry for entry in value if entry not in united]
            elif name not in NOT_WRITTEN:
                self._numbers.setdefault(name, []).append(value)

    def summary(self) -> Dict[str, Any]:
        ranges = {name: range_of(values) for name, values in self._numbers.items()}
        return {**ranges, **self._last, **{name: entries for name, entries in self._united.items() if entries}}


class OpenPeriod:
    def __init__(self, began_at: float) -> None:
        self.began_at = began_at
        """On the monotonic clock."""
        self._count = 0
        self._node = Measured()
        self._gpus: Dict[str, Measured] = {}
        self._ranks: Dict[str, Measured] = {}

    def add(self, node: Quantities, gpus: Mapping[int, Quantities], ranks: Mapping[int, Quantities]) -> None:
        self._count += 1
        self._node.add(node)
        for groups, measured in ((self._gpus, gpus), (self._ranks, ranks)):
            for number, quantities in measured.items():
                groups.setdefault(str(number), Measured()).add(quantities)

    def add_ranks(self, ranks: Mapping[int, Quantities]) -> None:
        """Add what ranks have reported since the last sample."""
        for number, quantities in ranks.items():
            self._ranks.setdefault(str(number), Measured()).add(quantities)

    def line(self, now: float, wall_clock: float) -> Optional[Dict[str, Any]]:
        """The line of the period up to `now`; None if it has no sample."""
        if not self._count:
            return None
        line: Dict[str, Any] = {
            "t": round(wall_clock, 3),
            "seconds": round(now - self.began_at, 1),
            "count": self._count,
            "node": self._node.summary(),
        }
        for name, groups in (("gpus", self._gpus), ("ranks", self._ranks)):
            if groups:
                line[name] = {number: group.summary() for number, group in groups.items()}
        return line
