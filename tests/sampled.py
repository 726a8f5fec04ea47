"""Samples as a node's sampler writes them, with stand-ins for GPUs: their numbers are chosen, not measured."""

from __future__ import annotations

import json

from serried.base.files import make_directory

T = 1_795_000_060.0
GIB = 1 << 30


def flat(value):
    """The range of a quantity that does not change."""
    return [value, value, value]


def a_gpu(busy=90.0, memory=100 * GIB, power=600.0, **more):
    return {
        "busy": flat(busy),
        "memory": flat(memory),
        "power": flat(power),
        "temperature": flat(60.0),
        **{name: flat(value) if isinstance(value, float) else value for name, value in more.items()},
    }


def a_rank(steps=4.0, wait=0.02, memory=4 * GIB, **more):
    return {
        "cpu": flat(1.0),
        "memory": flat(memory),
        "steps_per_second": flat(steps),
        "samples_per_second": flat(32 * steps),
        "data_wait": flat(wait),
        **more,
    }


def write_samples(
    attempt, node=0, *, gpus=(), ranks=(), minutes=30, cpu=8.0, cpus=16, memory=40 * GIB, lost=None, scope="job"
):
    """One file: `gpus` and `ranks` as `a_gpu` and `a_rank` make them; `lost` is a GPU that disappears halfway."""
    path = attempt.samples(node)
    make_directory(path.parent)
    first = node * len(ranks)
    about = {
        "t": T,
        "host": f"n{node + 1}",
        "interval": 5.0,
        "node": {"cpus": cpus, "memory": 128 * GIB, "memory_scope": scope},
        "gpu_source": "stand-in",
        "gpus": {str(at): {"name": "NVIDIA H200", "memory": 140 * GIB, "power_cap": 700.0} for at in range(len(gpus))},
    }
    lines = [about]
    for at in range(1, 2 * minutes + 1):
        present = {str(gpu): each for gpu, each in enumerate(gpus) if gpu != lost or at <= minutes}
        lines.append(
            {
                "t": T + 30 * at,
                "seconds": 30.0,
                "count": 6,
                "node": {"cpu": flat(cpu), "memory": flat(memory), "disk_free": 80 * GIB},
                "gpus": present,
                "ranks": {str(first + rank): each for rank, each in enumerate(ranks)},
            }
        )
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path
