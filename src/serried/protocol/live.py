"""What a running attempt does now: `attempts/K/live.json`, which the head agent replaces every few seconds.

Readers learn from this one small file what all nodes do, and ask neither the nodes nor the scheduler.

    {"schema": 1, "t": 1763900003.2, "interval": 5.0,
     "nodes": [{"node": 0, "host": "n01", "age": 1.3, "cpu": 12.4, "cpus": 16, "memory": 9126805504,
                "memory_limit": 68719476736, "memory_scope": "job", "disk_free": 91268055040,
                "gpus": [{"gpu": 0, "name": "NVIDIA H200", "busy": 97.0, "memory": 120259084288,
                          "memory_total": 150754820096, "power": 640.0, "power_cap": 700.0, "temperature": 61.0}],
                "ranks": [{"rank": 0, "cpu": 1.0, "memory": 4294967296, "output_age": 2.0,
                           "step": 1200, "total_steps": 5000, "step_age": 0.4, "steps_per_second": 3.1,
                           "samples_per_second": 198.4, "data_wait": 0.02, "metrics": {"loss": 0.31}}]}],
     "ranks": 8, "warnings": [{"code": "stalled", "message": "…", "ranks": [3]}]}

`t` is the head's clock. Every age is in seconds at the time `t`, by the clock that measured it, because clocks of nodes
differ: `age` since the node's last message, `step_age` since the rank's step changed, `output_age` since it wrote to
its log. Other units are those of `serried.protocol.samples`; values are those of the last sample. What is unknown is
missing. With many nodes the file lists only some of them: `ranks` is always the number of all ranks.
"""

from __future__ import annotations

from typing import Any, Dict

Node = Dict[str, Any]
"""An entry of `nodes`. It is also what a sampler reports to the agent of its node, and that agent to the head."""
