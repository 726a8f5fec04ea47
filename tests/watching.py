"""What `serried watch` reads, made by hand: live.json, and the page of a run with many ranks."""

from __future__ import annotations

import json
import math

from serried.records import live
from serried.views.watch.pages import RunPage

GIB = 1 << 30
T = 1_795_003_600.0


def a_live(nodes=2, per_node=4, *, warnings=(), slow=None, **changes):
    """live.json of a training at step 1,200 of 5,000; rank `slow` waits for data."""
    return {
        "schema": 1,
        "t": T,
        "interval": 5.0,
        "limit_seconds_left": 10_200.0,
        "nodes": [_node(node, per_node, slow) for node in range(nodes)],
        "ranks": nodes * per_node,
        "gpus": nodes * per_node,
        "gpu_busy": 93.0,
        "samples_per_second": 1587.0,
        "warnings": [{"code": "stalled", "message": message, "ranks": [3]} for message in warnings],
        **changes,
    }


def _node(node, per_node, slow):
    gpus = [
        {
            "gpu": gpu,
            "name": "NVIDIA H200",
            "busy": 4.0 if node * per_node + gpu == slow else 97.0 - gpu,
            "memory": 112 * GIB,
            "memory_total": 140 * GIB,
            "power": 140.0 if node * per_node + gpu == slow else 640.0,
            "power_cap": 700.0,
            "temperature": 61.0,
        }
        for gpu in range(per_node)
    ]
    ranks = [
        {
            "rank": rank,
            "cpu": 1.0,
            "memory": 4 * GIB,
            "output_age": 2.0,
            "step": 1200,
            "total_steps": 5000,
            "step_age": 0.4,
            "steps_per_second": 3.1,
            "samples_per_second": 198.4,
            "data_wait": 0.41 if rank == slow else 0.02,
            "metrics": {"loss": 0.31},
        }
        for rank in range(node * per_node, (node + 1) * per_node)
    ]
    return {"node": node, "host": f"n{node + 1:02d}", "age": 1.3, "cpu": 12.4, "cpus": 16, "gpus": gpus, "ranks": ranks}


def a_page(document=None, *, state="RUNNING", **changes):
    """The page of a run in the middle of its training."""
    document = a_live(warnings=["rank 3 waits for data 41% of the time"], slow=3) if document is None else document
    parsed = live.parse(document)
    gpus = [(node.node, gpu.gpu) for node in parsed.nodes for gpu in node.gpus] if parsed else ()
    loss = [(float(step), 0.2 + 2.5 * math.exp(-step / 300) + 0.1 * math.sin(step / 7)) for step in range(0, 1201, 5)]
    facts = {
        "size": "2 nodes, 8 GPUs on fir",
        "elapsed": 4320.0,
        "limit": 14_400.0,
        "live": live.RunProgress(parsed, 1.0) if parsed else None,
        "recent": {key: [(7 * at + 11 * key[1]) % 60 + 40.0 for at in range(40)] for key in gpus},
        "curves": {"loss": loss, "accuracy": [(step, 1 - value / 3) for step, value in loss]},
        "logs": ("rank 0 on n01", "rank 1 on n01"),
        "log_lines": tuple(f"epoch 3: step {step} loss 0.31 (8 ranks)" for step in range(1100, 1201)),
        "warnings": tuple(one["message"] for one in parsed.warnings) if parsed else (),
        **changes,
    }
    return RunPage("k3f9q2", "train", state, **facts)


def write_live(attempt, document):
    attempt.live.write_text(json.dumps(document))
