"""How full this machine is, from facts about it."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from serried.base import files, processes
from serried.base.processes import Process
from serried.schedulers.local import cluster, jobs
from serried.schedulers.local.jobs import SlotClaim, SlotTable
from serried.schedulers.occupancy import QueuedJob

MEMINFO = "MemTotal:       65536000 kB\nMemFree:         1024000 kB\nMemAvailable:   32768000 kB\n"


def texts(**facts: Any) -> dict[str, str]:
    own = {"host": "desk", "cpus": 8, "load": 0.4, "gpus": ["0", "1", "3"], "used_mb": {"0": 10, "1": 30000}} | facts
    return {"machine": json.dumps(own), "memory": MEMINFO, "slots": "{}"}


def claim(job: int, pool: str, need: int, *slots: str, since: float = 0.0) -> dict[str, Any]:
    return SlotClaim(job, None, pool, need, since, (), slots)._asdict()


def test_a_gpu_is_in_use_if_a_job_holds_it_or_if_a_program_has_memory_on_it():
    slots = json.dumps({"waiting": [], "taken": [claim(1, "gpu", 1, "0")]})
    (node,) = cluster.read_occupancy(texts() | {"slots": slots}, "ada").nodes
    assert (node.gpus, node.free_gpus) == ({"": 3}, {"": 1})


@pytest.mark.parametrize(("load", "free"), [(0.4, 5), (6.6, 1), (99.0, 0)])
def test_cpus_are_in_use_by_jobs_or_by_other_programs(load: float, free: int):
    slots = json.dumps({"waiting": [], "taken": [claim(1, "cpu", 3)]})
    (node,) = cluster.read_occupancy(texts(load=load) | {"slots": slots}, "ada").nodes
    assert (node.cpus, node.free_cpus, node.memory_mb, node.free_memory_mb) == (8, free, 64000, 32000)


def test_jobs_wait_in_the_order_of_their_claims():
    waiting = [claim(7, "gpu", 2, since=20), claim(5, "gpu", 1, since=10)]
    slots = json.dumps({"waiting": waiting, "taken": [claim(1, "cpu", 3)]})
    found = cluster.read_occupancy(texts() | {"slots": slots}, "ada").jobs
    assert [job.id for job in found] == ["5", "7", "1"]
    assert found[1] == QueuedJob(
        "7", is_running=False, is_mine=True, partitions=("local",), waits_for_resources=True, gpus=2, reason="Resources"
    )


def test_claims_of_dead_processes_do_not_count(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SERRIED_LOCAL_GPUS", "0,1")
    alive, dead = processes.myself(), Process(os.getpid(), "another start")
    table = SlotTable(
        taken=[SlotClaim(1, None, "gpu", 1, 0.0, (alive,), ("0",)), SlotClaim(2, None, "gpu", 1, 0.0, (dead,), ("1",))]
    )
    files.write_json(jobs.root() / "slots.json", table.to_json())
    found = cluster.read_occupancy(cluster.ask_occupancy(os.environ, "ada", 10.0), "ada")
    assert [job.id for job in found.jobs] == ["1"]
    assert found.nodes[0].gpus == {"": 2}
