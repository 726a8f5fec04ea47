"""Whether others use the GPUs of a job, with stand-ins for the driver."""

from __future__ import annotations

import os
import subprocess
import sys

from serried.agent.sampling.gpu_use import in_use, is_marked
from serried.agent.sampling.gpus import GpuSource
from serried.protocol import names

GB = 10**9
OWN = 10


class Stub(GpuSource):
    """A driver with such processes on GPU 1, `p10=BYTES`."""

    def __init__(self, **processes: int) -> None:
        self._processes = {int(pid[1:]): used for pid, used in processes.items()}

    def devices(self):
        return {1: {}}

    def read(self):
        return {}

    def processes(self):
        return {1: self._processes}


def found(source: GpuSource) -> list[tuple[int, int]]:
    return [(gpu["processes"], gpu["memory"]) for gpu in in_use(source, lambda pid: pid == OWN)]


def test_processes_of_others_are_counted_and_own_ones_are_not():
    assert in_use(Stub(p10=4 * GB, p20=3 * GB, p30=2 * GB), lambda pid: pid == OWN) == [
        {"gpu": 1, "processes": 2, "memory": 5 * GB}
    ]
    assert found(Stub(p10=9 * GB)) == []


def test_a_process_whose_memory_is_not_known_counts():
    assert found(Stub(p20=0)) == [(1, 0)]


def test_a_display_does_not_count():
    assert found(Stub(p20=GB // 50)) == []


def test_processes_of_the_attempt_have_its_mark():
    environ = {**os.environ, names.MARK: "k3f9q2.1"}
    with subprocess.Popen([sys.executable, "-c", "input()"], env=environ, stdin=subprocess.PIPE) as child:
        assert is_marked(child.pid, "k3f9q2.1")
        assert not is_marked(child.pid, "k3f9q2.2")
        child.kill()
    assert not is_marked(child.pid, "k3f9q2.1")
