"""Where a job fits, and what would start sooner."""

from __future__ import annotations

from typing import Any

from serried.schedulers.occupancy import JobShape, NodeUse, Occupancy, Opening, PartitionUse, QueuedJob
from tables import for_each

NOW = 1_795_000_000.0


def node(name: str, free: int, partitions: tuple[str, ...] = ("gpu",), **fields: Any) -> NodeUse:
    """A node with four GPUs and 16 CPUs."""
    own = NodeUse(
        name, partitions, "mixed", True, False, 16, 4 * free, 65536, 16384 * free, {"a100": 4}, {"a100": free}
    )
    return own._replace(**fields)


GPU, SHORT = PartitionUse("gpu", is_open=True, is_default=True), PartitionUse("short", True, limit_seconds=3600)
FREE = Occupancy((node("n1", 3), node("n2", 1), node("n3", 0)), (GPU, SHORT))
JOB = QueuedJob("7", is_running=False, is_mine=True, partitions=("gpu",), waits_for_resources=True)


@for_each(
    ("shape", "where"),
    [
        (JobShape(nodes=1, gpus=3), ["gpu"]),
        (JobShape(nodes=2, gpus=1), ["gpu"]),
        (JobShape(nodes=2, gpus=2), []),
        (JobShape(nodes=1, gpus=4), []),
        (JobShape(nodes=1, gpus=1, gpu_type="v100"), []),
        (JobShape(nodes=1, gpus=3, gpu_type="a100", cpus=12, memory_mb=49152), ["gpu"]),
        (JobShape(nodes=1, gpus=3, cpus=13), []),
        (JobShape(nodes=1, gpus=3, memory_mb=49153), []),
        (JobShape(nodes=1, gpus=1, whole_nodes=True), []),
        (JobShape(nodes=1, gpus=1, partitions=("short",)), []),
        (JobShape(nodes=1, gpus=1, partitions=("nowhere",)), []),
    ],
)
def test_a_job_fits_if_each_of_its_nodes_is_free(shape: JobShape, where: list[str]):
    assert FREE.fits_now(shape) == where


def test_a_job_fits_only_where_its_time_is_allowed_and_jobs_start():
    here = FREE._replace(nodes=(node("n1", 4, ("short", "closed")),), partitions=(SHORT, PartitionUse("closed", False)))
    assert here.fits_now(JobShape(1, 4, seconds=3600, partitions=("short", "closed"))) == ["short"]
    assert here.fits_now(JobShape(1, 4, seconds=3601, partitions=("short", "closed"))) == []


def test_gpus_without_a_type_may_be_of_the_type_that_a_job_names():
    untyped = node("n1", 4, gpus={"": 4}, free_gpus={"": 4})
    assert FREE._replace(nodes=(untyped,)).fits_now(JobShape(1, 4, "a100")) == ["gpu"]


def test_the_jobs_ahead_wait_for_the_same_partition_and_come_first():
    other = JOB._replace(partitions=("cpu",))
    held = JOB._replace(id="4", waits_for_resources=False)
    jobs = (JOB._replace(id="1"), other, held, JOB, JOB._replace(id="9"))
    assert [job.id for job in FREE._replace(jobs=jobs).ahead_of(JOB)] == ["1"]


def sooner(shape: JobShape, occupancy: Occupancy = FREE, *ahead: QueuedJob) -> list[Opening]:
    return occupancy.sooner(shape, ahead, NOW)


def test_fewer_nodes_or_fewer_gpus_on_one_node_start_sooner():
    two = JobShape(2, 3, cpus=3, partitions=("gpu",))
    assert sooner(two) == [Opening("smaller", two._replace(nodes=1))]
    large = JobShape(2, 4, cpus=8, memory_mb=8192)
    shrunk = JobShape(1, 3, cpus=6, memory_mb=6144, partitions=("gpu",))
    assert sooner(large) == [Opening("smaller", shrunk)]
    assert sooner(large._replace(gpu_type="v100")) == []


def test_another_partition_is_named_with_its_time_limit_if_no_job_waits_there():
    here = FREE._replace(nodes=(*FREE.nodes, node("s1", 4, ("short",))))
    four = JobShape(1, 4, seconds=36000)
    moved = Opening("partition", four._replace(partitions=("short",), seconds=3600))
    assert sooner(four, here)[0] == moved
    busy = here._replace(jobs=(JOB._replace(partitions=("short",)),))
    assert moved not in sooner(four, busy)
    for change in ({"is_for_me": False}, {"is_hidden": True}, {"is_open": False}):
        closed = here._replace(partitions=(GPU, SHORT._replace(**change)))
        assert moved not in sooner(four, closed)


@for_each(
    ("starts", "seconds", "window"),
    [
        (NOW + 3.6 * 3600, 36000, 3 * 3600),
        (NOW + 1.9 * 3600, 36000, 5400),
        (NOW + 1700, None, 1500),
        (NOW + 500, 36000, None),  # too short for anything
        (NOW + 36000, 3600, None),  # it is already shorter
        (NOW - 60, 36000, None),  # the estimate has passed
        (None, 36000, None),
    ],
)
def test_a_job_that_ends_before_the_next_one_starts_may_go_first(
    starts: float | None, seconds: int | None, window: int | None
):
    shape = JobShape(1, 3, seconds=seconds)
    found = sooner(shape, FREE, JOB._replace(starts=starts))
    assert [one.shape.seconds for one in found] == ([window] if window else [])


def test_nodes_that_are_kept_for_a_job_are_free_only_for_a_shorter_one():
    kept = FREE._replace(nodes=(node("n1", 4, is_planned=True),))
    shape = JobShape(1, 4, seconds=36000)
    assert kept.fits_now(shape) == []
    assert [one.kind for one in sooner(shape, kept, JOB._replace(starts=NOW + 7200))] == ["shorter"]


def test_a_job_in_the_queue_has_its_totals_spread_over_its_nodes():
    job = JOB._replace(nodes=2, gpus=5, cpus=3, memory_mb=5000, limit_seconds=60)
    assert JobShape.of(job) == JobShape(2, 3, "", 2, 2500, 60, ("gpu",))
    assert JobShape.of(JOB._replace(nodes=0)).nodes == 1
