"""The example that the README runs: its options, its manners when interrupted, and what it reaches."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "digits"
SCRIPT = EXAMPLE / "train.py"
EPOCH = re.compile(r"\[([#.]{20})\] epoch +(\d+)/(\d+)  accuracy (\d\.\d{3}) +[\d,]+ images/s")

pytestmark = pytest.mark.torch


def test_a_dry_run_with_every_option_makes_one_step_and_one_test(train):
    sizes = ("--batch-size", "8", "--test-batch-size", "50", "--width", "8", "--epochs", "3")
    done = train(SCRIPT, *sizes, "--seed", "7", "--cpu", "--backend", "gloo", "--dry-run")
    assert done.succeeded()
    first, epoch, last = [line for line in done.output.splitlines() if "not saving checkpoints" not in line]
    assert first == "2 ranks on cpu, 8 images each per step, 19,706 weights"
    assert EPOCH.fullmatch(epoch).groups()[:3] == ("#" * 20, "1", "1")
    assert re.fullmatch(r"accuracy=0\.\d{4}", last)


def test_a_wrong_option_is_refused_with_the_right_one(train):
    done = train(SCRIPT, "--test-batchsize", "50", ranks=1)
    assert done.statuses == [1]
    assert "did you mean `test_batch_size`?" in done.output


def test_asked_to_stop_it_saves_and_goes_on_in_the_middle_of_the_epoch(tmp_path: Path, train):
    stop = tmp_path / "stop"
    stop.write_text("limit")
    stopped = train(SCRIPT, "--epochs", "1", SERRIED_CHECKPOINT_DIR=tmp_path, SERRIED_STOP_FILE=stop)
    assert stopped.statuses == [85, 85]
    assert EPOCH.findall(stopped.output) == []
    assert [path.name for path in tmp_path.glob("step-*")] == ["step-1"]

    continued = train(SCRIPT, "--epochs", "1", SERRIED_CHECKPOINT_DIR=tmp_path)
    assert continued.succeeded()
    assert [epoch for _, epoch, *_ in EPOCH.findall(continued.output)] == ["1"]


def test_serried_run_trains_it_on_two_ranks_to_98_percent(tmp_path: Path, commands: Path):
    project = tmp_path / "digits"
    shutil.copytree(EXAMPLE, project)
    done = subprocess.run(
        [sys.executable, "-m", "serried", "run", "digits", "--json"],
        cwd=project,
        env={**os.environ, "PATH": f"{commands}:{os.environ['PATH']}", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (run,) = json.loads(done.stdout)["runs"]
    assert run["state"] == "COMPLETED"
    logged = Path(run["directory"], "attempts", "1", "node-0", "metrics-0.jsonl").read_text().splitlines()
    accuracies = [line["accuracy"] for line in map(json.loads, logged) if "accuracy" in line]
    assert len(accuracies) == 20
    assert accuracies[-1] >= 0.98
    assert f"accuracy={accuracies[-1]:.4f}" in done.stderr
