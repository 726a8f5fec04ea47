"""`serried stop --save` as a user types it, on this machine and on a real Slurm."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("torch", reason="needs torch: pip install torch")
pytestmark = pytest.mark.torch

TRAINS = """
import time, torch
import serried.train as st
with st.session() as run:
    model = run.wrap(torch.nn.Linear(8, 8))
    ckpt = run.checkpoints(model=model, every=None)
    run.print("up", flush=True)
    while not ckpt.step():
        time.sleep(0.02)
"""


def test_a_task_is_stopped_with_everything_saved_and_the_others_go_on(place, torch_python, wait_until):
    (place.project / "train.py").write_text(TRAINS)
    run = place.submit("--ranks", "1", "--array", "0-1", "--set", "limit.restarts=3", "--", *torch_python, "train.py")
    logs = [place.directory(run) / f"tasks/{task}/attempts/1/node-0/rank-0.log" for task in range(2)]
    wait_until(lambda: all(log.exists() and "up" in log.read_text() for log in logs))

    first = place.serried("stop", "-y", "--save", f"{run}/1")

    said = re.fullmatch(
        rf"(asked.*\n)?{run}/1 \S+ CANCELLED after \w+ with exit code 143: (stopped by \S+; saved at step (\d+))\n",
        first.stderr,
    )
    assert said, first.stderr
    shown = place.show(f"{run}/1")
    assert (shown["state"], shown["cause"], shown["message"]) == ("CANCELLED", "user", said[2])
    assert [attempt["exit"]["saved_step"] for attempt in shown["attempts"]] == [int(said[3])]
    assert said[2] in place.serried("why", f"{run}/1").stdout
    assert place.show(f"{run}/0")["state"] == "RUNNING"

    place.serried("stop", "-y", "--save", run)
    place.wait(run)

    other = place.show(f"{run}/0")
    assert (other["state"], other["cause"], len(other["attempts"])) == ("CANCELLED", "user", 1)
    assert "; saved at step " in other["message"]
