"""Trackers in whole runs: a program that calls wandb itself, unmodified, over an interruption."""

from __future__ import annotations

import pytest

import tracked
from place import Place

PROGRAM = """
import os, pathlib, sys, time, wandb
with wandb.init(config={"lr": 0.1}) as run:
    attempt = int(os.environ["SERRIED_ATTEMPT"])
    for step in range(3 * attempt - 2, 3 * attempt + 1):
        run.log({"loss": 1 / step}, step=step)
if attempt == 1:
    pathlib.Path(os.environ["SERRIED_CHECKPOINT_DIR"], f"{os.environ['RANK']}.ckpt").write_text("weights")
    while not pathlib.Path(os.environ["SERRIED_STOP_FILE"]).exists():
        time.sleep(0.05)
    sys.exit(85)
"""


@pytest.mark.torch  # wandb takes seconds to start
def test_a_program_that_calls_wandb_is_one_run_over_two_attempts(local: Place, wait_until):
    (local.project / "train.py").write_text(PROGRAM)
    (local.project / "serried.toml").write_text(
        """
[experiments.train]
command = "python train.py"
resources = { ranks = 2, mem = "500M" }
limit = { restarts = 1 }
track = { sinks = ["wandb"], project = "digits" }
"""
    )
    run = local.submit("train", "--track", "offline")
    wait_until(lambda: len(list(local.directory(run).glob("checkpoints/*.ckpt"))) == 2)
    local.ask_to_save(run)
    code, end = local.wait(run)
    assert (code, end["state"]) == (0, "COMPLETED"), local.why(run)
    folder = local.directory(run) / "results" / "tracking"
    paths = tracked.wandb_files(folder)
    runs = [tracked.wandb_run(path) for path in paths]
    assert [(each.run_id, each.display_name, each.project) for each in runs] == [(run, f"train-{run}", "digits")] * 2
    assert [[row["_step"] for row in tracked.wandb_history(path)] for path in paths] == [[1, 2, 3], [4, 5, 6]]
