"""Two ranks on CPUs, in seconds: `pytest`. Needs Serried and the packages of requirements.txt."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
EPOCH = re.compile(r"epoch (\d+): .*accuracy (\d\.\d+) .*\((\d) ranks\)")


def start(*command: str, **variables: object) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", **{name: str(value) for name, value in variables.items()}}
    return subprocess.run(command, cwd=HERE, env=environment, capture_output=True, text=True, check=False)


def test_two_ranks_learn() -> None:
    done = start("serried", "run", "--ranks", "2", "--", sys.executable, "train.py", "--epochs", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    epochs = EPOCH.findall(done.stdout)
    assert [(epoch, ranks) for epoch, _, ranks in epochs] == [("1", "2"), ("2", "2")]
    assert float(epochs[-1][1]) > 0.9


def test_a_stopped_training_saves_and_resumes(tmp_path: Path) -> None:
    train = (sys.executable, "train.py", "--epochs", "2")
    stop = tmp_path / "stop"
    stop.write_text("limit")
    stopped = start(*train, SERRIED_CHECKPOINT_DIR=tmp_path, SERRIED_STOP_FILE=stop)
    assert stopped.returncode == 85, stopped.stderr
    finished = start(*train, SERRIED_CHECKPOINT_DIR=tmp_path)
    assert finished.returncode == 0, finished.stderr
    assert EPOCH.findall(finished.stdout)[-1][0] == "2"
