"""A rank that hangs in front of a collective: it is named, and the ranks start again."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from serried.base.files import read_json
from serried.schema.plan import ReportedMetric, Sampling
from serried.submission import script

pytestmark = [pytest.mark.torch, pytest.mark.runs]

PROGRAM = """
import os, sys, time
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
is_first_round = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"


def stuck():
    while True:
        time.sleep(1000)


def train():
    for step in range(10_000):
        if is_first_round and os.environ["RANK"] == "1" and os.path.exists("hang"):
            stuck()
        total = torch.ones(1)
        dist.all_reduce(total)
        print(f"step {step}", flush=True)
        if not is_first_round:
            return
        time.sleep(0.2)


train()
"""
STEPS = ReportedMetric("step", r"stdout:step (?P<step>\d+)")
FAST = {"head.hangs.SHORTEST_SECONDS": 3.0, "sampling.node_side.DELAY_SECONDS": 0.1}
LINES = [line.strip() for line in PROGRAM.splitlines()]
WAITS, SLEEPS = LINES.index("dist.all_reduce(total)") + 1, LINES.index("time.sleep(1000)") + 1
IS_LATE = f"rank 1 did not arrive in all_reduce at train.py:{WAITS}, and is in stuck at train.py:{SLEEPS}"


@pytest.fixture
def hang(make_run, start, tmp_path, wait_until):
    """Start the program on two nodes, and let rank 1 hang once its usual pace is known."""

    def begin(**limit):
        path = tmp_path / "project" / "train.py"
        path.write_text(PROGRAM)
        facts = {"nodes": 2, "ranks": 1, "limit": limit, "metric": STEPS, "sampling": Sampling(1), "seconds": FAST}
        plan = make_run([sys.executable, str(path)], **facts)
        (Path(plan.directory) / "library.zip").write_bytes(script.library().read())
        run = start(None, plan=plan)

        def is_known():
            live = read_json(run.place.attempt(1).live) or {}
            return any("usual_pause" in rank for node in live.get("nodes", ()) for rank in node["ranks"])

        wait_until(is_known)
        (tmp_path / "project" / "hang").touch()
        return run

    return begin


def test_the_rank_that_hangs_is_named_and_all_ranks_start_again(hang):
    run = hang(rounds=3)

    assert run.wait() == 0
    message = f"every rank exited with status 0; recovered once: hung: {IS_LATE}"
    assert run.ending == ("COMPLETED", 0, None, message)
    rounds = [(entry["round"], entry["code"], entry["rank"], entry["host"]) for entry in run.events("round")]
    assert rounds == [(2, "silence", 1, "fake2")]


def test_without_rounds_a_hang_is_a_warning_and_the_run_goes_on(hang, wait_until):
    run = hang()
    wait_until(lambda: run.events("anomaly"))

    anomalies = [(entry["code"], entry["message"], entry["ranks"]) for entry in run.events("anomaly")]
    assert anomalies == [("stalled", f"hung: {IS_LATE}", [1])]
    assert run.events("stopping") == []
