"""Which CPUs each rank gets."""

from __future__ import annotations

from serried.agent.ranks import binding


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
