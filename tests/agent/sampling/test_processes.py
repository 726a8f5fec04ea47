"""CPU, memory and I/O of ranks, by real processes and by a recorded /proc."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from recorded_proc import add
from serried.agent.sampling import processes
from serried.agent.sampling.processes import RankProcesses
from serried.process import linux
from waiting import until as wait_until

PAGE = os.sysconf("SC_PAGE_SIZE")
TICKS = os.sysconf("SC_CLK_TCK")
PARENT = """
import os, time
if os.fork() == 0:
    held = bytearray(80_000_000)
    open("up", "w").close()
    while True:
        pass
time.sleep(600)
"""


def process(
    pid: int, parent: int, group: int, *, state="R", ticks=0, started=50, pages=(0, 0), moved=(0, 0)
) -> dict[str, str]:
    """The files of a process; its name is hostile."""
    fields = [state, parent, group, *[0] * 8, ticks, 0, *[0] * 6, started, 0, pages[0]]
    resident, shared = pages
    return {
        f"{pid}/stat": f"{pid} (a) b R 1) " + " ".join(map(str, fields)) + "\n",
        f"{pid}/statm": f"999 {resident} {shared} 0 0 0 0\n",
        f"{pid}/io": f"rchar: 1\nread_bytes: {moved[0]}\nwrite_bytes: {moved[1]}\n",
    }


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A /proc of 1,000 ticks since boot."""
    monkeypatch.setattr(linux, "PROC", str(tmp_path))
    monkeypatch.setattr(processes, "_boot_seconds", lambda: 1000 / TICKS)
    return tmp_path


def test_a_rank_has_its_children_and_its_group_and_nothing_else(root: Path):
    add(root, process(10, 1, 10, pages=(100, 40)))
    add(root, process(11, 10, 11, pages=(30, 20)))
    add(root, process(12, 11, 12, pages=(5, 0)))
    add(root, process(13, 1, 10, pages=(7, 0)))
    add(root, process(20, 10, 20, pages=(50, 50)))
    add(root, process(99, 1, 99, pages=(1000, 0)))
    ranks = RankProcesses()
    ranks.set_ranks({10: 0, 20: 1})
    assert ranks.sample(0.0) == {0: {"memory": (60 + 10 + 5 + 7 + 40) * PAGE}, 1: {"memory": 50 * PAGE}}


def test_rates_are_sums_of_increases(root: Path):
    add(root, process(10, 1, 10, ticks=1000, moved=(500, 100)))
    ranks = RankProcesses()
    ranks.set_ranks({10: 0})
    ranks.sample(0.0)
    add(root, process(10, 1, 10, ticks=1000 + 5 * TICKS, moved=(1500, 100)))
    add(root, process(11, 10, 10, ticks=10 * TICKS, started=1001, moved=(0, 300)))
    add(root, process(12, 10, 10, ticks=900 * TICKS, started=10, moved=(9_000, 9_000)))
    assert ranks.sample(10.0) == {0: {"memory": 0, "cpu": 1.5, "read": 100.0, "write": 30.0}}


def test_ends_and_reused_pids_are_neither_negative_nor_a_spike(root: Path):
    add(root, process(10, 1, 10, ticks=100))
    add(root, process(11, 10, 10, ticks=500 * TICKS))
    ranks = RankProcesses()
    ranks.set_ranks({10: 0})
    ranks.sample(0.0)
    add(root, process(11, 1, 77, ticks=5, started=1005))
    assert ranks.sample(10.0)[0]["cpu"] == 0
    add(root, process(10, 1, 10, ticks=1))
    assert ranks.sample(20.0)[0]["cpu"] == 0


def test_a_rank_that_has_ended_and_waits_for_its_agent_uses_no_memory_and_its_cpu_counts(root: Path):
    add(root, process(10, 1, 10, pages=(100, 40)))
    ranks = RankProcesses()
    ranks.set_ranks({10: 0})
    ranks.sample(0.0)
    add(root, process(10, 1, 10, state="Z", ticks=5 * TICKS))
    assert ranks.sample(10.0) == {0: {"cpu": 0.5, "read": 0.0, "write": 0.0}}


def test_a_rank_without_processes_has_no_values(root: Path):
    ranks = RankProcesses()
    ranks.set_ranks({10: 0})
    add(root, {"10/stat": "", "11/stat": "11 (x"})
    assert ranks.sample(0.0) == {0: {}}


def test_a_process_without_io_counters_has_the_rest(root: Path):
    add(root, process(10, 1, 10))
    (root / "10/io").unlink()
    ranks = RankProcesses()
    ranks.set_ranks({10: 0})
    ranks.sample(0.0)
    assert ranks.sample(1.0) == {0: {"memory": 0, "cpu": 0.0}}


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_a_real_child_of_a_real_rank_counts(tmp_path):
    rank = subprocess.Popen([sys.executable, "-c", PARENT], cwd=tmp_path, process_group=0)
    try:
        wait_until((tmp_path / "up").exists)
        ranks = RankProcesses()
        ranks.set_ranks({rank.pid: 5})
        ranks.sample(time.monotonic())
        usage = wait_until(lambda: [it for it in [ranks.sample(time.monotonic())[5]] if it.get("cpu")])[0]
        assert usage["memory"] > 80_000_000
    finally:
        os.killpg(rank.pid, 9)
        rank.wait()
