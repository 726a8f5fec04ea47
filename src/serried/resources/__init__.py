"""What an experiment asks for, on a cluster -> what the scheduler is asked for. Pure; the only place that counts."""

from __future__ import annotations

from serried.resources.allocation import allocate, left_out, longest
from serried.resources.asked import Allocation
from serried.resources.limits import clock, notes, whom_to_ask

__all__ = ["Allocation", "allocate", "clock", "left_out", "longest", "notes", "whom_to_ask"]
