"""How full a Slurm is, from what its commands printed."""

from __future__ import annotations

from pathlib import Path

import pytest

from serried.schedulers.occupancy import GpuCount, NodeUse, Occupancy, PartitionUse, QueuedJob, count_gpus
from serried.schedulers.slurm import cluster
from serried.schedulers.slurm.cluster import SEPARATOR
from tables import for_each

RECORDED = Path(__file__).parent / "occupancy"
"""What Slurm 22.05 printed: four nodes, one drained, and jobs of two users."""


def recorded(*names: str) -> dict[str, str]:
    return {name: (RECORDED / f"{name}.txt").read_text() for name in names}


def lines(*rows: str) -> str:
    """Rows with `|` for the separator, as the commands print them."""
    return "".join(row.replace("|", SEPARATOR) + SEPARATOR + "\n" for row in rows)


def node(**fields: str) -> NodeUse:
    """One node of `sinfo`."""
    row = {
        "name": "n1", "partition": "gpu", "state": "mixed", "flags": "mixed", "cpus": "4/12/0/16", "gres": "gpu:4",
        "used": "gpu:(null):1(IDX:0)", "memory": "65536", "taken": "4096", "available": "up", "limit": "infinite",
    }  # fmt: skip
    (found,) = cluster.read_occupancy({"sinfo": lines("|".join((row | fields).values()))}, "ada").nodes
    return found


def read() -> Occupancy:
    return cluster.read_occupancy(recorded("sinfo", "squeue", "partitions"), "ada")


def test_nodes_of_a_real_slurm_are_listed_once():
    assert read().nodes == (
        NodeUse("n1", ("lab", "short"), "mixed", True, False, 16, 12, 65536, 61440, {"a100": 4}, {"a100": 2}),
        NodeUse("n2", ("lab", "short"), "mixed", True, False, 16, 15, 65536, 64512, {"a100": 4}, {"a100": 0}),
        NodeUse("n3", ("lab",), "mixed", True, False, 16, 15, 65536, 64512, {"a100": 4}, {"a100": 3}),
        NodeUse("n4", ("lab", "hidden"), "drained", False, False, 16, 0, 65536, 0, {"a100": 4}, {}),
    )
    assert count_gpus(read().nodes) == [GpuCount("a100", total=16, free=5, out=4, most_on_one_node=3)]


def test_partitions_of_a_real_slurm_keep_their_limits():
    assert read().partitions == (
        PartitionUse("lab", is_open=True, is_default=True),
        PartitionUse("short", is_open=True, limit_seconds=3600),
        PartitionUse("hidden", is_open=True, is_hidden=True),
    )
    assert [one.name for one in read().shown_partitions()] == ["lab", "short"]


def test_jobs_of_a_real_slurm_come_in_the_order_of_their_priority():
    found = read().jobs
    assert [job.id for job in found] == ["12", "13", "14", "16", "15", "9", "10", "11"]
    assert found[1] == QueuedJob(
        id="13",
        is_running=False,
        is_mine=True,
        partitions=("lab",),
        waits_for_resources=True,
        priority=4294901750,
        nodes=2,
        gpus=6,
        gpu_type="a100",
        cpus=4,
        memory_mb=4096,
        limit_seconds=36000,
        reason="Priority",
        starts=1795549140.0,
    )
    assert [job.id for job in found if not job.waits_for_resources] == ["15", "9", "10", "11"]
    assert {job.id: job.tasks for job in found}["16"] == 10
    assert {job.id for job in found if job.is_mine} == {"9", "11", "13", "15", "16"}


@for_each(
    ("state", "flags", "is_up", "is_planned"),
    [
        ("idle", "idle", True, False),
        ("idle~", "idle+cloud+powered_down", True, False),
        ("mixed#", "mixed+powering_up", True, False),
        ("planned", "idle+planned", True, True),
        ("mixed-", "mixed+planned", True, True),
        ("allocated", "", True, False),
        ("completing", "mixed+completing", True, False),
        ("drained", "idle+drain", False, False),
        ("draining", "mixed+drain", False, False),
        ("mixed", "mixed+reserved", False, False),
        ("reserved", "idle+reserved", False, False),
        ("idle$", "idle+maintenance", False, False),
        ("idle*", "idle+not_responding", False, False),
        ("down", "down", False, False),
        ("down*", "down+drain+not_responding", False, False),
        ("rebooting", "idle+reboot_issued", False, False),
        ("mixed@", "mixed+reboot_requested", False, False),
        ("", "", False, False),
        ("$(id)", "\x1b[31m", False, False),
    ],
)
def test_only_nodes_that_take_jobs_of_everybody_are_up(state: str, flags: str, is_up: bool, is_planned: bool):
    found = node(state=state, flags=flags)
    assert (found.is_up, found.is_planned) == (is_up, is_planned)
    assert (found.free_gpus != {}) is is_up


@for_each(
    ("gres", "used", "total", "free"),
    [
        ("gpu:4", "gpu:(null):1(IDX:0)", {"": 4}, {"": 3}),
        ("gpu:a100:4(S:0-1)", "gpu:a100:2(IDX:0,3)", {"a100": 4}, {"a100": 2}),
        ("gpu:a100:2,gpu:v100:2", "gpu:a100:2(IDX:0-1),gpu:v100:0(IDX:N/A)", {"a100": 2, "v100": 2},
         {"a100": 0, "v100": 2}),
        ("gpu:a100_3g.20gb:4,gpu:1g.10gb:7", "gpu:a100_3g.20gb:1(IDX:0),gpu:1g.10gb:7(IDX:1-7)",
         {"a100_3g.20gb": 4, "1g.10gb": 7}, {"a100_3g.20gb": 3, "1g.10gb": 0}),
        # Half of the eight parts are in use, so two of the GPUs are not free.
        ("gpu:a100:4,shard:8", "gpu:a100:0(IDX:N/A),shard:a100:4(2/2,2/2,0/2,0/2)", {"a100": 4}, {"a100": 2}),
        ("gpu:a100:4", "gpu:1(IDX:0)", {"a100": 4}, {"a100": 3}),
        ("gpu:a100:4,lustre:1", "gpu:a100:4(IDX:0-3),lustre:0", {"a100": 4}, {"a100": 0}),
        # Used parts of a busy node that this Slurm does not report.
        ("gpu:4", "", {"": 4}, {}),
        ("(null)", "gpu:0", {}, {}),
        ("craynetwork:4", "craynetwork:0", {}, {}),
        ("gpu:a100:x;$(id)", "gpu", {"a100": 1}, {"a100": 0}),
    ],
)  # fmt: skip
def test_free_gpus_are_those_that_no_job_holds(gres: str, used: str, total: dict[str, int], free: dict[str, int]):
    found = node(gres=gres, used=used)
    assert (found.gpus, found.free_gpus) == (total, free)


def test_gpus_of_a_node_without_a_free_cpu_are_not_free():
    assert node(cpus="16/0/0/16").free_gpus == {}


def test_all_gpus_of_an_idle_node_are_free_also_where_their_use_is_not_reported():
    assert node(state="idle", flags="idle", cpus="0/16/0/16", used="").free_gpus == {"": 4}


@for_each(
    ("total", "requests", "gpus"),
    [
        ("cpu=4,mem=4G,node=2,billing=4,gres/gpu=4", (("N/A", 1), ("gres:gpu:2", 2), ("N/A", 2)), (4, "")),
        ("cpu=4,gres/gpu=4,gres/gpu:a100=4", (("N/A", 1),), (4, "a100")),
        ("cpu=4,gres/gpu:a100=4", (("N/A", 1),), (4, "a100")),
        # A site that does not account for GPUs.
        ("cpu=4,mem=4G,node=2", (("N/A", 1), ("gres:gpu:a100:2", 2), ("N/A", 2)), (4, "a100")),
        ("N/A", (("N/A", 1), ("N/A", 2), ("gres/gpu:1", 8)), (8, "")),
        ("", (("gres/gpu=3", 1),), (3, "")),
        ("cpu=1", (("N/A", 1), ("gres:shard:2", 1)), (0, "")),
    ],
)
def test_the_gpus_of_a_job_are_those_that_slurm_counts_or_those_that_it_requests(
    total: str, requests: tuple[tuple[str, int], ...], gpus: tuple[int, str]
):
    assert cluster.job_gpus(total, requests) == gpus


JOB = "7|N/A|PENDING|ada|gpu|100|1|4|1|cpu=4|N/A|N/A|N/A|1:00:00|N/A|N/A|Priority"


@for_each("row", ["sinfo: error: something", JOB.rpartition("|")[0], JOB + "|a field more", "", "\x00\x01"])
def test_a_line_that_is_cut_or_foreign_is_dropped(row: str):
    found = cluster.read_occupancy({"sinfo": lines(row), "squeue": lines(row, JOB)}, "ada")
    assert ([job.id for job in found.jobs], found.nodes) == (["7"], ())


@for_each(
    ("index", "count"),
    [("N/A", 1), ("3", 1), ("0-9%3", 10), ("[1-9,20%4]", 10), ("0-100:10", 11), ("1,5,7", 3), ("0-999999", 1000000)],
)
def test_tasks_that_wait_are_counted_but_not_listed(index: str, count: int):
    (job,) = cluster.read_occupancy({"squeue": lines(JOB.replace("N/A", index, 1))}, "ada").jobs
    assert job.tasks == count


@for_each(
    ("partition", "expected"),
    [
        ({}, True),
        ({"AllowGroups": "ALL", "AllowAccounts": "def-ada,def-bob"}, True),
        ({"AllowAccounts": "def-bob"}, False),
        ({"DenyAccounts": "def-ada"}, False),
        ({"AllowGroups": "admins"}, False),
        ({"AllowQos": "long"}, True),
        ({"AllowQos": "debug"}, False),
    ],
)
def test_a_partition_for_others_is_recognised(partition: dict[str, str], expected: bool):
    assert cluster.admits(partition, {"def-ada"}, {"long", "normal"}, {"users"}) is expected


def test_a_site_may_hide_the_jobs_of_others():
    for config, sees_all in (
        ("Foo = 1\nPrivateData             = accounts,jobs\n", False),
        ("PrivateData = none\n", True),
    ):
        assert cluster.read_occupancy({"config": config}, "ada").sees_all_jobs is sees_all


@pytest.mark.parametrize("text", ["", "cpu=", "4G", "mem=x"])
def test_amounts_that_are_no_amounts_count_as_nothing(text: str):
    assert cluster.memory_mb(cluster.amounts_of(text).get("mem", "")) == 0
