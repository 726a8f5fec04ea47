"""When checkpoints are made: steps, epochs, time, Young's interval, the best yet."""

from __future__ import annotations

import time
import types

import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install torch")
pytestmark = pytest.mark.torch

from train_alone import whole_steps  # noqa: E402 - after the skip

import serried.train as st  # noqa: E402 - after the skip
from serried.train.checkpoints import checkpoints, store  # noqa: E402 - after the skip


def test_saves_at_steps_and_keeps_the_newest(root, train):
    train(every="2 steps", keep=2).until(9).checkpoints.close()
    assert whole_steps(root) == [8, 6]


def test_saves_at_the_end_of_epochs(root, train):
    training = train(every="2 epochs")
    for _ in range(5):
        training.until(training.checkpoints.steps + 3)
        training.checkpoints.epoch()
    training.checkpoints.wait()
    assert whole_steps(root) == [12, 6]
    training.checkpoints.close()
    again = train(every="2 epochs")
    for _ in range(2):
        again.checkpoints.epoch()
    again.checkpoints.wait()
    assert whole_steps(root) == [12, 6], "the fifth epoch was not over when step 12 was saved: it is the fifth again"


@pytest.mark.parametrize(("every", "saved"), [("5m", [4]), ("3 steps", [4, 3]), (None, [])])
def test_saves_what_the_last_epoch_has_come_to(root, every, saved):
    for _ in range(2):  # the second time there is nothing left to do, nor to save
        with st.session(directory=root, device="cpu") as run:
            ckpt = run.checkpoints(model=torch.nn.Linear(2, 2), every=every)
            for _ in run.epochs(2):
                ckpt.step()
                ckpt.step()
        assert whole_steps(root) == saved


def test_saves_when_time_is_up(root, train):
    training = train(every="0.2s")
    deadline = time.monotonic() + 120
    while len(whole_steps(root)) < 2 and time.monotonic() < deadline:
        training.step()
    assert len(whole_steps(root)) >= 2  # a slow look may find the next one there already


def test_auto_saves_after_a_minute_and_then_at_youngs_interval(train, monkeypatch):
    now, measured, interval = [1000.0], [], checkpoints.best_interval

    def best_interval(stall_seconds, write_seconds, world_size):
        measured.append((stall_seconds, write_seconds))
        return interval(0.1, 0.0, world_size)

    monkeypatch.setattr(checkpoints, "time", types.SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(checkpoints, "best_interval", best_interval)  # what a save takes is this machine's affair
    training = train(every="auto")
    saved = []
    for _ in range(60):
        now[0] += 6.0
        before = training.checkpoints.last_step
        training.step()
        training.checkpoints.wait()
        if training.checkpoints.last_step != before:
            saved.append(training.checkpoints.steps)
    assert saved == [10, 32, 54]
    assert all(stall > 0 and write > 0 for stall, write in measured)


@pytest.mark.parametrize(("best", "kept"), [("max", [6, 5, 2]), ("min", [6, 5, 1])])
def test_the_best_state_is_saved_when_it_is_rated_and_stays(root, train, best, kept):
    training = train(best=best, keep=2)
    saved = []
    for step, accuracy in enumerate((0.5, 0.9, float("nan"), 0.7), start=1):
        training.until(step)
        saved.append(training.checkpoints.rate(accuracy))
        training.checkpoints.wait()
    for step in (5, 6):
        training.until(step).checkpoints.save(wait=True)
    assert saved == [True, best == "max", False, False]
    assert whole_steps(root) == kept
    training.checkpoints.close()
    again = train(best=best, keep=2)
    assert again.checkpoints.rate(0.7) is False, "the best of before the interruption is known"


def test_a_step_is_saved_once_and_rated_while_it_is_being_saved(root, train):
    training = train(every=("1 step", "1 epoch"), best="max").until(1)
    assert training.checkpoints.rate(0.5) is True
    training.checkpoints.wait()
    assert [(each.step, each.metric) for each in store.whole(root)] == [(1, 0.5)]
    written = (root / "step-1" / "COMPLETE").stat().st_ino
    training.checkpoints.epoch()
    training.checkpoints.save(wait=True)
    training.checkpoints.close()
    train().checkpoints.save(wait=True)
    assert (root / "step-1" / "COMPLETE").stat().st_ino == written
