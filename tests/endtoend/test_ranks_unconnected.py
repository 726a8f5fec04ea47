"""Several ranks of a program for one process: as many equal trainings, which somebody should hear of."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

PYTHON = sys.executable
FRAMEWORKS = Path(__file__).parents[1] / "frameworks"
MESSAGE = "no rank has connected to another: the program ran {} times, each by itself"

ALONE = """
import time
while time.process_time() < 0.8:  # a training takes a while
    pass
open("model.txt", "w").write("trained")
print("trained")
"""

OWN_PORT = """
import os, sys
import torch.distributed as dist, torch
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
dist.init_process_group("gloo", init_method="file://" + os.path.abspath(sys.argv[1]), rank=rank, world_size=world)
one = torch.ones(1)
dist.all_reduce(one)
print("sum", int(one))
dist.barrier()
open(f"ready-{rank}", "w").close()
import time
until = time.monotonic() + 300
while not os.path.exists("go") and time.monotonic() < until:  # until an agent has had time to look
    time.sleep(0.02)
dist.barrier()
os._exit(0)
"""


def warnings_of(place, run):
    return [warning["message"] for warning in place.show(run)["warnings"]]


@pytest.mark.slurm
def test_two_nodes_of_two_equal_trainings_are_completed_with_a_warning(slurm):
    (slurm.project / "train.py").write_text(ALONE)
    run = slurm.submit("--nodes", "2", "--ranks", "2", "--", PYTHON, "train.py")

    status, end = slurm.wait(run)

    assert (status, end["state"]) == (0, "COMPLETED")
    assert end["warnings"] == [{"code": "ranks-apart", "message": MESSAGE.format(4)}]
    why = slurm.why(run)
    assert (why["warnings"], why["advice"][-1]) == (
        end["warnings"],
        "ranks that are meant to be independent: `ranks_meet = false` in the experiment's table",
    )
    assert warnings_of(slurm, run) == [MESSAGE.format(4)]
    said = slurm.serried("wait", run).stderr
    assert f"\n  warning: {MESSAGE.format(4)}\n" in said


def test_a_foreground_run_ends_with_the_warning(local):
    (local.project / "train.py").write_text(ALONE)
    done = local.serried("run", "--ranks", "2", "--", PYTHON, "train.py")
    assert done.returncode == 0, done.stderr
    assert f"warning: {MESSAGE.format(2)}" in " ".join(done.stderr.split())


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (("--ranks", "2", "--set", "ranks_meet=false"), ALONE),
        (("--ranks", "2"), "print('hello')"),
        (("--ranks", "1"), ALONE),
    ],
    ids=["independent ranks", "nothing computed", "one rank"],
)
def test_who_needs_no_warning_gets_none(local, options, code):
    (local.project / "train.py").write_text(code)
    run = local.submit(*options, "--", PYTHON, "train.py")
    assert (local.wait(run)[1]["state"], warnings_of(local, run)) == ("COMPLETED", [])


@pytest.mark.torch
def test_four_ranks_that_meet_by_torchs_variables_get_none(local):
    (local.project / "train.py").write_bytes((FRAMEWORKS / "torchrun_style.py").read_bytes())
    run = local.submit("--ranks", "4", "--", PYTHON, "train.py")
    assert (local.wait(run)[1]["state"], warnings_of(local, run)) == ("COMPLETED", [])


@pytest.mark.torch
def test_ranks_that_meet_by_a_file_get_none(local, wait_until):
    (local.project / "train.py").write_text(OWN_PORT)
    run = local.submit("--ranks", "2", "--set", "project.snapshot=false", "--", PYTHON, "train.py", "meeting")
    journal = local.directory(run) / "attempts" / "1" / "events.jsonl"
    events = lambda: [json.loads(line)["event"] for line in journal.read_text().splitlines()]  # noqa: E731
    wait_until(lambda: "ranks-in-contact" in events(), what="the agent sees their connections")
    (local.project / "go").touch()
    assert (local.wait(run)[1]["state"], warnings_of(local, run)) == ("COMPLETED", [])


@pytest.mark.torch
def test_lightning_without_devices_is_as_many_trainings_as_ranks(local):
    code = (FRAMEWORKS / "lightning_trainer.py").read_text()
    for line in ('strategy="ddp",', "num_nodes=args.num_nodes,", "devices=args.devices,"):
        code = code.replace(f"        {line}\n", "")
    (local.project / "train.py").write_text(code.replace("t.strategy.cluster_environment", "t.strategy"))
    run = local.submit("--ranks", "2", "--", PYTHON, "train.py")
    state = local.wait(run)[1]["state"]
    assert (state, warnings_of(local, run)) == ("COMPLETED", [MESSAGE.format(2)])
    logs = local.serried("logs", run).stdout
    assert logs.count("rank 0 of 1") == 2
