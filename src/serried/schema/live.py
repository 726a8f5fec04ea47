"""What a running attempt does now: `attempts/K/live.json`, which the head agent replaces every few seconds.

Readers learn from this one small file what all nodes do, and ask neither the nodes nor the scheduler.

    {"schema": 1, "t": 1763900003.2, "interval": 5.0, "limit_seconds_left": 3120.0,
     "notice_seconds_left": 2820.0, "continues": false,
     "nodes": [{"node": 0, "host": "n01", "age": 1.3, "cpu": 12.4, "cpus": 16, "memory": 9126805504,
                "memory_limit": 68719476736, "memory_scope": "job", "disk_free": 91268055040,
                "gpus": [{"gpu": 0, "name": "NVIDIA H200", "busy": 97.0, "memory": 120259084288,
                          "memory_total": 150754820096, "power": 640.0, "power_cap": 700.0, "temperature": 61.0}],
                "ranks": [{"rank": 0, "cpu": 1.0, "memory": 4294967296, "output_age": 2.0,
                           "step": 1200, "total_steps": 5000, "step_age": 0.4, "step_gap": 0.32,
                           "usual_pause": 60.0,
                           "steps_per_second": 3.1, "samples_per_second": 198.4, "data_wait": 0.02,
                           "metrics": {"loss": 0.31}}]}],
     "ranks": 8, "gpus": 8, "gpu_busy": 96.1, "samples_per_second": 1587.0,
     "warnings": [{"code": "stalled", "message": "…", "ranks": [3]}]}

`t` is the head's clock, and `limit_seconds_left` the time until the scheduler ends the job, by the same clock;
`notice_seconds_left` is the time until ranks receive the stop notice, and `continues` says whether another attempt may
follow. `checking` is true while checks hold the ranks back. Every age is in seconds at the time `t`, by the clock that
measured it, because clocks of nodes differ: `age` since the node's last message, `step_age` since the rank's step
changed, `output_age` since it wrote to its log. `step_gap` is the usual time between two reported steps; when no more
steps come, `steps_per_second` falls and `step_gap` stays. `usual_pause` is the longest time without a step that is
usual for the rank, as the head has seen it. Other units are those of the samples below; values are those of the last
sample, unless that is too old. What is unknown is missing.

With many nodes the file lists only some of them: the first one and those at the extremes. `ranks` and `gpus` are always
the numbers of all. So are `gpu_busy`, the mean of all GPUs, and `samples_per_second`, the sum of all ranks, each of
which counts its own samples.

What was measured, of all periods: `node-N/samples.jsonl`, lines of JSON that the agent of a node writes.

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

from typing import Any, Dict, Iterable, List

JOB, NODE = "job", "node"


def range_of(values: Iterable[float]) -> List[float]:
    """`[minimum, mean, maximum]`, to four digits. Raises ValueError for no values."""
    found = list(values)
    return [_short(min(found)), _short(sum(found) / len(found)), _short(max(found))]


def _short(value: float) -> float:
    """A few digits are enough, and a line is short."""
    return round(value) if abs(value) >= 1000 else float(f"{value:.4g}")


Node = Dict[str, Any]
"""An entry of `nodes`. It is also what a sampler reports to the agent of its node, and that agent to the head."""

SHORTEST_SECONDS, LONGEST_SECONDS = 5.0, 60.0
MANY_NODES = 64
"""Up to here nodes report at the shortest interval."""


def interval_of(nodes: int) -> float:
    """The least seconds between the reports of a node, and between two versions of the file: longer for many nodes.

    So the head receives at most about a dozen reports a second up to 768 nodes, and 68 from 4,096 nodes.
    """
    return min(max(SHORTEST_SECONDS, SHORTEST_SECONDS * nodes / MANY_NODES), LONGEST_SECONDS)


def entries(node: Node, name: str) -> List[Dict[str, Any]]:
    """The `gpus` or `ranks` of a node, whatever another version has sent."""
    found = node.get(name)
    return [entry for entry in found if isinstance(entry, dict)] if isinstance(found, list) else []
