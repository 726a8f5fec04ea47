"""With thousands of ranks those of a node share a log. Here four ranks are enough."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

SUBMIT = """
from serried.planning import decide
decide.MOST_LOGS = 3
from serried.cli import main
main()
"""
TRAIN = """
import sys
import serried.train as st
with st.session() as run:
    print(f"rank {run.rank} of {run.world_size}", flush=True)
    for step in range(3):
        run.log(loss=0.5)
    if run.rank == int(sys.argv[1]):
        raise RuntimeError("this rank is broken")
"""
SIZE = {"local": ("--ranks", "4")}
TWO_NODES = ("--nodes", "2", "--ranks", "2", "--cpus", "1")

pytestmark = pytest.mark.torch


def submit(place, broken):
    """Submit a training in which the rank `broken` fails; return the run's id, and what the plan says."""
    (place.project / "train.py").write_text(TRAIN)
    words = ["submit", "--cluster", place.cluster, "--set", "sampling.every=off", *SIZE.get(place.cluster, TWO_NODES)]
    done = subprocess.run(
        [sys.executable, "-c", SUBMIT, *words, "--", sys.executable, "train.py", str(broken)],
        cwd=place.project,
        env=place.environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip(), done.stderr


def test_the_ranks_of_a_node_share_a_log_except_rank_0(place):
    run, plan = submit(place, broken=-1)
    assert place.wait(run)[1]["state"] == "COMPLETED"
    directory = place.directory(run)
    nodes = [[0, 1, 2, 3]] if place.cluster == "local" else [[0, 1], [2, 3]]

    logs = {str(path.relative_to(directory / "attempts" / "1")) for path in directory.rglob("rank*.log")}
    assert logs == {"node-0/rank-0.log", *(f"node-{node}/ranks.log" for node in range(len(nodes)))}
    firsts = {f"metrics-{ranks[0]}.jsonl" for ranks in nodes}
    metrics = list(directory.rglob("metrics-*.jsonl"))
    assert {path.name for path in metrics} == firsts
    announced = re.search(r"^files +(\d+) files and folders", plan, re.MULTILINE)
    assert int(announced[1]) == 1 + len([*directory.rglob("*")]) - len(metrics)

    share = "1-3" if len(nodes) == 1 else "2-3"
    printed = place.serried("logs", run).stdout.splitlines()
    assert "[  0] rank 0 of 4" in printed
    assert f"[{share}] rank 3 of 4" in printed
    one = place.serried("logs", run, "--rank", "3")
    assert "rank 3 of 4" in one.stdout.splitlines()
    assert f"ranks {share} share this log" in one.stderr
    assert place.serried("logs", run, "--rank", "0").stdout == "rank 0 of 4\n"


def test_the_rank_that_fails_is_named(place):
    run, _ = submit(place, broken=3)
    assert place.wait(run)[1]["state"] == "FAILED"
    failure = json.loads((place.directory(run) / "exit.json").read_text())["first_failure"]
    assert failure["rank"] == 3
    assert "this rank is broken" in json.dumps(place.why(run))
