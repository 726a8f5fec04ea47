"""With thousands of ranks those of a node share a log. Here four ranks are enough."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

SUBMIT = """
from serried.submission import plan
plan.MOST_LOGS = 3
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
PLAIN = """
import os, pathlib, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
for step in range(500):
    print("rank", rank, "step", step, "of", 500)
dist.all_reduce(torch.ones(1))
if rank == 3:
    try:
        raise ValueError("bad batch")
    except ValueError:
        sys.excepthook(*sys.exc_info())
    dist.destroy_process_group()
    log = pathlib.Path("/proc/self/fd/2").resolve()
    while not all(f"[rank{other}]: RuntimeError" in log.read_text() for other in (1, 2)):
        time.sleep(0.01)
    os._exit(1)
dist.all_reduce(torch.ones(1))
"""
SIZE = {"local": ("--ranks", "4")}
TWO_NODES = ("--nodes", "2", "--ranks", "2", "--cpus", "1")

pytestmark = pytest.mark.torch


def submit(place, broken, program=TRAIN):
    """Submit a training in which the rank `broken` fails; return the run's id, and what the plan says."""
    (place.project / "train.py").write_text(program)
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
    announced = re.search(r"^creates +(\d+) files and folders", plan, re.MULTILINE)
    assert int(announced[1]) == 1 + len([*directory.rglob("*")]) - len(metrics)

    share = "1-3" if len(nodes) == 1 else "2-3"
    printed = place.serried("logs", run).stdout.splitlines()
    assert "[  0] rank 0 of 4" in printed
    assert f"[{share}] rank 3 of 4" in printed
    one = place.serried("logs", run, "--rank", "3")
    assert "rank 3 of 4" in one.stdout.splitlines()
    assert f"ranks {share} share this log" in one.stderr
    alone = place.serried("logs", run, "--rank", "0").stdout.splitlines()
    assert [line for line in alone if not line.startswith("[W")] == ["rank 0 of 4"]  # torch warns of unknown hosts


def test_the_rank_that_fails_is_named(place):
    run, _ = submit(place, broken=3)
    assert place.wait(run)[1]["state"] == "FAILED"
    failure = json.loads((place.directory(run) / "exit.json").read_text())["first_failure"]
    assert failure["rank"] == 3
    assert "this rank is broken" in json.dumps(place.why(run))


def test_the_cause_is_found_among_the_outputs_of_ranks_that_lost_a_peer_and_lines_stay_whole(local):
    run, _ = submit(local, broken=3, program=PLAIN)
    assert local.wait(run)[1]["state"] == "FAILED"
    assert json.loads((local.directory(run) / "exit.json").read_text())["first_failure"]["rank"] == 3
    assert "[rank3]: ValueError: bad batch" in json.dumps(local.why(run))

    lines = (local.directory(run) / "attempts" / "1" / "node-0" / "ranks.log").read_text().splitlines()
    steps = [line for line in lines if "step" in line]
    assert sorted(steps) == sorted(f"rank {rank} step {step} of 500" for rank in (1, 2, 3) for step in range(500))


def test_output_of_ranks_that_share_a_log_is_printed_live(local):
    (local.project / "train.py").write_text("import os; print('this is rank', os.environ['RANK'])")
    words = ["run", "--ranks", "3", "--set", "sampling.every=off", "--", sys.executable, "train.py"]
    program = SUBMIT.replace("MOST_LOGS = 3", "MOST_LOGS = 2")
    done = subprocess.run(
        [sys.executable, "-c", program, *words], cwd=local.project, env=local.environ, capture_output=True, check=False
    )
    assert sorted(done.stdout.decode().splitlines()) == [
        f"[{name}] this is rank {rank}" for name, rank in (("0", 0), ("1-2", 1), ("1-2", 2))
    ]
