"""What a cluster does not allow, refused before it is asked for, with the ways out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from serried.base.errors import UsageError
from serried.config import Cluster, Partition, Resources
from serried.schema.plan import Allocation, Site
from serried.submission.plan import allocate, gpu_note, partition_note
from tables import for_each

SLURM = Cluster("slurm", gpus_per_node=8)
CPUS_ONLY = Cluster("cpus", gpus_per_node=0)
LOCAL = Cluster("local", scheduler="local", gpus_per_node=0, cpus_per_node=8)
GIB = 1024
HOUR = 3600
ALL = 0


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


@for_each(
    ("cluster", "request_", "message", "hint"),
    [
        (
            Cluster("small", gpus_per_node=2),
            {"gpus": 3},
            "3 GPUs per node were requested, and a node of cluster `small` has 2",
            "--nodes 2 --gpus 2",
        ),
        (
            SITE,
            {"gpus": 4, "partition": "short"},
            "4 GPUs per node were requested, and a node of partition `short` has 2",
            "--nodes 2 --gpus 2",
        ),
        (
            SITE,
            {"gpus": 1, "partition": "cpu"},
            "GPUs were requested, and a node of partition `cpu` has none",
            "for CPUs alone: --gpus 0 --ranks 4",
        ),
        (LOCAL, {"gpus": 1}, "GPUs were requested, and this machine has none", "for CPUs alone: --gpus 0 --ranks 4"),
        (
            replace(LOCAL, gpus_per_node=1),
            {"gpus": 2},
            "2 GPUs per node were requested, and this machine has 1",
            "--gpus 1",
        ),
        (
            LOCAL,
            {"nodes": 2},
            "this machine is one node, and 2 were requested",
            (
                "here: --nodes 1, or `nodes = 1` in `[experiments.NAME.on.local.resources]`; "
                "on a cluster: --cluster NAME, with `serried submit` in place of `serried run`"
            ),
        ),
        (
            SITE,
            {"gpu_type": "v1000"},
            "cluster `pine` does not have GPUs of type `v1000`",
            "did you mean `v100`?",
        ),
        (SITE, {"gpu_type": "tpu"}, "cluster `pine` does not have GPUs of type `tpu`", "there are `v100`, `h100`"),
        (SITE, {"partition": "gpuu"}, "partition `gpuu` does not exist on cluster `pine`", "did you mean `gpu`?"),
        (
            SITE,
            {"nodes": 9},
            "9 nodes were requested, and partition `gpu` allows 8",
            "request at most 8; --partition short allows it",
        ),
        (
            SITE,
            {"time": 2 * 24 * HOUR},
            "2-00:00:00 were requested, and partition `gpu` allows 1-00:00:00",
            "--time 1d; or, with checkpoints, --time 1d --chain 2",
        ),
        (
            SITE,
            {"time": 8 * 24 * HOUR},
            "8-00:00:00 were requested, and cluster `pine` allows 7-00:00:00",
            "--time 7d; or, with checkpoints, --time 7d --chain 2",
        ),
        (
            SITE,
            {"gpus": 4, "ranks": 3},
            "4 GPUs cannot be shared evenly by 3 ranks",
            "give each rank the same number of GPUs, or each GPU the same number of ranks",
        ),
        (
            SITE,
            {"gpus": 4, "cpus": 16},
            "64 CPUs per node were requested, and cluster `pine` has 48",
            "`cpus` counts per GPU, or per rank without GPUs",
        ),
    ],
)
def test_what_cannot_be_is_refused_with_a_way_out(cluster: Cluster, request_: dict[str, Any], message: str, hint: str):
    with pytest.raises(UsageError) as caught:
        allocate(Resources(**request_), cluster)
    assert (caught.value.message, caught.value.hint) == (message, hint)


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
ASK = "\nask help@site, or see https://site/docs"


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
            "`cpus` counts per GPU, or per rank without GPUs; --partition wide or --partition debug allow it",
        ),
        (
            {"mem_per_node": 300 * GIB},
            "300G of memory per node were requested, and a node of partition `batch` has 256G",
            "`mem_per_node` may be at most 256G; --partition wide or --partition debug allow it",
        ),
        (
            {"gpus": 1, "cpus": 10, "mem_per_cpu": 30 * GIB},
            "300G of memory per node were requested, and a node of partition `batch` has 256G",
            "`mem_per_cpu` counts for each of the 10 CPUs of a node; --partition wide or --partition debug allow it",
        ),
        (
            {"gpus": 1, "mem": 300 * GIB},
            "300G of memory per node were requested, and a node of partition `batch` has 256G",
            "`mem` counts per GPU, or per rank without GPUs; --partition wide or --partition debug allow it",
        ),
    ],
)
def test_limits_are_refused_with_the_partitions_that_allow_it_and_whom_to_ask(
    request_: dict[str, Any], message: str, hint: str
):
    with pytest.raises(UsageError) as caught:
        allocate(Resources(**request_), BATCH)
    assert (caught.value.message, caught.value.hint) == (message, hint + ASK)


def test_a_partition_of_an_odd_name_is_offered_as_one_can_type_it():
    cluster = Cluster("x", partitions={"a": Partition(time=HOUR), "$(id) b": Partition()}, default_partition="a")
    with pytest.raises(UsageError) as caught:
        allocate(Resources(time=2 * HOUR), cluster)
    assert (caught.value.hint or "").startswith("--time 1h; --partition '$(id) b' allows it; or, with checkpoints")


def test_an_account_that_a_cluster_wants_is_missed_before_it_is_asked():
    cluster = Cluster("fir", needs_account=True, accounts=("def-*", "rrg-*"), site=Site(contact="help@site"))
    with pytest.raises(UsageError) as caught:
        allocate(Resources(), cluster)
    assert (caught.value.message, caught.value.hint) == (
        "jobs on cluster `fir` must name an account",
        (
            "--account NAME, which looks like `def-*` or `rrg-*`; or `account` in `[clusters.fir.resources]`, "
            "once for all\nask help@site"
        ),
    )
    assert allocate(Resources(account="def-ada"), cluster).account == "def-ada"


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
    asked = Allocation(1, 1, 1, 2, None, HOUR, partition=partition)
    assert partition_note(asked, BATCH, tasks, parallel) == expected


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
    cluster = Cluster("c", scheduler=scheduler, site=site)
    request = Resources(**asked)
    allocation = allocate(request, cluster)
    note = gpu_note(request, allocation, cluster)
    assert (allocation.exclusive, words in note, bool(note)) == (is_exclusive, True, bool(words))


@for_each("request_", [{"partition": "gpu,short", "gpus": 4}, {"qos": "long", "time": 48 * HOUR}])
def test_what_only_slurm_can_judge_is_left_to_it(request_: dict[str, Any]):
    assert allocate(Resources(**request_), SITE)
