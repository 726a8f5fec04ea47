"""`serried run` within a job that somebody has asked for: all its nodes are used, and nothing is queued."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import serried

PROGRAM = """
import os, sys
names = ("RANK", "WORLD_SIZE", "SLURMD_NODENAME")
gpus = len(os.environ.get("CUDA_VISIBLE_DEVICES", "").split(","))
print(" ".join([*(os.environ[name] for name in names), f"{gpus}"]), flush=True)
if sys.argv[1:] and os.environ["RANK"] == "3":
    sys.exit(int(sys.argv[1]))
"""

SESSION = """
run="{python} -m serried run"
$run --json -- {python} program.py 5; echo "status $?"
$run --nodes 1 --ranks 1 --set limit.restarts=0 -- {python} program.py 2>&1 | grep -v warning
$run --nodes 3 -- true 2>&1 | grep error
$run --cluster local --nodes 1 --launch agent -- {python} -c 'import os; print("here,", os.environ["RANK"])' 2>/dev/null
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    (tmp_path / "program.py").write_text(PROGRAM)
    # What the file asks a queue for is not what the job has.
    (tmp_path / "serried.toml").write_text(
        f'[clusters.slurm]\nroot = "{tmp_path}/runs"\n[defaults.resources]\nnodes = 9\nspare_nodes = 1\n'
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(serried.__file__).parents[1]))
    return tmp_path


@pytest.mark.usefixtures("in_lab")
def test_all_nodes_of_salloc_are_used_and_the_failing_rank_is_named(project):
    (project / "session.sh").write_text(SESSION.format(python=sys.executable))
    salloc = [
        "salloc",
        "--quiet",
        "--nodelist=n1,n2",
        "--ntasks-per-node=2",
        "--gpus-per-task=1",
        "--time=60",
        "bash",
        "session.sh",
    ]

    done = subprocess.run(salloc, capture_output=True, text=True, env=os.environ, timeout=900, check=False)

    said = done.stdout.splitlines()
    end = said.index("status 5")
    run = json.loads("\n".join(said[:end]))["runs"][0]
    assert (run["state"], run["exit_code"]) == ("FAILED", 5)
    assert "rank 3 on n2 exited with status 5" in run["message"]
    printed = {line[4:] for line in done.stderr.splitlines() if line[:1] == "["}
    assert {"3 4 n2 2"} <= printed <= {"0 4 n1 2", "1 4 n1 2", "2 4 n2 2", "3 4 n2 2"}
    assert said[end + 1] == "0 1 n1 2"
    assert said[-2:] == [f"error: 3 nodes were requested, but job {job_of(done)} has 2", "here, 0"]


def job_of(done):
    """The job's id, from the sentence that names it."""
    return next(line.split("job ")[1].split()[0] for line in done.stdout.splitlines() if line.startswith("error:"))
