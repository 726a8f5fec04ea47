"""All parts together: a training that is interrupted learns what an uninterrupted one learns, bit by bit."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import train_ranks

pytest.importorskip("torch", reason="needs torch: pip install torch")
pytestmark = pytest.mark.torch

SCRIPT = "import train_stopped; train_stopped.main()"
STEPS = 42
RANKS = 4
WIDER = 19


def attempts(stops, starts):
    """Stop after each of `stops`, then train to the end; each attempt starts its loaders' workers in its own way."""
    last = [*sorted(stops), None]
    return [{"stop": stop, "start": starts.get(number)} for number, stop in enumerate(last)]


def train_all(folder):
    """Four ranks, long-lived, train: without a stop, with 15 in all, and at last one of them alone."""
    draw = random.Random()
    seed = draw.randrange(10_000)
    draw.seed(seed)
    stops = {"map": draw.sample(range(1, STEPS), 9), "stream": draw.sample(range(1, STEPS), 6)}
    starts = {"map": {3: "fork", 6: "forkserver", 7: "spawn"}, "stream": {3: "fork"}}
    plan = [
        {"name": f"{kind}-{how}", "data": kind, "attempts": attempts(stops[kind] if how == "stopped" else [], started)}
        for kind in stops
        for how, started in (("whole", {}), ("stopped", starts[kind]))
    ]
    narrower = [{"stop": WIDER}, {"stop": None, "alone": True}]
    plan += [{"name": f"{kind}-narrower", "data": kind, "attempts": narrower} for kind in stops]
    port = train_ranks.free_port()
    ended = train_ranks.finish(
        train_ranks.start(
            SCRIPT,
            variables=[train_ranks.of_torch(rank, RANKS, port) for rank in range(RANKS)],
            PYTHONPATH=f"{Path(__file__).parent}:{train_ranks.SOURCE}",
            FOLDER=str(folder),
            PLAN=json.dumps(plan),
        ),
        seconds=900,
    )
    errors = "".join(each.errors for each in ended)
    assert [each.status for each in ended] == [0] * RANKS, f"stops by seed {seed}: {errors}"


def curve(folder, name):
    lines = [json.loads(line) for line in (folder / name).read_text().splitlines()]
    return [(line["step"], line["epoch"], line["loss"], line["items"]) for line in lines if "loss" in line]


def test_four_ranks_stopped_after_random_steps_have_the_losses_of_ranks_that_were_not(tmp_path):
    """9 stops with data by index, 6 with a stream; workers by fork, forkserver, spawn, and none."""
    train_all(tmp_path)
    for data in ("map", "stream"):
        whole = [curve(tmp_path, f"{data}-whole/metrics-{rank}.jsonl") for rank in range(RANKS)]
        stopped = [curve(tmp_path, f"{data}-stopped/metrics-{rank}.jsonl") for rank in range(RANKS)]
        assert stopped == whole
        assert [step for step, *_ in whole[1]] == list(range(1, STEPS + 1))
        assert len({loss for _, _, loss, _ in whole[0]}) == STEPS
        assert_one_rank_goes_on_with_the_same_items(whole, curve(tmp_path, f"{data}-narrower/metrics-0-alone.jsonl"))


def assert_one_rank_goes_on_with_the_same_items(ranks, alone):
    together = {row[0][0]: {item for each in row for item in each[3].split()} for row in zip(*ranks, strict=True)}
    assert {step: set(items.split()) for step, _, _, items in alone} == {
        step: items for step, items in together.items() if step > WIDER
    }


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
    # What was logged after the checkpoint may have been written or not.
    assert [(line["step"], line["of"]) for line in logged if line.get("of", "lost") != "lost"] == [
        *((step, "5") for step in range(1, 6)),
        *((step, "2") for step in range(6, 8)),
    ]
