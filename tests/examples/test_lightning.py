"""Lightning's Trainer, unmodified: it learns on two ranks, and goes on from what it has saved."""

from __future__ import annotations

import importlib.util
import os
import re
from pathlib import Path

import pytest

from serried import config
from serried.submission.plan import make_plan

EXAMPLE = Path(__file__).parents[2] / "examples" / "lightning"
EPOCH = re.compile(r"epoch (\d+): accuracy (\d\.\d{3}) \((\d) ranks\)")


@pytest.mark.torch
def test_two_ranks_learn_and_go_on_from_their_last_epoch(tmp_path: Path, train):
    if importlib.util.find_spec("lightning") is None:
        reason = "needs lightning: pip install --group frameworks"
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(reason)
    first = train(EXAMPLE / "train.py", "--epochs", "1", "--checkpoints", str(tmp_path))
    assert first.succeeded()
    then = train(EXAMPLE / "train.py", "--epochs", "3", "--checkpoints", str(tmp_path))
    assert then.succeeded()
    told = [EPOCH.findall(ranks.output) for ranks in (first, then)]
    assert [[(epoch, ranks) for epoch, _, ranks in each] for each in told] == [[("1", "2")], [("2", "2"), ("3", "2")]]
    assert float(told[1][-1][1]) > max(0.8, float(told[0][-1][1]))


@pytest.mark.parametrize(("experiment", "kind"), [("train", "agent"), ("tasks", "srun")])
def test_on_a_cluster_ranks_are_the_agents_or_slurm_s_tasks(experiment: str, kind: str):
    asked = {"resources.nodes": 2, "resources.gpus": 4}
    resolved = config.resolve(experiment, None, asked, "slurm", EXAMPLE, os.environ)
    made = make_plan(resolved, run_id="k3f9q2", created="2026-01-01T00:00:00Z")
    assert (made.launch.kind, made.allocation.nodes, made.allocation.ranks, made.allocation.gpus) == (kind, 2, 4, 4)
