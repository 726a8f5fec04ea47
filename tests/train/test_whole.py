"""All parts together: a training that is interrupted learns what an uninterrupted one learns, bit by bit."""

from __future__ import annotations

import json

import pytest
import train_ranks

pytest.importorskip("torch", reason="needs torch: pip install torch")
pytestmark = pytest.mark.torch

TRAINS = """
import json, os, torch
import serried.train as st
from serried.train import stopping

stopping.LOOK_SECONDS = stopping.AGREE_SECONDS = 0  # these steps are quicker than any request
METRICS = os.environ["METRICS"] % os.environ["RANK"]
STOP_AT = json.loads(os.environ["STOP_AT"])
with st.session(seed=3, directory=os.environ["CHECKPOINTS"], metrics_file=METRICS) as run:
    torch.manual_seed(0)
    data = torch.utils.data.TensorDataset(torch.randn(44, 3), torch.randn(44, 1))
    model = run.wrap(torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1)))
    torch.manual_seed(100 + run.rank)
    optimizer = torch.optim.Adam(model.parameters(), 0.05)
    loader = run.loader(data, batch_size=4)
    ckpt = run.checkpoints(model=model, optimizer=optimizer, every=None)
    for epoch in run.epochs(3):
        for x, y in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            run.log(loss=loss, epoch=epoch)
            if ckpt.steps + 1 == STOP_AT and run.is_main:
                with open(os.environ["SERRIED_STOP_FILE"], "w") as file:
                    file.write("limit")
            if ckpt.step():
                raise SystemExit(0)
"""


def train(folder, *, stop_at):
    """Both ranks' exit statuses."""
    port = train_ranks.free_port()
    stop = folder / "stop"
    stop.unlink(missing_ok=True)
    changes = {
        "STOP_AT": json.dumps(stop_at),
        "CHECKPOINTS": str(folder / "checkpoints"),
        "METRICS": str(folder / "metrics-%s.jsonl"),
        "SERRIED_STOP_FILE": str(stop),
    }
    ended = train_ranks.finish(
        train_ranks.start(TRAINS, variables=[train_ranks.of_torch(rank, 2, port) for rank in range(2)], **changes)
    )
    assert {each.status for each in ended} <= {0, 85}, ended[0].errors + ended[1].errors
    return [each.status for each in ended]


def losses(folder, rank):
    lines = [json.loads(line) for line in (folder / f"metrics-{rank}.jsonl").read_text().splitlines()]
    return [(line["step"], line["epoch"], line["loss"]) for line in lines if "loss" in line]


KILLED = """
import os, signal, torch
import serried.train as st
with st.session(directory=os.environ["CHECKPOINTS"], metrics_file=os.environ["METRICS"]) as run:
    model = run.wrap(torch.nn.Linear(1, 1))
    ckpt = run.checkpoints(model=model, every=None)
    for step in range(int(os.environ["STEPS"])):
        run.log(of=os.environ["STEPS"])
        ckpt.step()
    if run.attempt == 1 and ckpt.resumed_step is None:
        ckpt.save(wait=True)
        run.log(of="lost")
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_no_step_of_a_checkpoint_is_missing_from_the_metrics_of_a_rank_that_was_killed(tmp_path):
    places = {"CHECKPOINTS": str(tmp_path / "checkpoints"), "METRICS": str(tmp_path / "metrics.jsonl")}
    (first,) = train_ranks.run(KILLED, 1, STEPS="5", **places)
    (second,) = train_ranks.run(KILLED, 1, STEPS="2", **places)
    assert (first.status, second.status) == (-9, 0), first.errors + second.errors
    logged = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [(line["step"], line["of"]) for line in logged if "of" in line] == [
        *((step, "5") for step in range(1, 6)),
        *((step, "2") for step in range(6, 8)),
    ]


def test_stopped_in_the_middle_of_epochs_and_continued_the_losses_are_those_of_one_that_was_not(tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    whole.mkdir()
    parts.mkdir()
    assert train(whole, stop_at=None) == [0, 0]
    assert train(parts, stop_at=3) == [85, 85]
    assert train(parts, stop_at=9) == [85, 85]
    assert train(parts, stop_at=None) == [0, 0]
    assert [losses(parts, rank) for rank in (0, 1)] == [losses(whole, rank) for rank in (0, 1)]
    assert [step for step, _, _ in losses(whole, 0)] == list(range(1, len(losses(whole, 0)) + 1))
    assert len(losses(whole, 0)) == 18
