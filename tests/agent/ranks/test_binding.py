"""Which CPUs each rank gets."""

from __future__ import annotations

from pathlib import Path

import pytest

from building import a_plan
from serried.agent.attempt import Attempt
from serried.agent.ranks import binding
from serried.schema.layout import RunDirectory

DEFAULT = ("resources.cpus",)


def test_cpus_are_shared_evenly():
    assert binding.split(range(8), 4) == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert binding.split(range(5), 2) == [[0, 1], [2, 3, 4]]


def test_fewer_cpus_than_ranks_are_not_bound():
    assert binding.split([0, 1], 3) == [[], [], []]


def test_cpus_of_one_memory_and_one_core_stay_together():
    siblings = {f"cpu/cpu{cpu}/topology/thread_siblings_list": f"{cpu % 4},{cpu % 4 + 4}\n" for cpu in range(8)}
    system = {
        "node/online": "0-1\n",
        "node/node0/cpulist": "0,2,4,6\n",
        "node/node1/cpulist": "1,3,5,7\n",
        "cpu/smt/active": "1\n",
        **siblings,
    }

    assert binding.in_order(range(8), lambda name: system.get(name, "")) == [0, 4, 2, 6, 1, 5, 3, 7]


def test_a_system_that_tells_nothing_leaves_cpus_in_their_order():
    assert binding.in_order([0, 1, 2], lambda _: "") == [0, 1, 2]


@pytest.mark.parametrize(
    ("available", "scheduler", "plan", "threads"),
    [
        (16, "pbs", {"ranks": 2, "cpus": 4}, 2),  # PBS without its cgroup hook shows all CPUs of the node
        (16, "slurm", {"ranks": 2, "cpus": 4}, 2),
        (16, "local", {"ranks": 2, "cpus": 4}, 2),
        (5, "slurm", {"ranks": 2, "cpus": 8}, 2),  # the same for both, whatever their shares
        (2, "local", {"ranks": 4, "cpus": 2}, 1),
        (16, "pbs", {"ranks": 1, "cpus": 4, "defaults": DEFAULT}, 4),
        (16, "local", {"ranks": 1, "cpus": 2, "defaults": DEFAULT}, 16),  # the machine is its own
        (16, "local", {"ranks": 2, "cpus": 4, "defaults": DEFAULT}, 2),
        (16, "local", {"ranks": 1, "cpus": 2}, 2),
        (16, "slurm", {"ranks": 2, "cpus": 4, "exclusive": True, "defaults": DEFAULT}, 8),  # whole nodes
        (16, "pbs", {"ranks": 2, "cpus": 4, "exclusive": True, "defaults": DEFAULT}, 8),
        (16, "slurm", {"ranks": 2, "cpus": 4, "exclusive": True}, 2),
    ],
)
def test_ranks_of_one_plan_compute_with_as_many_threads_under_every_scheduler(
    available, scheduler, plan, threads, monkeypatch
):
    monkeypatch.setattr(binding, "available", lambda: available)
    defaults = plan.get("defaults", ())
    asked = {name: count for name, count in plan.items() if name != "defaults"}
    made = a_plan(scheduler=scheduler, nodes=1, **asked)._replace(defaults=defaults)
    work = Attempt(RunDirectory(Path("/r")), made, None, 1)

    assert binding.threads(work) == threads
