"""An experiment on a cluster -> its plan. Pure; the only place that counts GPUs, CPUs and memory."""

from __future__ import annotations

from serried.submission.planning.allocate import allocate, divide_indices
from serried.submission.planning.decide import environment_of, plan
from serried.submission.planning.launch import tasks

__all__ = ["allocate", "divide_indices", "environment_of", "plan", "tasks"]
