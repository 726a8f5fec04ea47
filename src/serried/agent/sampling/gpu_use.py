"""Are the GPUs of the job free when its ranks start? On shared nodes they may not be."""

from __future__ import annotations

from typing import Any, Callable, Dict, List

from serried.agent.sampling.gpus import GpuSource
from serried.process import linux
from serried.protocol import names

LEAST_BYTES = 100 * 10**6
"""Less memory belongs to a display or to NVIDIA's multi-process service. A CUDA context takes some hundred MB."""
LEAST_HIDDEN_BYTES = 2 * 10**9
"""Memory without a process that we can see, such as in another container. Drivers may reserve up to about 1 GB."""


def in_use(source: GpuSource, is_own: Callable[[int], bool]) -> List[Dict[str, Any]]:
    """`gpu`, `memory` in bytes and `processes` of each GPU that others use. `is_own` says of a process id whether it
    belongs to the attempt: ranks may have started already.
    """
    samples, processes = source.read(), source.processes()
    found = []
    for gpu in sorted(samples):
        of_gpu = processes.get(gpu, {})
        others = {pid: used for pid, used in of_gpu.items() if not is_own(pid) and not 0 < used < LEAST_BYTES}
        used = samples[gpu].get("memory", 0)
        if others:
            found.append({"gpu": gpu, "memory": sum(others.values()), "processes": len(others)})
        elif not of_gpu and used >= LEAST_HIDDEN_BYTES:
            found.append({"gpu": gpu, "memory": int(used), "processes": 0})
    return found


def is_marked(pid: int, mark: str) -> bool:
    """Is this process of the attempt with this mark? Those of other users show no environment."""
    return f"{names.MARK}={mark}".encode() in linux.environ(pid).split(b"\0")
