from __future__ import annotations

from building import a_plan
from serried.schema.plan import Data, Staged, Sync
from serried.submission.snapshot import Revision
from serried.views.plan_lines import plan_lines
from tables import for_each


@for_each(
    ("allocation", "ranks"),
    [
        ({"nodes": 1, "ranks": 4, "gpus": 4}, "4 ranks on 1 node"),
        ({"nodes": 1, "ranks": 2, "gpus": 4}, "2 ranks on 1 node, 2 GPUs for each"),
        ({"nodes": 2, "ranks": 1, "gpus": 4}, "2 nodes, 1 rank on each: 2 in all, 4 GPUs for each"),
        ({"nodes": 2, "ranks": 8, "gpus": 2}, "2 nodes, 8 ranks on each: 16 in all, 4 to a GPU"),
        ({"nodes": 2, "ranks": 8, "gpus": 0}, "2 nodes, 8 ranks on each: 16 in all"),
    ],
)
def test_ranks_that_have_not_one_gpu_each_are_told_how_many(allocation, ranks):
    assert dict(plan_lines(a_plan(**allocation), None, Revision()))["ranks"] == ranks


def test_spare_nodes_have_a_price_and_no_ranks():
    def said(**allocation):
        lines = dict(plan_lines(a_plan(time_seconds=3600, **allocation), None, Revision()))
        return [lines.get(label) for label in ("ranks", "cost", "spare nodes")]

    limit = "at most 1h00m (stop notice after 59m00s)"
    assert said(nodes=6, spare_nodes=1, ranks=4, gpus=4) == [
        "6 nodes + 1 spare, 4 ranks on each: 24 in all",
        f"{limit}, 28 GPU-hours",
        "1 of 7 nodes: 14% of the GPU-hours",
    ]
    assert said(nodes=2, spare_nodes=2, ranks=2, cpus=8)[1:] == [
        f"{limit}, 32 CPU-hours",
        "2 of 4 nodes: 50% of the CPU-hours",
    ]
    assert said(nodes=6, ranks=4, gpus=4)[2] is None


def test_exclusive_nodes_show_all_their_cpus():
    plan = a_plan(exclusive=True, cpus=2)._replace(defaults=("resources.cpus",))
    said = dict(plan_lines(plan, None, Revision()))
    assert said["each node"] == "exclusive, 0 GPUs, all CPUs, the cluster's default memory"
    assert said["cost"].endswith("2 node-hours")


@for_each(
    ("workers", "trials", "by"),
    [(5, 1, "1 task (0), by 1 worker"), (5, 3, "3 tasks (0-2), by 3 workers"), (2, 3, "3 tasks (0-2), by 2 workers")],
)
def test_there_are_no_more_workers_than_trials(workers, trials, by):
    plan = a_plan(indices=range(trials))
    plan = plan._replace(array=plan.array._replace(draws=True, parallel=workers))
    assert dict(plan_lines(plan, None, Revision()))["array"] == by


def test_data_is_said_in_lines_of_its_own():
    stage = (
        Staged("/pool/a", "a", "", 12_400_000_000, 1_281_167),
        Staged("/pool/labels.tar", "labels", "tar", 600_000_000, 1),
        Staged("/pool/c", "c"),
    )
    whole = Data(stage, require=("/imagenet",), results=("*.csv", "samples"))
    site = a_plan().site._replace(local_disk="$SLURM_TMPDIR")
    plan = a_plan()._replace(site=site, data=whole, checkpoint=Sync(("logs/*.pt",), 30, 3))
    said = dict(plan_lines(plan, None, Revision()))
    assert [said[label] for label in ("data", "requires", "results", "checkpoints")] == [
        "a, labels (unpacked), c: more than 13.0 GB in 1,281,168 files to each node's disk",
        "/imagenet",
        "*.csv, samples: copied back every 5m and at the end",
        "logs/*.pt: copied every 30s, keeping the last 3",
    ]
    assert said["cost"].startswith("at most 1h00m (stop notice after 58m45s), ")
    without = site._replace(local_disk=None)
    sync = Sync(("{checkpoints}/*.pt", "logs/*.pt"), 30, 3)
    elsewhere = plan._replace(data=Data(stage[:1], results=("*",)), site=without, checkpoint=sync)
    said = dict(plan_lines(elsewhere, None, Revision()))
    assert said["data"] == "a: 12.4 GB in 1,281,167 files, read in place, unless nodes set SLURM_TMPDIR"
    assert said["results"] == "*: written to the run directory, unless nodes set SLURM_TMPDIR"
    assert said["checkpoints"] == (
        "logs/*.pt: copied every 30s, keeping the last 3; {checkpoints}/*.pt: written to the run directory, "
        "which keeps all, unless nodes set SLURM_TMPDIR"
    )


@for_each(
    ("nodes", "seconds", "hours"),
    [
        (1, 60, "0.0667 GPU-hours"),
        (2, 3600, "8 GPU-hours"),
        (100, 86400, "9,600 GPU-hours"),
        (8, 86400, "768 GPU-hours"),
    ],
)
def test_hours_are_figures_that_one_reads(nodes, seconds, hours):
    plan = a_plan(nodes=nodes, ranks=4, gpus=4, time_seconds=seconds)
    assert f" {hours}" in dict(plan_lines(plan, None, Revision()))["cost"]
