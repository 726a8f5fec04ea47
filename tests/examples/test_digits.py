"""The example that the README runs: as a plain script, under PyTorch's launcher, and its manners when interrupted."""

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
EPOCH = re.compile(r"\[[#.]{20}\] epoch +(\d+)/(\d+)  loss (\d\.\d{4})  accuracy (\d\.\d{3}) +[\d,]+ images/s")

pytestmark = pytest.mark.torch


def train(*arguments: str, ranks: int = 1, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run train.py with no variable of a launcher's but those given."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("SERRIED_", "SLURM_"))}
    clean |= {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""} | environment
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)] if ranks > 1 else []
    return subprocess.run(
        [sys.executable, *launcher, "train.py", *arguments],
        cwd=EXAMPLE,
        env=clean,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def epochs(output: str) -> list[tuple[str, ...]]:
    return EPOCH.findall(output)


def test_as_a_plain_script_it_prints_one_line_for_each_epoch_and_the_accuracy():
    done = train("--epochs", "3")
    assert done.returncode == 0, done.stderr
    first, *lines, last = done.stdout.splitlines()
    assert first == "1 rank on cpu, 64 images each per step, 173,530 weights"
    assert [(epoch, of) for epoch, of, _, _ in epochs("\n".join(lines))] == [("1", "3"), ("2", "3"), ("3", "3")]
    assert re.fullmatch(r"accuracy=0\.\d{4}", last)


def test_two_ranks_learn_what_one_learns():
    one, two = train("--epochs", "1"), train("--epochs", "1", ranks=2)
    assert two.returncode == 0, two.stderr
    assert two.stdout.startswith("2 ranks on cpu, 32 images each per step")
    [(*_, loss_of_one, _)], [(*_, loss_of_two, _)] = epochs(one.stdout), epochs(two.stdout)
    assert float(loss_of_two) == pytest.approx(float(loss_of_one), abs=0.01)


def test_results_and_a_checkpoint_go_where_the_environment_says(tmp_path: Path):
    place = tmp_path / "place"
    place.mkdir()
    done = train("--epochs", "2", SERRIED_RESULTS_DIR=str(place), SERRIED_CHECKPOINT_DIR=str(place))
    metrics = json.loads((place / "metrics.json").read_text())
    assert f"accuracy={metrics['accuracy']:.4f}" in done.stdout
    assert metrics["world_size"] == 1
    assert metrics["config"]["epochs"] == 2
    assert [epoch["epoch"] for epoch in metrics["history"]] == [1, 2]
    assert sorted(path.name for path in place.iterdir()) == ["digits.pt", "metrics.json"]


def test_asked_to_stop_it_saves_exits_85_and_goes_on_from_there_the_next_time(tmp_path: Path):
    stop = tmp_path / "stop"
    stop.write_text("limit")
    places = {"SERRIED_CHECKPOINT_DIR": str(tmp_path), "SERRIED_RESULTS_DIR": str(tmp_path)}
    interrupted = train("--epochs", "3", SERRIED_STOP_FILE=str(stop), **places)
    assert interrupted.returncode == 85
    assert [epoch for epoch, *_ in epochs(interrupted.stdout)] == ["1"]
    assert "accuracy=" not in interrupted.stdout

    continued = train("--epochs", "3", **places)
    assert continued.returncode == 0
    assert [epoch for epoch, *_ in epochs(continued.stdout)] == ["2", "3"]


def test_serried_run_trains_it_on_two_ranks_to_97_percent(tmp_path: Path):
    project = tmp_path / "digits"
    shutil.copytree(EXAMPLE, project)
    done = subprocess.run(
        [sys.executable, "-m", "serried", "run", "digits", "--json"],
        cwd=project,
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (run,) = json.loads(done.stdout)["runs"]
    assert run["state"] == "COMPLETED"
    metrics = json.loads(Path(run["directory"], "results", "metrics.json").read_text())
    assert metrics["world_size"] == 2
    assert metrics["accuracy"] >= 0.97
    assert Path(run["directory"], "checkpoints", "digits.pt").exists()
