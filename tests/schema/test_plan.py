from __future__ import annotations

import json
from pathlib import Path

import pytest

from serried import config
from serried.schema import SCHEMA
from serried.schema.plan import Allocation, Array, Environment, Limit, Plan, Source
from serried.submission.plan import make_plan
from stub_scheduler import site_of

TEXT = """
[project]
name = "my project"
snapshot = false
share = "group"
[experiments.digits]
command = "python train.py --dir {results}"
seed = 7
workdir = "src"
[experiments.digits.resources]
ranks = 2
time = "2h"
[experiments.digits.environment]
env = { A = "1" }
secrets = ["WANDB_API_KEY"]
inherit = ["LANG"]
[experiments.digits.limit]
warn_before = "1h"
restarts = 3
notify = "USR1"
[clusters.local]
root = "/runs"
python = "/opt/python"
"""


@pytest.fixture
def resolved(tmp_path: Path) -> config.Resolved:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "serried.toml").write_text(TEXT)
    return config.resolve(
        None, None, {}, "local", folder, {"HOME": str(tmp_path), "PATH": "", "CUDA_VISIBLE_DEVICES": ""}
    )


def test_a_plan_leaves_nothing_to_decide(resolved: config.Resolved, tmp_path: Path):
    made = make_plan(resolved, run_id="k3f9q2", created="2026-11-21T03:00:00Z", array=Array((0, 1), 1), name="mine")
    assert made == Plan(
        run="k3f9q2",
        name="mine",
        project="my project",
        experiment="digits",
        created="2026-11-21T03:00:00Z",
        command=("python", "train.py", "--dir", "{results}"),
        site=site_of("local", "local", "/runs", python="/opt/python"),
        allocation=Allocation(nodes=1, ranks=2, gpus=0, cpus=made.allocation.cpus, memory_mb=None, time_seconds=7200),
        source=Source(str(tmp_path / "project"), "src", snapshot=False),
        seed=7,
        environment=Environment(env={"A": "1"}, secrets=("WANDB_API_KEY",), inherit=("LANG",)),
        limit=Limit(warn_before_seconds=1800, restarts=3, notify="USR1"),
        array=Array((0, 1), 1),
        defaults=("resources.nodes", "resources.gpus", "resources.cpus", "resources.mem"),
        share="group",
    )


def test_a_plan_survives_the_way_to_json_and_back(resolved: config.Resolved):
    made = make_plan(resolved, run_id="k3f9q2", created="2026-11-21T03:00:00Z", array=Array((0, 2), 1))
    assert Plan.from_json(json.loads(json.dumps(made.to_json()))) == made


def test_a_later_schema_is_refused(resolved: config.Resolved):
    value = make_plan(resolved, run_id="k3f9q2", created="").to_json() | {"schema": SCHEMA + 1}
    with pytest.raises(ValueError, match="this plan has schema"):
        Plan.from_json(value)


@pytest.mark.parametrize(
    ("where", "damage"),
    [("environment", {"env": {"A": None}}), ("site", {"dialect": {"task": []}}), ("allocation", None), ("run", "a\0b")],
)
def test_a_damaged_plan_is_refused(resolved: config.Resolved, where, damage):
    value = json.loads(json.dumps(make_plan(resolved, run_id="k3f9q2", created="").to_json()))
    value[where] = {**value[where], **damage} if isinstance(damage, dict) else damage
    with pytest.raises(ValueError, match=r"has|is not"):
        Plan.from_json(value)


def test_the_run_directory_is_named_safely(resolved: config.Resolved):
    made = make_plan(resolved, run_id="k3f9q2", created="")
    assert made.directory == "/runs/my-project-dff9bd/digits/k3f9q2"


def test_the_warning_comes_at_most_a_quarter_of_the_limit_before_its_end(resolved: config.Resolved):
    assert make_plan(resolved, run_id="k3f9q2", created="").limit.warn_before_seconds == 1800


def test_defaults_of_the_profile_are_marked_as_nobodys(tmp_path: Path):
    resolved = config.resolve(
        None,
        ("a",),
        {"resources.nodes": 2},
        "ibex",
        tmp_path,
        {"HOME": str(tmp_path), "PATH": "", "SCRATCH": "/scratch/x"},
    )
    assert make_plan(resolved, run_id="k3f9q2", created="").defaults == (
        "resources.gpus",
        "resources.ranks",
        "resources.cpus",
        "resources.mem",
        "resources.time",
        "resources.partition",
    )
