"""What a request is given, and what a cluster does not allow: refused before it is asked for, with the ways out."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serried.base.errors import UsageError
from serried.base.text import show_walltime
from serried.config import Cluster, Gpu, Partition, Resources
from serried.schema.plan import Allocation, Site
from serried.submission.plan import allocate, gpu_note, left_out, partition_note
from tables import for_each

SLURM = Cluster("slurm", gpus_per_node=8)
CPUS_ONLY = Cluster("cpus", gpus_per_node=0)
LOCAL = Cluster("local", scheduler="local", gpus_per_node=0, cpus_per_node=8)
GIB, HOUR, ALL = 1024, 3600, 0


def taken(*amounts: Any, **rest: Any) -> Allocation:
    """`amounts`: nodes, ranks, GPUs, CPUs, MiB of memory and hours."""
    *counts, hours = amounts
    return Allocation(*counts, None if hours is None else int(hours * HOUR), **rest)


WHOLE = {"gpus": 4, "cpus": 1, "time": 10 * HOUR, "exclusive": True, "partition": "sched_system_all"}
IBEX = {"partition": "batch", "constraint": ("v100", "cpu_intel_platinum_8260")}
V100L = {"nodes": 2, "gpus": 4, "gpu_type": "v100l"}


@for_each(
    ("request_", "expected"),
    [
        # Bash submitter for Cedar: N nodes, G GPUs per node, c CPUs per GPU, m memory per GPU.
        ({"gpus": 1, "cpus": 2, "mem": 10 * GIB, "time": HOUR}, taken(1, 1, 1, 2, 10 * GIB, 1)),
        ({"gpus": 1, "cpus": 6, "mem": 16 * GIB, "time": HOUR}, taken(1, 1, 1, 6, 16 * GIB, 1)),
        # Distributed lightning: G tasks of c CPUs.
        ({**V100L, "cpus": 3, "mem": 10 * GIB, "time": HOUR}, taken(2, 4, 4, 12, 40 * GIB, 1, gpu_type="v100l")),
        # Distributed torchrun: one task of c x G CPUs.
        ({"nodes": 2, "gpus": 4, "cpus": 3, "mem_per_node": 10 * GIB, "time": HOUR}, taken(2, 4, 4, 12, 10 * GIB, 1)),
        # No GPUs: no gres.
        ({"nodes": 2, "gpus": 0, "ranks": 4, "cpus": 2, "mem": GIB, "time": HOUR}, taken(2, 4, 0, 8, 4 * GIB, 1)),
        # PyTorch DDP boilerplate: 2 tasks of 6 CPUs per node, 4G per CPU.
        (
            {"nodes": 2, "gpus": 2, "cpus": 6, "mem_per_cpu": 4 * GIB, "time": 900, "partition": "shared-gpu"},
            taken(2, 2, 2, 12, 48 * GIB, 0.25, partition="shared-gpu"),
        ),
        # Satori's templates: whole nodes take all memory.
        ({"gpus": 1, "cpus": 1, "mem_per_node": 128 * GIB, "time": 2 * HOUR}, taken(1, 1, 1, 1, 128 * GIB, 2)),
        ({"gpus": 2, "cpus": 1, "mem_per_node": 256 * GIB, "time": 2 * HOUR}, taken(1, 2, 2, 2, 256 * GIB, 2)),
        (
            {"gpus": 4, "cpus": 1, "mem": ALL, "time": 10 * HOUR, "exclusive": True},
            taken(1, 4, 4, 4, ALL, 10, exclusive=True),
        ),
        ({"nodes": 2, **WHOLE}, taken(2, 4, 4, 4, ALL, 10, exclusive=True, partition="sched_system_all")),
        ({"nodes": 4, **WHOLE}, taken(4, 4, 4, 4, ALL, 10, exclusive=True, partition="sched_system_all")),
        # HPC_helper on Compute Canada, and what it asked of PBS on Sockeye (8 CPUs for 4 GPUs).
        (
            {**V100L, "cpus": 8, "mem_per_node": 64 * GIB, "time": 1800},
            taken(2, 4, 4, 32, 64 * GIB, 0.5, gpu_type="v100l"),
        ),
        ({"nodes": 2, "gpus": 4, "cpus": 2, "mem_per_node": 64 * GIB, "time": 1800}, taken(2, 4, 4, 8, 64 * GIB, 0.5)),
        # Horovod on Ibex: 8 GPUs, 6 CPUs and 90G each, two constraints that must both hold.
        ({"gpus": 8, "cpus": 6, "mem": 90 * GIB, "time": 24 * HOUR, **IBEX}, taken(1, 8, 8, 48, 720 * GIB, 24, **IBEX)),
        # Its fork: total GPUs over nodes, 45G and 4 CPUs per GPU.
        (
            {"nodes": 2, "gpus": 4, "gpu_type": "v100", "cpus": 4, "mem": 45 * GIB, "time": 24 * HOUR},
            taken(2, 4, 4, 16, 180 * GIB, 24, gpu_type="v100"),
        ),
    ],
)
def test_requests_of_earlier_systems_give_the_same_allocations(request_: dict[str, Any], expected: Allocation):
    assert allocate(Resources(**request_), SLURM) == expected


@for_each(
    ("cluster", "request_", "expected"),
    [
        (SLURM, {}, taken(1, 1, 1, 2, 10 * GIB, 1)),
        (SLURM, {"gpus": 4}, taken(1, 4, 4, 8, 40 * GIB, 1)),
        (SLURM, {"ranks": 4}, taken(1, 4, 0, 8, 40 * GIB, 1)),
        (SLURM, {"gpus": 4, "ranks": 1}, taken(1, 1, 4, 8, 40 * GIB, 1)),
        (CPUS_ONLY, {}, taken(1, 1, 0, 2, 10 * GIB, 1)),
        (SLURM, {"exclusive": True}, taken(1, 1, 1, 2, ALL, 1, exclusive=True)),
        (LOCAL, {}, taken(1, 1, 0, 2, None, None)),
        (LOCAL, {"ranks": 8}, taken(1, 8, 0, 8, None, None)),
        (LOCAL, {"ranks": 16}, taken(1, 16, 0, 8, None, None)),
        # A GPU of a type is one GPU, also on a cluster without known GPUs.
        (Cluster("slurm"), {"gpu_type": "v100"}, taken(1, 1, 1, 2, 10 * GIB, 1, gpu_type="v100")),
        # The defaults are at most what the partition allows, and what a node has.
        (
            SLURM._replace(partitions={"debug": Partition(time=1800)}, default_partition="debug"),
            {},
            taken(1, 1, 1, 2, 10 * GIB, 0.5),
        ),
        (
            SLURM._replace(partitions={"p": Partition(cpus=6, mem=32 * GIB)}, default_partition="p"),
            {"gpus": 4},
            taken(1, 4, 4, 6, 32 * GIB, 1),
        ),
    ],
)
def test_what_is_left_out_is_filled_in(cluster: Cluster, request_: dict[str, Any], expected: Allocation):
    assert allocate(Resources(**request_), cluster) == expected


def test_what_was_left_out_is_known():
    left = [f"resources.{key}" for key in ("gpus", "ranks", "cpus", "time")]
    assert left_out(Resources(nodes=2, mem_per_cpu=1)) == tuple(left)


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
def test_a_rule_of_the_profile_fills_in_what_goes_with_a_gpu(request_: dict[str, Any], cpus: int, memory: int):
    ibex = Cluster("ibex", gpus_per_node=8, gpus={"v100": Gpu(cpus=6, mem=64 * GIB)})
    allocation = allocate(Resources(**request_), ibex)
    assert (allocation.cpus, allocation.memory_mb) == (cpus, memory)


@for_each(("seconds", "text"), [(5, "0:00:05"), (5400, "1:30:00"), (86400, "1-00:00:00"), (90061, "1-01:01:01")])
def test_times_are_written_as_slurm_does(seconds: int, text: str):
    assert show_walltime(seconds) == text


numbers = st.integers(min_value=1, max_value=64)


@given(nodes=numbers, gpus=numbers, cpus=numbers, mem=numbers)
def test_cpus_and_memory_grow_with_the_gpus_and_never_with_the_nodes(nodes: int, gpus: int, cpus: int, mem: int):
    allocation = allocate(Resources(nodes=nodes, gpus=gpus, cpus=cpus, mem=mem), Cluster("any"))
    assert (allocation.cpus, allocation.memory_mb, allocation.ranks) == (cpus * gpus, mem * gpus, gpus)


SMALL = Cluster("small", gpus_per_node=2)
SITE = Cluster(
    "pine",
    gpus_per_node=4,
    cpus_per_node=48,
    gpu_types=("v100", "h100"),
    max_time=7 * 24 * HOUR,
    partitions={
        "gpu": Partition(time=24 * HOUR, nodes=8, gpus=4),
        "short": Partition(time=HOUR, gpus=2),
        "cpu": Partition(gpus=0),
    },
    default_partition="gpu",
)
CPUS = "for CPUs alone: --gpus 0 --ranks 4"
HERE = (
    "here: --nodes 1, or `nodes = 1` in `[experiments.NAME.on.local.resources]`; "
    "on a cluster: serried submit --cluster NAME"
)
NO_ACCOUNT = (
    "--account NAME, which looks like `def-*` or `rrg-*`; or `account` in `[clusters.fir.resources]`, "
    "once for all\nask help@site"
)
PER_GPU = "counts per GPU, or per rank without GPUs"


@for_each(
    ("cluster", "request_", "refusal"),
    [
        (
            SMALL,
            {"gpus": 3},
            ("3 GPUs per node were requested, and a node of cluster `small` has 2", "--nodes 2 --gpus 2"),
        ),
        (
            SITE,
            {"gpus": 4, "partition": "short"},
            ("4 GPUs per node were requested, and a node of partition `short` has 2", "--nodes 2 --gpus 2"),
        ),
        (SITE, {"gpus": 1, "partition": "cpu"}, ("GPUs were requested, and a node of partition `cpu` has none", CPUS)),
        (LOCAL, {"gpus": 1}, ("GPUs were requested, and this machine has none", CPUS)),
        (
            LOCAL._replace(gpus_per_node=1),
            {"gpus": 2},
            ("2 GPUs per node were requested, and this machine has 1", "--gpus 1"),
        ),
        (LOCAL, {"nodes": 2}, ("this machine is one node, and 2 were requested", HERE)),
        (SITE, {"gpu_type": "v1000"}, ("cluster `pine` does not have GPUs of type `v1000`", "did you mean `v100`?")),
        (SITE, {"gpu_type": "tpu"}, ("cluster `pine` does not have GPUs of type `tpu`", "there are `v100`, `h100`")),
        (SITE, {"partition": "gpuu"}, ("partition `gpuu` does not exist on cluster `pine`", "did you mean `gpu`?")),
        (
            SITE,
            {"nodes": 9},
            ("9 nodes were requested, and partition `gpu` allows 8", "request at most 8; --partition short allows it"),
        ),
        (
            SITE,
            {"nodes": 8, "spare_nodes": 1},
            (
                "8 nodes and 1 spare were requested, and partition `gpu` allows 8",
                "request at most 8; --partition short allows it",
            ),
        ),
        (
            SITE,
            {"time": 2 * 24 * HOUR},
            (
                "2-00:00:00 were requested, and partition `gpu` allows 1-00:00:00",
                "--time 1d; or, with checkpoints, --time 1d --chain 2",
            ),
        ),
        (
            SITE,
            {"time": 8 * 24 * HOUR},
            (
                "8-00:00:00 were requested, and cluster `pine` allows 7-00:00:00",
                "--time 7d; or, with checkpoints, --time 7d --chain 2",
            ),
        ),
        (
            SITE,
            {"gpus": 4, "ranks": 3},
            (
                "4 GPUs cannot be shared evenly by 3 ranks",
                "give each rank the same number of GPUs, or each GPU the same number of ranks",
            ),
        ),
        (
            SITE,
            {"gpus": 4, "cpus": 16},
            ("64 CPUs per node were requested, and cluster `pine` has 48", f"`cpus` {PER_GPU}"),
        ),
        (
            Cluster("fir", needs_account=True, accounts=("def-*", "rrg-*"), site=Site(contact="help@site")),
            {},
            ("jobs on cluster `fir` must name an account", NO_ACCOUNT),
        ),
        (  # a partition of an odd name is offered as one can type it
            Cluster("x", partitions={"a": Partition(time=HOUR), "$(id) b": Partition()}, default_partition="a"),
            {"time": 2 * HOUR},
            (
                "2:00:00 were requested, and partition `a` allows 1:00:00",
                "--time 1h; --partition '$(id) b' allows it; or, with checkpoints, --time 1h --chain 2",
            ),
        ),
    ],
)
def test_what_cannot_be_is_refused_with_a_way_out(cluster: Cluster, request_: dict[str, Any], refusal: tuple[str, str]):
    with pytest.raises(UsageError) as caught:
        allocate(Resources(**request_), cluster)
    assert (caught.value.message, caught.value.hint) == refusal


BATCH = Cluster(
    "satori",
    site=Site(contact="help@site", docs="https://site/docs"),
    partitions={
        "batch": Partition(time=12 * HOUR, cpus=40, mem=256 * GIB, jobs=1),
        "wide": Partition(time=24 * HOUR, nodes=2, total_gpus=8),
        "debug": Partition(time=HOUR),
    },
    default_partition="batch",
)
TOO_MUCH_MEMORY = "300G of memory per node were requested, and a node of partition `batch` has 256G"
OTHERS = "; --partition wide or --partition debug allow it"


@for_each(
    ("request_", "message", "hint"),
    [
        (
            {"time": 24 * HOUR},
            "1-00:00:00 were requested, and partition `batch` allows 12:00:00",
            "--time 12h; --partition wide allows it; or, with checkpoints, --time 12h --chain 2",
        ),
        (
            {"time": 30 * HOUR},
            "1-06:00:00 were requested, and partition `batch` allows 12:00:00",
            "--time 12h; or, with checkpoints, --time 12h --chain 3",
        ),
        (
            {"nodes": 3, "partition": "wide"},
            "3 nodes were requested, and partition `wide` allows 2",
            "request at most 2; --partition batch or --partition debug allow it",
        ),
        (
            {"nodes": 2, "gpus": 8, "partition": "wide", "time": 18 * HOUR},
            "16 GPUs were requested in all, and partition `wide` allows 8 per job",
            "request at most 8",
        ),
        (
            {"gpus": 4, "cpus": 12},
            "48 CPUs per node were requested, and a node of partition `batch` has 40",
            f"`cpus` {PER_GPU}{OTHERS}",
        ),
        ({"mem_per_node": 300 * GIB}, TOO_MUCH_MEMORY, f"`mem_per_node` may be at most 256G{OTHERS}"),
        (
            {"gpus": 1, "cpus": 10, "mem_per_cpu": 30 * GIB},
            TOO_MUCH_MEMORY,
            f"`mem_per_cpu` counts for each of the 10 CPUs of a node{OTHERS}",
        ),
        (
            {"nodes": 1, "spare_nodes": 1, "gpus": 8, "cpus": 1, "partition": "wide"},
            "16 GPUs were requested in all, and partition `wide` allows 8 per job",
            "request at most 8; --partition batch or --partition debug allow it",
        ),
        ({"gpus": 1, "mem": 300 * GIB}, TOO_MUCH_MEMORY, f"`mem` {PER_GPU}{OTHERS}"),
    ],
)
def test_limits_are_refused_with_the_partitions_that_allow_it_and_whom_to_ask(
    request_: dict[str, Any], message: str, hint: str
):
    with pytest.raises(UsageError) as caught:
        allocate(Resources(**request_), BATCH)
    assert (caught.value.message, caught.value.hint) == (message, f"{hint}\nask help@site, or see https://site/docs")


@for_each(
    ("partition", "tasks", "parallel", "expected"),
    [
        (None, 10, None, "partition `batch` runs 1 of your jobs at a time: the 10 tasks take turns"),
        (None, 10, 1, ""),
        (None, 1, None, ""),
        ("wide", 10, None, ""),
        ("elsewhere", 10, None, ""),
    ],
)
def test_tasks_that_cannot_run_side_by_side_are_said_to_take_turns(
    partition: str | None, tasks: int, parallel: int | None, expected: str
):
    assert partition_note(taken(1, 1, 1, 2, None, 1, partition=partition), BATCH, tasks, parallel) == expected


@for_each(
    ("asked", "scheduler", "hides", "is_exclusive", "words"),
    [
        ({"gpus": 2}, "pbs", False, True, "takes whole nodes"),
        ({"gpus": 2, "exclusive": False}, "pbs", False, False, "may use the same GPUs"),
        ({"gpus": 2, "exclusive": True}, "pbs", False, True, ""),
        ({"gpus": 2}, "pbs", True, False, ""),
        ({"gpus": 0}, "pbs", False, False, ""),
        ({"gpus": 2}, "slurm", False, False, ""),
    ],
)
def test_a_job_that_could_use_gpus_of_another_takes_whole_nodes_and_a_note_names_the_reason(
    asked: dict[str, Any], scheduler: str, hides: bool, is_exclusive: bool, words: str
):
    site = Cluster("c").site._replace(hides_gpus=hides)
    cluster, request = Cluster("c", scheduler=scheduler, site=site), Resources(**asked)
    allocation = allocate(request, cluster)
    note = gpu_note(request, allocation, cluster)
    assert (allocation.exclusive, words in note, bool(note)) == (is_exclusive, True, bool(words))


@for_each(
    ("cluster", "request_"),
    [
        # Only the scheduler can judge several partitions, and a QoS.
        (SITE, {"partition": "gpu,short", "gpus": 4}),
        (SITE, {"qos": "long", "time": 48 * HOUR}),
        (Cluster("fir", needs_account=True), {"account": "def-ada"}),
    ],
)
def test_what_is_possible_is_allowed(cluster: Cluster, request_: dict[str, Any]):
    assert allocate(Resources(**request_), cluster)
