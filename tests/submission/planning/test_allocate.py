from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from serried.base.text import show_walltime
from serried.config import Cluster, Gpu, Partition, Resources
from serried.schema.plan import Allocation
from serried.submission.plan import allocate, left_out
from tables import for_each

SLURM = Cluster("slurm", gpus_per_node=8)
CPUS_ONLY = Cluster("cpus", gpus_per_node=0)
LOCAL = Cluster("local", scheduler="local", gpus_per_node=0, cpus_per_node=8)
GIB = 1024
HOUR = 3600
ALL = 0

Row = tuple[str, dict[str, Any], Allocation]

MEASURED: list[Row] = [
    # Bash submitter for Cedar: N nodes, G GPUs per node, c CPUs per GPU, m memory per GPU.
    (
        "standard",
        {"gpus": 1, "cpus": 2, "mem": 10 * GIB, "time": HOUR},
        Allocation(nodes=1, ranks=1, gpus=1, cpus=2, memory_mb=10 * GIB, time_seconds=HOUR),
    ),
    (
        "sweep",
        {"gpus": 1, "cpus": 6, "mem": 16 * GIB, "time": HOUR},
        Allocation(nodes=1, ranks=1, gpus=1, cpus=6, memory_mb=16 * GIB, time_seconds=HOUR),
    ),
    (
        "distributed lightning: G tasks of c CPUs",
        {"nodes": 2, "gpus": 4, "gpu_type": "v100l", "cpus": 3, "mem": 10 * GIB, "time": HOUR},
        Allocation(nodes=2, ranks=4, gpus=4, cpus=12, memory_mb=40 * GIB, time_seconds=HOUR, gpu_type="v100l"),
    ),
    (
        "distributed torchrun: one task of c x G CPUs",
        {"nodes": 2, "gpus": 4, "cpus": 3, "mem_per_node": 10 * GIB, "time": HOUR},
        Allocation(nodes=2, ranks=4, gpus=4, cpus=12, memory_mb=10 * GIB, time_seconds=HOUR),
    ),
    (
        "no GPUs: no gres",
        {"nodes": 2, "gpus": 0, "ranks": 4, "cpus": 2, "mem": 1 * GIB, "time": HOUR},
        Allocation(nodes=2, ranks=4, gpus=0, cpus=8, memory_mb=4 * GIB, time_seconds=HOUR),
    ),
    # PyTorch DDP boilerplate: memory per CPU.
    (
        "2 tasks of 6 CPUs per node, 4G per CPU",
        {"nodes": 2, "gpus": 2, "cpus": 6, "mem_per_cpu": 4 * GIB, "time": 900, "partition": "shared-gpu"},
        Allocation(nodes=2, ranks=2, gpus=2, cpus=12, memory_mb=48 * GIB, time_seconds=900, partition="shared-gpu"),
    ),
    # Satori's templates: whole nodes take all memory.
    (
        "satori 1 GPU",
        {"gpus": 1, "cpus": 1, "mem_per_node": 128 * GIB, "time": 2 * HOUR},
        Allocation(nodes=1, ranks=1, gpus=1, cpus=1, memory_mb=128 * GIB, time_seconds=2 * HOUR),
    ),
    (
        "satori 2 GPUs",
        {"gpus": 2, "cpus": 1, "mem_per_node": 256 * GIB, "time": 2 * HOUR},
        Allocation(nodes=1, ranks=2, gpus=2, cpus=2, memory_mb=256 * GIB, time_seconds=2 * HOUR),
    ),
    (
        "satori 4 GPUs",
        {"gpus": 4, "cpus": 1, "mem": ALL, "time": 10 * HOUR, "exclusive": True},
        Allocation(nodes=1, ranks=4, gpus=4, cpus=4, memory_mb=ALL, time_seconds=10 * HOUR, exclusive=True),
    ),
    (
        "satori 8 GPUs on 2 nodes",
        {"nodes": 2, "gpus": 4, "cpus": 1, "time": 10 * HOUR, "exclusive": True, "partition": "sched_system_all"},
        Allocation(
            nodes=2,
            ranks=4,
            gpus=4,
            cpus=4,
            memory_mb=ALL,
            time_seconds=10 * HOUR,
            exclusive=True,
            partition="sched_system_all",
        ),
    ),
    (
        "satori 16 GPUs on 4 nodes",
        {"nodes": 4, "gpus": 4, "cpus": 1, "time": 10 * HOUR, "exclusive": True, "partition": "sched_system_all"},
        Allocation(
            nodes=4,
            ranks=4,
            gpus=4,
            cpus=4,
            memory_mb=ALL,
            time_seconds=10 * HOUR,
            exclusive=True,
            partition="sched_system_all",
        ),
    ),
    # HPC_helper on Compute Canada, and what it asked of PBS on Sockeye (8 CPUs for 4 GPUs).
    (
        "8 ranks on 2 nodes, 8 CPUs each, 64G per node",
        {"nodes": 2, "gpus": 4, "gpu_type": "v100l", "cpus": 8, "mem_per_node": 64 * GIB, "time": 1200},
        Allocation(nodes=2, ranks=4, gpus=4, cpus=32, memory_mb=64 * GIB, time_seconds=1200, gpu_type="v100l"),
    ),
    (
        "sockeye",
        {"nodes": 2, "gpus": 4, "cpus": 2, "mem_per_node": 64 * GIB, "time": 1200},
        Allocation(nodes=2, ranks=4, gpus=4, cpus=8, memory_mb=64 * GIB, time_seconds=1200),
    ),
    # Horovod on Ibex: 8 GPUs, 6 CPUs and 90G each, two constraints that must both hold.
    (
        "ibex",
        {
            "gpus": 8,
            "cpus": 6,
            "mem": 90 * GIB,
            "time": 24 * HOUR,
            "partition": "batch",
            "constraint": ("v100", "cpu_intel_platinum_8260"),
        },
        Allocation(
            nodes=1,
            ranks=8,
            gpus=8,
            cpus=48,
            memory_mb=720 * GIB,
            time_seconds=24 * HOUR,
            partition="batch",
            constraint=("v100", "cpu_intel_platinum_8260"),
        ),
    ),
    (
        "ibex fork: total GPUs over nodes, 45G and 4 CPUs per GPU",
        {"nodes": 2, "gpus": 4, "gpu_type": "v100", "cpus": 4, "mem": 45 * GIB, "time": 24 * HOUR},
        Allocation(nodes=2, ranks=4, gpus=4, cpus=16, memory_mb=180 * GIB, time_seconds=24 * HOUR, gpu_type="v100"),
    ),
]


@for_each(("request_", "expected"), [row[1:] for row in MEASURED])
def test_what_the_systems_before_us_asked_for_comes_out_the_same(request_: dict[str, Any], expected: Allocation):
    assert allocate(Resources(**request_), SLURM) == expected


@for_each(
    ("name", "gpus", "ranks", "cpus"),
    [
        ("satori 8 GPUs on 2 nodes", 8, 8, 8),
        ("satori 16 GPUs on 4 nodes", 16, 16, 16),
        ("8 ranks on 2 nodes, 8 CPUs each, 64G per node", 8, 8, 64),
        ("distributed torchrun: one task of c x G CPUs", 8, 8, 24),
        ("ibex", 8, 8, 48),
    ],
)
def test_totals_over_all_nodes_are_what_slurm_would_count(name: str, gpus: int, ranks: int, cpus: int):
    asked = allocate(Resources(**next(request for title, request, _ in MEASURED if title == name)), SLURM)
    assert (asked.nodes * asked.gpus, asked.nodes * asked.ranks, asked.nodes * asked.cpus) == (gpus, ranks, cpus)


@for_each(
    ("cluster", "request_", "expected"),
    [
        (SLURM, {}, Allocation(nodes=1, ranks=1, gpus=1, cpus=2, memory_mb=10 * GIB, time_seconds=HOUR)),
        (SLURM, {"gpus": 4}, Allocation(nodes=1, ranks=4, gpus=4, cpus=8, memory_mb=40 * GIB, time_seconds=HOUR)),
        (SLURM, {"ranks": 4}, Allocation(nodes=1, ranks=4, gpus=0, cpus=8, memory_mb=40 * GIB, time_seconds=HOUR)),
        (
            SLURM,
            {"gpus": 4, "ranks": 1},
            Allocation(nodes=1, ranks=1, gpus=4, cpus=8, memory_mb=40 * GIB, time_seconds=HOUR),
        ),
        (CPUS_ONLY, {}, Allocation(nodes=1, ranks=1, gpus=0, cpus=2, memory_mb=10 * GIB, time_seconds=HOUR)),
        (
            SLURM,
            {"exclusive": True},
            Allocation(nodes=1, ranks=1, gpus=1, cpus=2, memory_mb=ALL, time_seconds=HOUR, exclusive=True),
        ),
        (LOCAL, {}, Allocation(nodes=1, ranks=1, gpus=0, cpus=2, memory_mb=None, time_seconds=None)),
        (LOCAL, {"ranks": 8}, Allocation(nodes=1, ranks=8, gpus=0, cpus=8, memory_mb=None, time_seconds=None)),
        (LOCAL, {"ranks": 16}, Allocation(nodes=1, ranks=16, gpus=0, cpus=8, memory_mb=None, time_seconds=None)),
    ],
)
def test_what_is_left_out_is_filled_in(cluster: Cluster, request_: dict[str, Any], expected: Allocation):
    assert allocate(Resources(**request_), cluster) == expected


def test_a_typed_gpu_is_one_gpu_also_where_nobody_knows_of_any():
    asked = allocate(Resources(gpu_type="v100"), Cluster("slurm"))
    assert (asked.gpus, asked.gpu_type) == (1, "v100")


def test_the_default_time_is_what_the_partition_allows_where_that_is_less():
    cluster = replace(SLURM, partitions={"debug": Partition(time=1800)}, default_partition="debug")
    assert allocate(Resources(), cluster).time_seconds == 1800


def test_what_was_left_out_is_known():
    assert left_out(Resources(nodes=2, mem_per_cpu=1)) == (
        "resources.gpus",
        "resources.ranks",
        "resources.cpus",
        "resources.time",
    )


@for_each(
    ("request_", "cpus", "memory"),
    [
        ({"gpus": 2, "gpu_type": "v100"}, 12, 128 * GIB),
        ({"gpus": 2}, 12, 128 * GIB),
        ({"gpus": 2, "gpu_type": "a100"}, 4, 20 * GIB),
        ({"gpus": 2, "cpus": 1, "mem": GIB}, 2, 2 * GIB),
        ({"ranks": 2}, 4, 20 * GIB),
        ({"gpus": 1, "exclusive": True}, 6, ALL),
    ],
)
def test_a_rule_of_thumb_fills_in_what_goes_with_a_gpu(request_: dict[str, Any], cpus: int, memory: int):
    ibex = Cluster("ibex", gpus_per_node=8, gpus={"v100": Gpu(cpus=6, mem=64 * GIB)})
    asked = allocate(Resources(**request_), ibex)
    assert (asked.cpus, asked.memory_mb) == (cpus, memory)


def test_what_nobody_asked_for_is_never_more_than_a_node_has():
    small = replace(SLURM, partitions={"p": Partition(cpus=6, mem=32 * GIB)}, default_partition="p")
    asked = allocate(Resources(gpus=4), small)
    assert (asked.cpus, asked.memory_mb) == (6, 32 * GIB)


@for_each(("seconds", "text"), [(5, "0:00:05"), (5400, "1:30:00"), (86400, "1-00:00:00"), (90061, "1-01:01:01")])
def test_times_are_written_as_slurm_does(seconds: int, text: str):
    assert show_walltime(seconds) == text


counts = st.integers(min_value=1, max_value=64)


@given(nodes=counts, gpus=counts, cpus=counts, mem=counts)
def test_cpus_and_memory_grow_with_the_gpus_and_never_with_the_nodes(nodes: int, gpus: int, cpus: int, mem: int):
    asked = allocate(Resources(nodes=nodes, gpus=gpus, cpus=cpus, mem=mem), Cluster("any"))
    assert (asked.cpus, asked.memory_mb, asked.ranks) == (cpus * gpus, mem * gpus, gpus)
