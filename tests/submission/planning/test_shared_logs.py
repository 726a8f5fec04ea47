"""Which runs have ranks that share a log."""

from __future__ import annotations

import os

import pytest

from serried import config
from serried.submission.plan import make_plan


@pytest.mark.parametrize(
    ("nodes", "ranks", "shares"), [(512, 8, False), (513, 8, True), (5000, 1, False), (4096, 8, True)]
)
def test_with_thousands_of_ranks_those_of_a_node_share_a_log(tmp_path, nodes, ranks, shares):
    told = {"resources.nodes": nodes, "resources.ranks": ranks}
    resolved = config.resolve(None, ("true",), told, "slurm", tmp_path, {**os.environ, "SCRATCH": str(tmp_path)})
    assert make_plan(resolved, run_id="k3f9q2", created="").shares_logs is shares


def test_the_launches_of_a_job_script_never_do(tmp_path):
    script = "#!/bin/bash\n#SBATCH --nodes=4096\n#SBATCH --ntasks-per-node=8\nsrun true\n"
    (tmp_path / "train.sbatch").write_text(script)
    environ = {**os.environ, "SCRATCH": str(tmp_path)}
    resolved = config.resolve(None, ("train.sbatch",), {}, "slurm", tmp_path, environ, is_script=True)
    planned = make_plan(resolved, run_id="k3f9q2", created="")
    assert (planned.allocation.nodes, planned.allocation.ranks) == (4096, 8)
    assert not planned.shares_logs
