"""What the agent of a node measures: `node-N/samples.jsonl`, lines of JSON with one writer.

A sampler measures every few seconds and writes a line for each period: about half a minute, longer for more than 16
ranks and GPUs. Each sampler process first describes the node:

    {"t": 1763900000.0, "host": "n01", "interval": 5.0,
     "node": {"cpus": 16, "memory": 68719476736, "memory_scope": "job"},
     "gpu_source": "nvml",
     "gpus": {"0": {"name": "NVIDIA H200", "uuid": "GPU-…", "memory": 150754820096, "power_cap": 700.0}}}

Every other line is a period:

    {"t": 1763900030.0, "seconds": 30.0, "count": 6,
     "node": {"cpu": R, "memory": R, "disk_read": R, "disk_write": R, "net_in": R, "net_out": R,
              "disk_free": 91268055040, "memory_peak": 47244640256},
     "gpus": {"0": {"busy": R, "memory": R, "power": R, "temperature": R, "clock": R, "sm_active": R,
                    "throttled": ["power-cap"], "ecc_errors": 0, "xid": [79]}},
     "ranks": {"0": {"cpu": R, "memory": R, "read": R, "write": R, "step": 1200, "total_steps": 5000,
                     "steps_per_second": R, "samples_per_second": R, "data_wait": R, "metrics": {"loss": 0.31},
                     "log": 52318}}}

R is `[minimum, mean, maximum]` of the period's samples. A quantity that could not be measured is missing; so is a GPU
that the driver lost. Units: `t` seconds since 1970 at the end of the period, CPUs in cores, memory and disk in bytes,
rates in bytes per second, `busy` and `sm_active` in percent, power in watts, temperature in degrees Celsius, clocks in
MHz, `data_wait` as a share of the time. `memory` of a node is the working set without the page cache that can be
dropped; `memory_scope` says of what: `job` (its control group, with its limit) or `node`.

`memory_peak` is the most `memory` that this sampler process has seen: readers of long runs read only some lines.

`metrics` are the values that the rank reported last: numbers, or `nan`, `inf` and `-inf` as texts.

`log` is the size of the rank's log in bytes: `serried logs --since` finds the place of a time by it.

GPUs have the index that the job's programs use, and ranks their number in the attempt.
"""

from __future__ import annotations

from typing import Iterable, List

JOB, NODE = "job", "node"
"""Values of `memory_scope`."""


def range_of(values: Iterable[float]) -> List[float]:
    """`[minimum, mean, maximum]`, to four digits. Raises ValueError for no values."""
    found = list(values)
    return [_short(min(found)), _short(sum(found) / len(found)), _short(max(found))]


def _short(value: float) -> float:
    """A few digits are enough, and a line is short."""
    return round(value) if abs(value) >= 1000 else float(f"{value:.4g}")
