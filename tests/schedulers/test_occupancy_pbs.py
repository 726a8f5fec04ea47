"""How full a PBS is, from what its commands printed."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from serried.schedulers.occupancy import Occupancy, PartitionUse, QueuedJob
from serried.schedulers.pbs import cluster
from tables import for_each

HERE = Path(__file__).parent


def recorded(name: str, folder: str = "pbs") -> str:
    return (HERE / folder / name).read_text(encoding="utf-8")


NODES = recorded("pbsnodes-a.txt")
TEXTS = {
    "nodes": NODES,
    "jobs": recorded("qstat-a-s-w.txt", "occupancy"),
    "queues": recorded("qstat-Q-f.txt"),
    "server": recorded("qstat-B-f.txt"),
}
"""What OpenPBS 23.06.06 printed. Nodes and jobs are of different moments."""


def read(**texts: str) -> Occupancy:
    return cluster.read_occupancy(TEXTS | texts, "pbsuser")


def first_node(**replacements: str) -> tuple[bool, int, int, dict[str, int]]:
    """Whether it is up, its free CPUs and MiB, its free GPUs."""
    text = NODES
    for old, new in replacements.items():
        text = text.replace(f"{old.replace('__', '.')} = ", f"{old.replace('__', '.')} = {new} was ", 1)
    text = "\n".join(line.partition(" was ")[0] for line in text.split("\n"))
    node = read(nodes=text).nodes[0]
    return node.is_up, node.free_cpus, node.free_memory_mb, dict(node.free_gpus)


def test_nodes_of_a_real_pbs_are_read():
    assert [(node.name, node.partitions, node.gpus, node.is_idle) for node in read().nodes] == [
        ("pbsn1", ("workq", "short", "gate"), {"": 2}, True),
        ("pbsn2", ("workq", "short", "gate"), {"": 2}, True),
    ]


@for_each(
    ("change", "expected"),
    [
        ({}, (True, 4, 24152, {"": 2})),
        ({"resources_assigned__ngpus": "2", "resources_assigned__ncpus": "1"}, (True, 3, 24152, {"": 0})),
        ({"resources_assigned__mem": "4194304kb"}, (True, 4, 20056, {"": 2})),
        ({"resources_assigned__ncpus": "4", "state": "job-busy"}, (True, 0, 24152, {})),
        ({"state": "job-exclusive"}, (True, 0, 0, {})),
        ({"state": "down"}, (False, 0, 0, {})),
        ({"state": "free,offline"}, (False, 0, 0, {})),
        ({"state": "resv-exclusive"}, (False, 0, 0, {})),
        ({"resources_assigned__ncpus": "$(id)"}, (True, 4, 24152, {"": 2})),
    ],
)
def test_what_is_assigned_is_not_free(change: dict[str, str], expected: tuple[bool, int, int, dict[str, int]]):
    assert first_node(**change) == expected


def test_queues_that_run_jobs_are_partitions():
    assert read().partitions == (
        PartitionUse("workq", is_open=True, is_default=True),
        PartitionUse("short", is_open=True, limit_seconds=12 * 3600),
    )


def test_jobs_of_a_real_pbs_have_their_comments():
    found = read().jobs
    assert [(job.id, job.is_running, job.waits_for_resources, job.reason) for job in found] == [
        ("1.pbshead", True, False, ""),
        ("2.pbshead", True, False, ""),
        ("3.pbshead", False, True, "Not Running: Insufficient amount of resource: ngpus (R: 1 A: 0 T: 4)"),
        ("4.pbshead", False, False, ""),
        ("5.pbshead", False, False, ""),
        ("6.pbshead", False, False, "Can Never Run: Not enough total nodes available"),
        ("7.pbshead", False, False, "Can Never Run: Insufficient amount of resource: ngpus (R: 5 A: 4 T: 4)"),
    ]
    assert found[2] == QueuedJob(
        "3.pbshead",
        is_running=False,
        is_mine=True,
        partitions=("workq",),
        waits_for_resources=True,
        nodes=2,
        cpus=2,
        limit_seconds=600,
        reason="Not Running: Insufficient amount of resource: ngpus (R: 1 A: 0 T: 4)",
    )


OWN = """\
Job Id: 3.pbshead
    Job_Name = sleeper
    job_state = Q
    comment = Not Running: Draining system to allow starving job to run
    estimated.start_time = Sat Nov 21 19:13:25 2026
    Resource_List.ngpus = 4
    Resource_List.select = 2:ncpus=1:ngpus=2

"""


def test_attributes_of_the_users_jobs_add_gpus_and_the_estimate(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    job = read(own=OWN).jobs[2]
    monkeypatch.undo()
    time.tzset()
    assert (job.gpus, job.starts) == (4, 1795288405.0)
    assert job.reason == "Not Running: Draining system to allow starving job to run"


@for_each(
    "line",
    [
        "",
        "qstat: Unknown Job Id",
        "8.pbshead  pbsuser  workq",
        "x.pbshead pbsuser workq sleeper -- 2 2 -- 00:10 Q --",
        "-" * 200,
    ],
)
def test_a_line_that_is_no_job_is_dropped(line: str):
    assert read(jobs=line + "\n").jobs == ()


def test_a_user_with_a_long_name_has_jobs():
    row = "8[].pbshead a-very-long-nam workq sleeper -- 1 1 4gb 100:30 Q --\n"
    (job,) = cluster.read_occupancy({"jobs": row}, "a-very-long-name").jobs
    assert (job.is_mine, job.memory_mb, job.limit_seconds) == (True, 4096, 100 * 3600 + 1800)


def test_a_server_may_hide_the_jobs_of_others():
    assert read().sees_all_jobs
    assert not read(server=TEXTS["server"].replace("query_other_jobs = True", "query_other_jobs = False")).sees_all_jobs


def test_nothing_at_all_is_an_empty_cluster():
    assert cluster.read_occupancy({}, "ada") == Occupancy()
