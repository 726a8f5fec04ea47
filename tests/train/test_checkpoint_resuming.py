"""Which checkpoint a training goes on from, and what is said of those that it passes over."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install torch")
pytestmark = pytest.mark.torch

from train_alone import Alone, Training, whole_steps  # noqa: E402 - after the skip

from serried.train.checkpoints.checkpoints import Checkpoints  # noqa: E402 - after the skip
from serried.train.checkpoints.states import CheckpointError  # noqa: E402 - after the skip
from serried.train.run import _elsewhere  # noqa: E402 - after the skip


def damage(checkpoint):
    """One bit of its content is another now."""
    path = checkpoint / "replicated.pt"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_a_damaged_checkpoint_is_passed_over_with_a_warning_and_set_aside(root, train, warnings_of):
    train(every="2 steps").until(6).checkpoints.close()
    damage(root / "step-6")
    assert train().checkpoints.resumed_step == 4
    assert warnings_of() == [f"skipping checkpoint {root}/step-6: `replicated.pt` has changed since it was written"]
    assert sorted(path.name for path in root.iterdir()) == ["step-2", "step-4", "step-6.corrupt"]


def test_torn_checkpoints_are_passed_over_with_a_warning(root, train, warnings_of):
    train(every="2 steps").until(6).checkpoints.close()
    (root / "step-6" / "COMPLETE").unlink()
    (root / "step-8.tmp").mkdir()
    assert train().checkpoints.resumed_step == 4
    assert warnings_of() == [
        f"skipping checkpoint {root}/step-6: it was not written completely",
        f"skipping checkpoint {root}/step-8.tmp: it was not written completely",
    ]
    assert not (root / "step-8.tmp").exists()


def test_another_runs_checkpoint_is_begun_from_where_there_is_none_of_ones_own(tmp_path, train):
    elsewhere = tmp_path / "elsewhere"
    Training(elsewhere, every="2 steps").until(4).checkpoints.close()
    for named, step in ((elsewhere, 4), (elsewhere / "step-2", 2)):
        assert train(resume_from=named).checkpoints.resumed_step == step
    train(resume_from=elsewhere).until(5).checkpoints.save(wait=True)
    assert train(resume_from=elsewhere / "step-2").checkpoints.resumed_step == 5


def test_torn_and_damaged_ones_of_another_run_are_passed_over_too(tmp_path, root, train, warnings_of):
    elsewhere = tmp_path / "elsewhere"
    Training(elsewhere, every="2 steps").until(6).checkpoints.close()
    (elsewhere / "step-8.tmp").mkdir()
    damage(elsewhere / "step-6")
    assert train(resume_from=elsewhere).checkpoints.resumed_step == 4
    damaged = f"skipping checkpoint {elsewhere}/step-6: `replicated.pt` has changed since it was written"
    assert warnings_of() == [f"skipping checkpoint {elsewhere}/step-8.tmp: it was not written completely", damaged]
    assert (elsewhere / "step-6").exists()
    with pytest.raises(CheckpointError, match="step-6` to start from; beside it there are step-4, step-2"):
        Checkpoints(Alone(root, resume_from=elsewhere / "step-6"))


def test_where_all_of_ones_own_are_damaged_it_is_begun_from_the_other_runs_again(tmp_path, root, train):
    elsewhere = tmp_path / "elsewhere"
    Training(elsewhere, every="2 steps").until(2).checkpoints.close()
    train(resume_from=elsewhere).until(5).checkpoints.save(wait=True)
    damage(root / "step-5")
    assert train(resume_from=elsewhere).checkpoints.resumed_step == 2
    with pytest.raises(CheckpointError, match="no complete checkpoint in"):
        Checkpoints(Alone(tmp_path / "new", resume_from=tmp_path / "nowhere"))


@pytest.mark.parametrize(
    ("resume", "beginning", "expected"),
    [
        ("/runs/b/checkpoints/step-5", "/runs/a/checkpoints/step-2", "/runs/a/checkpoints/step-2"),
        ("/runs/b/checkpoints/step-5", "", None),
        ("/runs/a/checkpoints/step-2", "/runs/a/checkpoints/step-2", "/runs/a/checkpoints/step-2"),
        ("", "", None),
    ],
)
def test_what_an_attempt_goes_on_from_is_no_other_place_where_it_is_the_sessions_own(
    monkeypatch, resume, beginning, expected
):
    monkeypatch.setenv("SERRIED_RESUME_FROM", resume)
    monkeypatch.setenv("SERRIED_BEGIN_FROM", beginning)
    found = _elsewhere(Path("/runs/b/checkpoints"))
    assert (str(found) if found else None) == expected


@pytest.fixture
def memory(monkeypatch):
    """The memory of an agent, which outlives ranks."""
    descriptor = os.memfd_create("serried-checkpoint")
    monkeypatch.setenv("SERRIED_MEMORY", f"/proc/{os.getpid()}/fd/{descriptor}")
    yield descriptor
    os.close(descriptor)


def saved(train, steps):
    training = train(keep=9).until(steps)
    training.checkpoints.save(wait=True)
    training.checkpoints.close()


def uninterrupted(train):
    training = train().until(12)
    training.checkpoints.close()
    return training.losses


def flip(path, offset):
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)
        file.seek(offset)
        file.write(bytes([byte[0] ^ 1]))


def losses_from(train, step, steps=12):
    training = train(keep=9)
    assert training.checkpoints.resumed_step == step
    return training.until(steps).losses


@pytest.mark.usefixtures("memory")
def test_what_a_save_left_in_memory_is_read_in_place_of_the_file_system(root, train):
    whole = uninterrupted(train)
    saved(train, 4)
    for name in ("replicated.pt", "rank-0.pt"):
        flip(root / "step-4" / name, 2000)

    assert losses_from(train, 4) == whole[4:]


@pytest.mark.usefixtures("memory")
def test_memory_that_is_not_what_complete_says_is_not_read(train):
    whole = uninterrupted(train)
    saved(train, 4)
    flip(Path(os.environ["SERRIED_MEMORY"]), (1 << 16) + 2000)

    assert losses_from(train, 4) == whole[4:]


@pytest.mark.usefixtures("memory")
def test_what_was_in_memory_alone_becomes_a_checkpoint(root, train):
    saved(train, 2)
    saved(train, 4)
    before = {path.name: path.read_bytes() for path in (root / "step-4").iterdir() if path.suffix == ".pt"}
    shutil.rmtree(root / "step-4")

    assert train(keep=9).checkpoints.resumed_step == 4
    assert {path.name: path.read_bytes() for path in (root / "step-4").iterdir() if path.suffix == ".pt"} == before
    assert whole_steps(root) == [4, 2]


@pytest.mark.usefixtures("memory")
def test_a_copy_that_was_begun_and_not_finished_is_not_a_checkpoint(train, monkeypatch):
    saved(train, 2)
    training = train(keep=9).until(4)
    monkeypatch.setattr(training.checkpoints._saver._stage, "_copy", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        training.checkpoints.save()
    training.checkpoints._saver._staged = None
    training.checkpoints.close()

    assert train(keep=9).checkpoints.resumed_step == 2


@pytest.mark.usefixtures("memory")
def test_memory_that_another_process_still_holds_is_left_alone(train):
    first = train(keep=9)
    second = train(keep=9)

    assert [each.checkpoints._saver._memory.is_kept for each in (first, second)] == [True, False]


def test_a_path_that_belongs_to_something_else_by_now_is_not_opened(train, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("mine")
    monkeypatch.setenv("SERRIED_MEMORY", str(tmp_path / "file"))

    assert not train(keep=9).checkpoints._saver._memory.is_kept
    assert (tmp_path / "file").read_text() == "mine"
