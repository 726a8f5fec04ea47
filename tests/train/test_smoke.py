"""A smoke test: three steps, saved and loaded, and out."""

from __future__ import annotations

import json

import pytest
import train_ranks
from train_alone import Training

from serried.train.checkpoints.states import CheckpointError
from serried.train.run import Smoke

pytestmark = pytest.mark.torch

SCRIPT = """\
import torch
import serried.train as st
with st.session() as run:
    model = run.wrap(torch.nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = run.loader(torch.utils.data.TensorDataset(torch.randn(64, 2)), batch_size=2)
    ckpt = run.checkpoints(model=model, optimizer=optimizer, every=None)
    for epoch in run.epochs(5):
        for (batch,) in loader:
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
            if ckpt.step():
                break
    run.print("left at", ckpt.steps, "in epoch", epoch, run.is_smoke, run.should_stop)
"""


def test_all_ranks_leave_with_success_after_saving_and_loading(tmp_path):
    places = {"SERRIED_CHECKPOINT_DIR": str(tmp_path / "kept"), "SERRIED_RESULTS_DIR": str(tmp_path / "results")}
    ended = train_ranks.run(SCRIPT, 2, SERRIED_SMOKE="3", **places)
    assert [(each.status, each.output) for each in ended] == [(0, "left at 3 in epoch 0 True True\n"), (0, "")]
    said = [line for line in ended[0].errors.splitlines() if line.startswith("serried:")]
    assert said == [
        "serried: this is a smoke test, which ends after 3 steps",
        "serried: smoke test: 3 steps; a checkpoint of step 3 was saved and loaded",
    ]
    assert "serried:" not in ended[1].errors
    assert json.loads((tmp_path / "results" / "smoke.json").read_text()) == {"steps": 3, "loaded_step": 3}
    assert (tmp_path / "kept" / "step-3" / "COMPLETE").exists()


SAVES_BY_ITSELF = """\
import serried.train as st
with st.session() as run:
    for step in range(1, 100):
        if run.stop_reason():
            run.saved_for_stop(step)
            break
"""


def test_a_script_that_saves_by_itself_ends_with_success_too(tmp_path):
    (ended,) = train_ranks.run(SAVES_BY_ITSELF, 1, SERRIED_SMOKE="3", SERRIED_RESULTS_DIR=str(tmp_path))
    assert ended.status == 0, ended.errors
    assert ended.errors.splitlines()[-1] == (
        "serried: smoke test: 3 steps; the program saved step 3 itself; loading it was not tried"
    )
    assert json.loads((tmp_path / "smoke.json").read_text()) == {"steps": 3, "loaded_step": None, "own_step": 3}


class Forgetful:
    """Accepts no state that it has given."""

    def state_dict(self):
        return {"a": 1}

    def load_state_dict(self, state):
        raise ValueError(state)


def test_a_state_that_does_not_come_back_fails_it_and_a_script_that_continues_is_tried_out_once(tmp_path):
    training = Training(tmp_path / "odd", odd=Forgetful())
    training.context.reason = "smoke"
    with pytest.raises(CheckpointError, match="`odd` does not accept its state"):
        training.step()
    training.checkpoints.close()
    training = Training(tmp_path / "kept")
    training.context.reason = "smoke"
    training.until(3)
    assert [path.name for path in (tmp_path / "kept").iterdir()] == ["step-1"]
    training.checkpoints.close()


UNEVEN = """\
import torch
import serried.train as st
with st.session() as run:
    model = run.wrap(torch.nn.Linear(2, 1))
    ckpt = run.checkpoints(model=model, every=None)
    with run.uneven(model, [torch.randn(1, 2)] * (1 if run.rank else 9)) as batches:
        for batch in batches:
            model(batch).sum().backward()
            if ckpt.step():
                break
"""


def test_a_rank_without_data_is_part_of_it(tmp_path):
    ended = train_ranks.run(UNEVEN, 2, SERRIED_SMOKE="3", SERRIED_CHECKPOINT_DIR=str(tmp_path))
    assert [each.status for each in ended] == [0, 0], ended
    assert "smoke test: 3 steps; a checkpoint of step 3 was saved and loaded" in ended[0].errors


def test_what_was_not_tried_is_not_claimed(capsys):
    smoke = Smoke({"SERRIED_SMOKE": "3"})
    smoke.steps += 1
    smoke.close()
    assert capsys.readouterr().err.splitlines()[-1] == "serried: smoke test: 1 step; nothing was saved"
    assert [Smoke({"SERRIED_SMOKE": text}, is_main=False).limit for text in ("", "3", "yes")] == [0, 3, 0]
