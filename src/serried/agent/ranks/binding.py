"""The CPUs of each rank on a node: even shares of neighbouring CPUs."""

from __future__ import annotations

import os
import sys
from typing import Callable, List, Sequence

from serried.agent.attempt import Attempt

Reader = Callable[[str], str]
SYSTEM = "/sys/devices/system"


def shares(ranks: int) -> List[List[int]]:
    """A list of CPUs for each rank; empty lists bind to nothing."""
    if sys.platform != "linux" or ranks == 1:
        return [[]] * ranks
    return split(in_order(sorted(os.sched_getaffinity(0)), _read), ranks)


def available() -> int:
    """The number of CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def threads(attempt: Attempt) -> int:
    """The number of threads with which each rank of a node computes.

    Results depend on it, so it follows from the plan and is the same under every scheduler, even if this node allows
    more CPUs. Only exclusive nodes give all that they have.
    """
    cpus = available() if attempt.may_use_all_cpus else min(available(), attempt.plan.allocation.cpus)
    return max(1, cpus // attempt.ranks)


def split(cpus: Sequence[int], ranks: int) -> List[List[int]]:
    """Cut `cpus` into `ranks` even pieces, which are empty if there are fewer CPUs than ranks."""
    if len(cpus) < ranks:
        return [[]] * ranks
    return [list(cpus[len(cpus) * r // ranks : len(cpus) * (r + 1) // ranks]) for r in range(ranks)]


def in_order(cpus: Sequence[int], read: Reader) -> List[int]:
    """Sort `cpus` by NUMA node, with the hardware threads of one core side by side."""
    memory = {
        cpu: node for node in parse_list(read("node/online")) for cpu in parse_list(read(f"node/node{node}/cpulist"))
    }
    cores = {cpu: cpu for cpu in cpus}
    if read("cpu/smt/active").strip() == "1":
        for cpu in cpus:
            cores[cpu] = min(parse_list(read(f"cpu/cpu{cpu}/topology/thread_siblings_list")), default=cpu)
    return sorted(cpus, key=lambda cpu: (memory.get(cpu, 0), cores[cpu], cpu))


def parse_list(text: str) -> List[int]:
    """Parse the kernel's format, `0-3,8,10-11`."""
    numbers: List[int] = []
    for item in text.strip().split(","):
        first, dash, last = item.partition("-")
        if item:
            numbers += range(int(first), int(last if dash else first) + 1)
    return numbers


def _read(name: str) -> str:
    try:
        with open(f"{SYSTEM}/{name}", encoding="utf-8") as file:  # noqa: PTH123 - hundreds of small files on a large node
            return file.read()
    except OSError:
        return ""
