"""Are the GPUs of the job free when its ranks start? On shared nodes they may not be."""

from __future__ import annotations

from typing import Any, Callable, Dict, List

from serried.agent.sampling.gpus import GpuSource
from serried.process import linux
from serried.protocol import names

LEAST_BYTES = 100 * 10**6
"""Less memory belongs to a display or to NVIDIA's multi-process service. A CUDA context takes some hundred MB."""


def in_use(source: GpuSource, is_own: Callable[[int], bool]) -> List[Dict[str, Any]]:
    """`gpu`, `memory` in bytes and `processes` of each GPU that others use.

    `is_own` says of a process id whether it belongs to the attempt: its ranks may use the GPUs already.
    """
    found = []
    for gpu, processes in sorted(source.processes().items()):
        others = [used for pid, used in processes.items() if not 0 < used < LEAST_BYTES and not is_own(pid)]
        if others:
            found.append({"gpu": gpu, "memory": sum(others), "processes": len(others)})
    return found


def is_marked(pid: int, mark: str) -> bool:
    """Is this process of the attempt with this mark? Those of other users show no environment."""
    return f"{names.MARK}={mark}".encode() in linux.environ(pid).split(b"\0")
