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
follow. Every
age is in seconds at the time `t`, by the clock that measured it, because clocks of nodes differ: `age` since the node's
last message, `step_age` since the rank's step changed, `output_age` since it wrote to its log. `step_gap` is the usual
time between two reported steps; when no more steps come, `steps_per_second` falls and `step_gap` stays. `usual_pause`
is the longest time without a step that is usual for the rank, as the head has seen it. Other units are those of
`serried.schema.samples`; values are those of the last sample, unless that is too old. What is unknown is missing.

With many nodes the file lists only some of them: the first one and those at the extremes. `ranks` and `gpus` are always
the numbers of all. So are `gpu_busy`, the mean of all GPUs, and `samples_per_second`, the sum of all ranks, each of
which counts its own samples.
"""

from __future__ import annotations

from typing import Any, Dict, List

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
