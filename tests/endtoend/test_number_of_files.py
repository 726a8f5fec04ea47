"""The plan says how many files and folders a run leaves in its run directory: quotas count them."""

from __future__ import annotations

import re

import pytest

from serried.schema.layout import state_directory

SHORT = ("--set", "sampling.every=off")
"""The runs here end before a sampler starts."""


@pytest.mark.parametrize(
    "options",
    [
        ("--", "true"),
        ("--ranks", "3", "--", "true"),
        ("--array", "0-2", "--", "true"),
        ("--set", "environment.setup=ulimit -n 512", "--", "true"),
        ("--set", "launch.kind=agent", "--set", "limit.restarts=2", "--", "true"),
    ],
    ids=["one rank", "three ranks", "three tasks", "setup", "restarts"],
)
def test_a_run_leaves_as_many_files_as_the_plan_says(local, options):
    (local.project / "sub").mkdir()
    (local.project / "sub" / "data.txt").write_text("code")

    done = local.serried("submit", *SHORT, *options)

    assert done.returncode == 0, done.stderr
    said = re.search(r"^creates +(\d+) files and folders", done.stderr, re.MULTILINE)
    run = done.stdout.strip()
    assert local.wait(run)[1]["state"] == "COMPLETED"
    directory = local.directory(run)
    assert int(said[1]) == 1 + sum(1 for _ in directory.rglob("*"))


def test_a_short_run_of_one_rank_leaves_twelve_small_files_and_a_record_of_five(local):
    run = local.serried("submit", *SHORT, "--in-place", "--", "true").stdout.strip()
    assert local.wait(run)[1]["state"] == "COMPLETED"
    directory = local.directory(run)

    left = {str(path.relative_to(directory)): path for path in directory.rglob("*") if not path.is_dir()}
    assert sorted(name for name, path in left.items() if path.is_symlink()) == ["agent.pyz", "library.zip"]
    assert sorted(name for name, path in left.items() if not path.is_symlink()) == [
        "attempts/1/attempt.json",
        "attempts/1/control.jsonl",
        "attempts/1/events.jsonl",
        "attempts/1/exit.json",
        "attempts/1/live.json",
        "attempts/1/node-0/events.jsonl",
        "attempts/1/node-0/rank-0.log",
        f"claims/{run}-1",
        "exit.json",
        "job.sh",
        "plan.json",
        "scheduler.log",
    ]
    assert sum(path.lstat().st_size for path in left.values()) < 16_000
    assert sorted(
        path.name for path in state_directory(local.environ).joinpath("runs", run).rglob("*") if path.is_file()
    ) == ["1.json", "exit.json", "plan.json", "source.json", "where"]


@pytest.mark.slurm
def test_a_run_on_two_nodes_leaves_as_many_files_as_the_plan_says(slurm):
    done = slurm.serried("submit", *SHORT, "--nodes", "2", "--ranks", "2", "--launch", "srun", "--", "true")

    assert done.returncode == 0, done.stderr
    said = re.search(r"^creates +(\d+) files and folders", done.stderr, re.MULTILINE)
    run = done.stdout.strip()
    assert slurm.wait(run)[1]["state"] == "COMPLETED"
    assert int(said[1]) == 1 + sum(1 for _ in slurm.directory(run).rglob("*"))
