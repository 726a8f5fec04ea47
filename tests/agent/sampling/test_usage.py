"""The use of CPUs, memory, disks and networks, by nodes and by ranks."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from recorded_proc import add, proc, system
from serried.agent.sampling import worker
from serried.agent.sampling.worker import NodeUsage, RankProcesses
from serried.base import linux
from waiting import until as wait_until

GIB = 1 << 30
MACHINE = 16_000_000 * 1024
VERSION_2 = "0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_0\n"
VERSION_1 = "4:memory:/slurm/uid_1/job_7/step_0\n2:cpu,cpuacct:/slurm/uid_1/job_7\n1:name=systemd:/\n"


def of_version_2(root: Path) -> Path:
    """The job's group, its step of the same limit, and tasks without a limit of their own."""
    job = "system.slice/slurmstepd.scope/job_7"
    files = {
        f"{job}/memory.max": f"{2 * GIB}\n",
        f"{job}/memory.current": f"{GIB}\n",
        f"{job}/memory.stat": "anon 5\ninactive_file 1000\nactive_file 7\n",
        f"{job}/cpu.stat": "usage_usec 5000000\nuser_usec 1\n",
        f"{job}/step_0/memory.max": f"{2 * GIB}\n",
        f"{job}/step_0/user/task_0/memory.max": "max\n",
    }
    return add(root, files)


def of_version_1(root: Path) -> Path:
    job = "slurm/uid_1/job_7"
    files = {
        "memory/memory.limit_in_bytes": "9223372036854771712\n",
        f"memory/{job}/memory.limit_in_bytes": f"{3 * GIB}\n",
        f"memory/{job}/memory.usage_in_bytes": f"{2 * GIB}\n",
        f"memory/{job}/memory.stat": "inactive_file 5\ntotal_inactive_file 4096\n",
        f"memory/{job}/step_0/memory.limit_in_bytes": "9223372036854771712\n",
        f"cpuacct/{job}/cpuacct.usage": "7000000000\n",
    }
    return add(root, files)


def test_a_jobs_group_is_the_outermost_with_the_lowest_limit_below_the_machines_memory(tmp_path):
    membership = tmp_path / "membership"
    for text, tree, expected in (
        (VERSION_2, of_version_2(tmp_path / "2"), (2 * GIB, GIB - 1000, 5.0)),
        (VERSION_1, of_version_1(tmp_path / "1"), (3 * GIB, 2 * GIB - 4096, 7.0)),
        (
            "0::/\n",
            add(tmp_path / "container", {"memory.max": f"{GIB}\n", "memory.current": "5000\n"}),
            (GIB, 5000, None),
        ),
    ):
        membership.write_text(text)
        group = linux.limited_group(MACHINE, str(membership), tree)
        assert (group.limit, group.working_set(), group.cpu_seconds()) == expected
        assert linux.limited_group(GIB, str(membership), tree) is None
    for text in ("", "0::/\n", "0::/../../other\n", "garbage\n4:memory\n"):
        membership.write_text(text)
        assert linux.limited_group(MACHINE, str(membership), tmp_path / "none") is None


@pytest.fixture
def node(tmp_path, monkeypatch):
    """A node without control groups, with the recorded files; the job has the second CPU."""
    monkeypatch.setattr(linux, "PROC", str(proc(tmp_path / "proc", "0::/\n")))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1})
    monkeypatch.setattr(linux, "CGROUPS", tmp_path / "none")
    monkeypatch.setattr(worker, "SYSTEM", system(tmp_path / "sys"))
    return NodeUsage(str(tmp_path))


def test_a_node_without_a_limit_shows_the_memory_of_all_its_processes(node):
    assert node.description == {"cpus": 1, "memory": MACHINE, "memory_scope": "node"}
    sample = node.sample(100.0)
    assert {name: value for name, value in sample.items() if name != "disk_free"} == {"memory": 12_000_000 * 1024}
    assert sample["disk_free"] > 0


def test_rates_are_those_of_the_jobs_cpus_the_whole_disks_and_the_cards(node, tmp_path):
    node.sample(100.0)
    ticks = os.sysconf("SC_CLK_TCK")
    add(
        tmp_path,
        {
            "proc/stat": f"cpu0 9999 9 9 9\ncpu1 {9000 + 5 * ticks} 100 300 4000 50 20 30 0 0 0\n",
            "proc/diskstats": "259 0 nvme0n1 1 0 2010 1 5 0 4020 1 0 2 3\n7 0 loop0 1 0 990 1 0 0 9 0 0 0 0\n",
            "proc/net/dev": "lo: 9999 0 0 0 0 0 0 0 9999\n eth0:2000 1 0 0 0 0 0 0 2500 1\nib0: 9 9 9 9 9 9 9 9 9\n",
            "sys/class/infiniband/mlx5_0/ports/1/counters/port_rcv_data": "2000",
        },
    )
    sample = node.sample(110.0)
    assert {name: value for name, value in sample.items() if name not in {"disk_free", "memory"}} == {
        "cpu": 0.5,
        "disk_read": 512.0,
        "disk_write": 1024.0,
        "net_in": 500.0,
        "net_out": 50.0,
    }


def test_what_disappears_or_begins_again_is_missing_and_nothing_fails(node, tmp_path):
    node.sample(100.0)
    for text in ("", "garbage", "cpu1\n", "\0\xff", "cpu1 0 0 0 0\n"):
        (tmp_path / "proc" / "stat").write_text(text)
        assert "cpu" not in node.sample(110.0)
    for name in ("stat", "diskstats", "net/dev", "meminfo"):
        (tmp_path / "proc" / name).unlink()
    assert set(node.sample(120.0)) == {"disk_free"}


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
    monkeypatch.setattr(time, "clock_gettime", lambda _: 1000 / TICKS)
    return tmp_path


def first_sample(ranks: dict[int, int]) -> tuple[RankProcesses, dict]:
    """A sampler of `ranks`, by pid, after its first sample at 0 seconds."""
    processes = RankProcesses()
    processes.set_ranks(ranks)
    return processes, processes.sample(0.0)


def test_a_rank_has_its_children_and_its_group_and_nothing_else(root: Path):
    add(root, process(10, 1, 10, pages=(100, 40)))
    add(root, process(11, 10, 11, pages=(30, 20)))
    add(root, process(12, 11, 12, pages=(5, 0)))
    add(root, process(13, 1, 10, pages=(7, 0)))
    add(root, process(20, 10, 20, pages=(50, 50)))
    add(root, process(99, 1, 99, pages=(1000, 0)))
    _, usage = first_sample({10: 0, 20: 1})
    assert usage == {0: {"memory": (60 + 10 + 5 + 7 + 40) * PAGE}, 1: {"memory": 50 * PAGE}}


def test_rates_are_sums_of_increases(root: Path):
    add(root, process(10, 1, 10, ticks=1000, moved=(500, 100)))
    ranks, _ = first_sample({10: 0})
    add(root, process(10, 1, 10, ticks=1000 + 5 * TICKS, moved=(1500, 100)))
    add(root, process(11, 10, 10, ticks=10 * TICKS, started=1001, moved=(0, 300)))
    add(root, process(12, 10, 10, ticks=900 * TICKS, started=10, moved=(9_000, 9_000)))
    assert ranks.sample(10.0) == {0: {"memory": 0, "cpu": 1.5, "read": 100.0, "write": 30.0}}


def test_ends_and_reused_pids_are_neither_negative_nor_a_spike(root: Path):
    add(root, process(10, 1, 10, ticks=100))
    add(root, process(11, 10, 10, ticks=500 * TICKS))
    ranks, _ = first_sample({10: 0})
    add(root, process(11, 1, 77, ticks=5, started=1005))
    assert ranks.sample(10.0)[0]["cpu"] == 0
    add(root, process(10, 1, 10, ticks=1))
    assert ranks.sample(20.0)[0]["cpu"] == 0


def test_a_rank_that_has_ended_and_waits_for_its_agent_uses_no_memory_and_its_cpu_counts(root: Path):
    add(root, process(10, 1, 10, pages=(100, 40)))
    ranks, _ = first_sample({10: 0})
    add(root, process(10, 1, 10, state="Z", ticks=5 * TICKS))
    assert ranks.sample(10.0) == {0: {"cpu": 0.5, "read": 0.0, "write": 0.0}}


def test_what_cannot_be_read_of_a_rank_is_missing(root: Path):
    add(root, {"10/stat": "", "11/stat": "11 (x"})
    ranks, usage = first_sample({10: 0})
    assert usage == {0: {}}
    add(root, process(10, 1, 10))
    (root / "10/io").unlink()
    ranks.sample(100.0)
    assert ranks.sample(101.0) == {0: {"memory": 0, "cpu": 0.0}}


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_a_real_child_of_a_real_rank_counts(tmp_path):
    rank = subprocess.Popen([sys.executable, "-c", PARENT], cwd=tmp_path, process_group=0)
    try:
        wait_until((tmp_path / "up").exists)
        ranks, _ = first_sample({rank.pid: 5})
        wait_until(lambda: ranks.sample(time.monotonic())[5].get("cpu"))
        assert ranks.sample(time.monotonic())[5]["memory"] > 80_000_000
    finally:
        os.killpg(rank.pid, 9)
        rank.wait()
