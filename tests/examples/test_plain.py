"""A script for torchrun that knows nothing of the training library: alone, on two ranks, and when it is interrupted."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "plain" / "train.py"
EPOCH = re.compile(r"\[[#.]{15}\] epoch +(\d+)/(\d+)  loss (\d\.\d{4})  accuracy (\d\.\d{3}) +[\d,]+ images/s")

pytestmark = pytest.mark.torch


def test_two_ranks_learn_what_one_learns_and_leave_results_where_the_environment_says(tmp_path: Path, train):
    one = train(EXAMPLE, "--epochs", "1", ranks=1, SERRIED_RESULTS_DIR=tmp_path, SERRIED_CHECKPOINT_DIR=tmp_path)
    two = train(EXAMPLE, "--epochs", "1")
    assert one.succeeded()
    assert two.succeeded()
    assert one.output.splitlines()[0] == "1 rank on cpu, 64 images each per step, 173,530 weights"
    assert two.output.startswith("2 ranks on cpu, 32 images each per step")
    [(*_, loss_of_one, _)], [(*_, loss_of_two, _)] = EPOCH.findall(one.output), EPOCH.findall(two.output)
    assert float(loss_of_two) == pytest.approx(float(loss_of_one), abs=0.01)

    metrics = json.loads((tmp_path / "metrics.json").read_text())
    assert one.output.splitlines()[-1] == f"accuracy={metrics['accuracy']:.4f}"
    assert [epoch["epoch"] for epoch in metrics["history"]] == [1]
    assert sorted(path.name for path in tmp_path.glob("*.*")) == ["digits.pt", "metrics.json"]


def test_asked_to_stop_it_saves_exits_85_and_goes_on_from_there_the_next_time(tmp_path: Path, train):
    stop = tmp_path / "stop"
    stop.write_text("limit")
    interrupted = train(EXAMPLE, "--epochs", "2", SERRIED_CHECKPOINT_DIR=tmp_path, SERRIED_STOP_FILE=stop)
    assert interrupted.statuses == [85, 85]
    assert [epoch for epoch, *_ in EPOCH.findall(interrupted.output)] == ["1"]

    continued = train(EXAMPLE, "--epochs", "2", SERRIED_CHECKPOINT_DIR=tmp_path)
    assert continued.succeeded()
    assert [epoch for epoch, *_ in EPOCH.findall(continued.output)] == ["2"]
