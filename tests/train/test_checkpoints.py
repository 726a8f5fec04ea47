"""What a training gets back, and what it goes on without: one rank, real files, a real writer."""

from __future__ import annotations

import collections
import itertools
import json
import logging
import os
import resource
import signal
import time
import types

import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install torch")
pytestmark = pytest.mark.torch

from train_alone import Alone, Training  # noqa: E402 - imports torch

from serried.train.checkpoints import Checkpoints, keeper, store  # noqa: E402 - as above
from serried.train.checkpoints.resuming import CheckpointError  # noqa: E402 - as above


@pytest.fixture
def root(tmp_path):
    return tmp_path / "checkpoints"


@pytest.fixture
def train(root):
    """`train(…)` begins a training, or goes on with it; its writer ends with the test."""
    begun = []

    def begin(**options):
        begun.append(Training(root, **options))
        return begun[-1]

    yield begin
    for each in begun:
        each.checkpoints.close()


@pytest.fixture
def warnings_of(caplog):
    caplog.set_level(logging.WARNING)
    return lambda: [record.getMessage() for record in caplog.records]


def whole_steps(root):
    return [checkpoint.step for checkpoint in store.whole(root)]


class Holding:
    """Has whatever state it is given."""

    def __init__(self, state=None, **attributes):
        self.state = state
        self.__dict__.update(attributes)

    def state_dict(self):
        return self.state

    def load_state_dict(self, state):
        self.state = state


def through(root, state):
    """What comes back of `state`, from a checkpoint that a second session loads."""
    first = Checkpoints(Alone(root), every=None, held=Holding(state))
    first.step()
    first.save(wait=True)
    first.close()
    held = Holding()
    second = Checkpoints(Alone(root), every=None, held=held)
    second.close()
    return held.state


# What is on the disk.


def test_a_checkpoint_is_files_for_torch_and_a_complete_that_names_them(root, train):
    training = train().until(3)
    training.checkpoints.save(wait=True)
    place = root / "step-3"
    assert sorted(path.name for path in root.iterdir()) == ["step-3"]
    assert sorted(path.name for path in place.iterdir()) == ["COMPLETE", "rank-0.pt", "replicated.pt"]
    document = json.loads((place / "COMPLETE").read_text())
    written = document.pop("written")
    assert abs(time.time() - written) < 600
    assert document == {
        "schema": 1,
        "step": 3,
        "attempt": 1,
        "world_size": 1,
        "sharded": [],
        "metric": None,
        "files": {
            name: {"size": (place / name).stat().st_size, "crc32": store.checksum(place / name)}
            for name in ("rank-0.pt", "replicated.pt")
        },
    }


def test_torch_load_gives_the_states_under_the_names_of_the_objects(root, train):
    training = train().until(2)
    training.checkpoints.save(wait=True)
    state = torch.load(root / "step-2" / "replicated.pt", weights_only=True)
    assert list(state) == ["model", "optimizer", "scheduler", "ema", "average", "serried"]
    expected = training.model.state_dict()
    assert list(state["model"]) == list(expected)
    assert all(torch.equal(state["model"][name], tensor) for name, tensor in expected.items())
    assert state["average"] == {"value": training.average.value}


def test_what_is_saved_is_the_state_of_that_step_though_training_goes_on_meanwhile(root, train):
    training = train().until(2)
    weight = training.model[0].weight.detach().clone()
    training.checkpoints.save()
    training.until(6)
    training.checkpoints.wait()
    state = torch.load(root / "step-2" / "replicated.pt", weights_only=True)
    assert torch.equal(state["model"]["0.weight"], weight)


# What comes back.


@pytest.mark.parametrize("stopped", [1, 4, 9])
def test_the_loss_curve_after_a_stop_is_bit_by_bit_that_of_an_uninterrupted_training(tmp_path, train, stopped):
    uninterrupted = Training(tmp_path / "other").until(12)
    uninterrupted.checkpoints.close()
    first = train().until(stopped - 1)
    first.context.reason = "limit"
    assert first.step() is True
    assert first.context.saved == stopped
    second = train(seed=99)
    assert second.checkpoints.resumed_step == stopped
    assert first.losses + second.until(12).losses == uninterrupted.losses


def test_all_kinds_of_tensors_come_back_as_they_were(root):
    base = torch.arange(24.0).reshape(2, 3, 4)
    state = {
        "float": base,
        "transposed": base.transpose(0, 2),
        "expanded": torch.ones(1).expand(4),
        "sliced": base[:, 1],
        "channels_last": torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last),
        "scalar": torch.tensor(3),
        "empty": torch.empty(0, 5),
        "bool": torch.tensor([True, False]),
        "half": torch.randn(3).half(),
        "bfloat16": torch.randn(3).bfloat16(),
        "complex": torch.randn(3, dtype=torch.complex64),
        "uint16": torch.arange(3).to(torch.uint16),
        "float8": torch.randn(3).to(torch.float8_e4m3fn),
        "parameter": torch.nn.Parameter(torch.ones(2)),
        "conjugate": torch.randn(3, dtype=torch.complex64).conj(),
    }
    back = through(root, state)
    assert list(back) == list(state)
    for name, tensor in state.items():
        assert (name, back[name].dtype, back[name].shape) == (name, tensor.dtype, tensor.shape)
        assert back[name].reshape(-1).resolve_conj().view(torch.uint8).tolist() == (
            tensor.detach().contiguous().resolve_conj().reshape(-1).view(torch.uint8).tolist()
        ), name
    assert back["channels_last"].is_contiguous(memory_format=torch.channels_last)


def test_tensors_that_share_memory_share_it_again(root):
    weight = torch.randn(100)
    back = through(root, {"embedding": weight, "head": weight.detach()})
    assert back["embedding"].data_ptr() == back["head"].data_ptr()


def test_plain_values_come_back_as_they_were(root):
    state = {
        "none": None,
        "text": "é\n$(id)",
        "number": 2**70,
        "float": float("inf"),
        "list": [1, (2, 3), {"a": True}],
        4: "a number as a key",
        "bytes": b"\0\xff",
        "set": {1, 2},
        "ordered": collections.OrderedDict(a=1),
        "counter": collections.Counter("aab"),
        "size": torch.Size([1, 2]),
        "dtype": torch.float32,
        "device": torch.device("cpu"),
    }
    back = through(root, state)
    assert back == state
    assert {name: type(value) for name, value in back.items()} == {name: type(value) for name, value in state.items()}


def test_numbers_of_numpy_come_back_as_numbers(root):
    numpy = pytest.importorskip("numpy", reason="needs numpy: pip install numpy")
    back = through(root, {"lr": numpy.float64(0.1), "steps": [numpy.int64(3)]})
    assert (back, type(back["lr"]), type(back["steps"][0])) == ({"lr": 0.1, "steps": [3]}, float, int)


class Opaque:
    pass


@pytest.mark.parametrize(
    ("value", "called"),
    [
        (Opaque(), f"{Opaque.__module__}.Opaque"),
        (len, "builtins.builtin_function_or_method"),
        (range(3), "builtins.range"),
    ],
)
def test_what_could_not_be_read_back_is_refused_before_training_begins(root, value, called):
    held = Holding({"deep": [0, {"down": value}]})
    with pytest.raises(CheckpointError) as caught:
        Checkpoints(Alone(root), held=held)
    assert str(caught.value) == (
        f"cannot be kept: `{called}` in state ['held']['deep'][1]['down']\n"
        "hint: a checkpoint holds tensors, numbers, text and containers of them"
    )


def test_a_value_that_appears_later_and_cannot_be_kept_does_not_end_the_training(root, warnings_of):
    held = Holding({"n": 1})
    checkpoints = Checkpoints(Alone(root), every="1 step", held=held)
    checkpoints.step()
    checkpoints.wait()
    held.state = {"n": Opaque()}
    checkpoints.step()
    checkpoints.close()
    assert whole_steps(root) == [1]
    assert "checkpoint of step 2 was NOT saved, and training goes on" in warnings_of()[0]


@pytest.mark.parametrize("name", ["torch", "python", "numpy"])
def test_random_numbers_go_on_where_they_were(root, name):
    numpy = pytest.importorskip("numpy", reason="needs numpy: pip install numpy")
    import random

    draw = {"torch": lambda: torch.rand(1).item(), "python": random.random, "numpy": numpy.random.random}[name]
    checkpoints = Checkpoints(Alone(root), every=None)
    draw()
    checkpoints.step()
    checkpoints.save(wait=True)
    checkpoints.close()
    expected = [draw() for _ in range(3)]
    Checkpoints(Alone(root), every=None).close()
    assert [draw() for _ in range(3)] == expected


def test_loaders_and_the_sessions_own_parts_come_back_also_to_a_loader_made_later(root):
    context = Alone(root)
    context.loaders = [Holding({"at": 7}, replicated=True), Holding({"at": 8}), Holding({"at": 9}, replicated=True)]
    context.parts = {"progress": Holding({"epoch": 3})}
    first = Checkpoints(context, every=None)
    first.save(wait=True)
    first.close()
    again = Alone(root)
    again.loaders = [Holding(), Holding()]
    again.parts = {"progress": Holding()}
    second = Checkpoints(again, every=None)
    again.loaders.append(Holding())
    second.adopt(again.loaders[2])
    second.close()
    assert [loader.state for loader in again.loaders] == [{"at": 7}, {"at": 8}, {"at": 9}]
    assert again.parts["progress"].state == {"epoch": 3}


def test_a_model_is_kept_without_what_makes_it_parallel_or_fast(root):
    model = torch.nn.Linear(2, 2)
    for wrapped in (torch.nn.DataParallel(model), torch.compile(model, backend="eager"), model):
        checkpoints = Checkpoints(Alone(root), every=None, model=wrapped)
        checkpoints.step()
        checkpoints.save(wait=True)
        checkpoints.close()
    assert whole_steps(root) == [3, 2, 1]
    for step in (1, 2, 3):
        assert list(torch.load(root / f"step-{step}" / "replicated.pt")["model"]) == ["weight", "bias"]


def test_an_object_that_is_new_begins_afresh_with_a_word(root, warnings_of):
    first = Checkpoints(Alone(root), every=None, old=Holding({"n": 1}))
    first.save(wait=True)
    first.close()
    old, new = Holding(), Holding({"n": 0})
    Checkpoints(Alone(root), every=None, old=old, new=new).close()
    assert (old.state, new.state) == ({"n": 1}, {"n": 0})
    assert warnings_of() == [f"checkpoint {root}/step-0 has no state for `new`, which begins afresh"]


def test_a_state_that_does_not_fit_is_an_error_that_names_both(root):
    first = Checkpoints(Alone(root), every=None, model=torch.nn.Linear(2, 2))
    first.save(wait=True)
    first.close()
    with pytest.raises(CheckpointError, match=r"`model` does not accept its state from checkpoint `.*/step-0`: "):
        Checkpoints(Alone(root), every=None, model=torch.nn.Linear(3, 3))


# Which one.


def test_a_damaged_checkpoint_is_passed_over_with_a_warning_and_set_aside(root, train, warnings_of):
    train(every="2 steps").until(6).checkpoints.close()
    damaged = root / "step-6" / "replicated.pt"
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 1
    damaged.write_bytes(content)
    assert train().checkpoints.resumed_step == 4
    assert warnings_of() == [
        f"checkpoint {root}/step-6 is passed over: `replicated.pt` has changed since it was written"
    ]
    assert sorted(path.name for path in root.iterdir()) == ["step-2", "step-4", "step-6.corrupt"]


def test_torn_checkpoints_are_passed_over_with_a_warning(root, train, warnings_of):
    train(every="2 steps").until(6).checkpoints.close()
    (root / "step-6" / "COMPLETE").unlink()
    (root / "step-8.tmp").mkdir()
    assert train().checkpoints.resumed_step == 4
    assert warnings_of() == [
        f"checkpoint {root}/step-6 is passed over: its writing was cut short",
        f"checkpoint {root}/step-8.tmp is passed over: its writing was cut short",
    ]
    assert not (root / "step-8.tmp").exists()


def test_another_runs_checkpoint_is_begun_from_where_there_is_none_of_ones_own(tmp_path, train):
    elsewhere = tmp_path / "elsewhere"
    Training(elsewhere, every="2 steps").until(4).checkpoints.close()
    for named, step in ((elsewhere, 4), (elsewhere / "step-2", 2)):
        assert train(resume_from=named).checkpoints.resumed_step == step
    train(resume_from=elsewhere).until(5).checkpoints.save(wait=True)
    assert train(resume_from=elsewhere / "step-2").checkpoints.resumed_step == 5


def test_a_checkpoint_that_was_asked_for_and_is_not_there_is_an_error(root, tmp_path):
    with pytest.raises(CheckpointError, match="no whole checkpoint in"):
        Checkpoints(Alone(root, resume_from=tmp_path / "nowhere"))


# When.


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


def test_saves_when_time_is_up(root, train):
    training = train(every="0.2s")
    deadline = time.monotonic() + 30
    while len(whole_steps(root)) < 2 and time.monotonic() < deadline:
        training.step()
    assert len(whole_steps(root)) == 2


def test_auto_saves_after_a_minute_and_then_at_youngs_interval(train, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(keeper, "time", types.SimpleNamespace(monotonic=lambda: now[0]))
    training = train(every="auto")
    saved = []
    for _ in range(400):
        now[0] += 1.0
        before = training.checkpoints.last_step
        training.step()
        training.checkpoints.wait()
        if training.checkpoints.last_step != before:
            saved.append(training.checkpoints.steps)
    gaps = {later - earlier for earlier, later in itertools.pairwise(saved)}
    assert saved[0] in (60, 61)
    assert gaps
    assert all(30 <= gap < 340 for gap in gaps)


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


def test_a_checkpoint_that_is_being_saved_anyway_is_rated_and_not_saved_twice(root, train):
    training = train(every="1 step", best="max").until(1)
    assert training.checkpoints.rate(0.5) is True
    training.checkpoints.wait()
    assert [(each.step, each.metric) for each in store.whole(root)] == [(1, 0.5)]


def test_a_step_is_saved_once(root, train):
    training = train(every=("1 step", "1 epoch")).until(1)
    training.checkpoints.wait()
    written = (root / "step-1" / "COMPLETE").stat().st_ino
    training.checkpoints.epoch()
    training.checkpoints.save(wait=True)
    training.checkpoints.close()
    train().checkpoints.save(wait=True)
    assert (root / "step-1" / "COMPLETE").stat().st_ino == written


# What goes wrong.


def test_a_full_disk_is_said_aloud_and_training_goes_on(root, train, warnings_of):
    training = train().until(1)
    training.checkpoints.save(wait=True)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = training.checkpoints.failures
    pid = training.checkpoints._saver.writer_pid
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (4096, hard))
    training.until(2).checkpoints.save(wait=True)
    assert (before, training.checkpoints.failures) == (0, 1)
    assert sorted(path.name for path in root.iterdir()) == ["step-1"]
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (soft, hard))
    training.until(3).checkpoints.save(wait=True)
    training.checkpoints.close()
    assert whole_steps(root) == [3, 1]
    assert warnings_of() == [
        "checkpoint of step 2 was NOT saved, and training goes on: File too large",
        "1 checkpoints of this attempt could not be saved; the newest whole one is of step 3",
    ]


def test_a_stop_with_a_full_disk_leaves_with_what_there_is(train):
    training = train().until(1)
    training.checkpoints.save(wait=True)
    resource.prlimit(training.checkpoints._saver.writer_pid, resource.RLIMIT_FSIZE, (4096, 4096))
    training.context.reason = "limit"
    assert training.step() is True
    assert training.context.saved == 1


def test_a_stop_with_nothing_saved_is_an_error(train):
    training = train()
    resource.prlimit(training.checkpoints._saver.writer_pid, resource.RLIMIT_FSIZE, (4096, 4096))
    training.context.reason = "limit"
    with pytest.raises(CheckpointError, match=r"asked to stop, and nothing of this attempt could be saved \(step 1\)"):
        training.step()
    assert training.context.saved is None


def test_a_writer_that_is_killed_during_a_save_costs_that_save_alone(root, train, warnings_of):
    training = train().until(1)
    training.checkpoints.save(wait=True)
    pid = training.checkpoints._saver.writer_pid
    os.kill(pid, signal.SIGSTOP)
    training.until(2).checkpoints.save()
    os.kill(pid, signal.SIGKILL)
    training.checkpoints.wait()
    assert warnings_of() == [
        (
            "checkpoint of step 2 was NOT saved, and training goes on: "
            "the process that writes checkpoints has died (signal 9)"
        )
    ]
    assert whole_steps(root) == [1]
    training.until(3).checkpoints.save(wait=True)
    assert whole_steps(root) == [3, 1]
    assert training.checkpoints._saver.writer_pid != pid


def test_the_writer_minds_no_signal_that_a_scheduler_sends_to_all(root, train):
    training = train().until(1)
    for name in ("SIGTERM", "SIGUSR1", "SIGUSR2", "SIGINT", "SIGHUP"):
        os.kill(training.checkpoints._saver.writer_pid, getattr(signal, name))
    training.checkpoints.save(wait=True)
    assert (whole_steps(root), training.checkpoints.failures) == ([1], 0)


def test_a_writer_that_was_asked_to_end_before_it_had_begun_writes_all_the_same(root):
    for _ in range(5):
        checkpoints = Checkpoints(Alone(root), every=None)
        os.kill(checkpoints._saver.writer_pid, signal.SIGTERM)
        checkpoints.step()
        checkpoints.save(wait=True)
        assert checkpoints.failures == 0
        checkpoints.close()


def test_a_child_that_was_forked_leaves_the_writer_alone(root, train):
    training = train().until(1)
    pid = os.fork()
    if pid == 0:
        training.checkpoints.close()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    training.checkpoints.save(wait=True)
    assert whole_steps(root) == [1]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"keep": 1}, "`keep` is 1, and one checkpoint may be damaged: keep 2 or more"),
        ({"best": "accuracy"}, "`best` is 'accuracy': it can be 'max' or 'min'"),
        ({"every": "often"}, "`every` cannot be 'often'"),
        ({"count": 3}, "`count` has no `state_dict`: a `int` has no state to keep"),
        ({"serried": Holding({})}, "`serried` is not free as a name in a checkpoint"),
    ],
)
def test_mistakes_are_told_at_once(root, options, error):
    with pytest.raises((ValueError, TypeError)) as caught:
        Checkpoints(Alone(root), **options)
    assert str(caught.value).split("\n")[0] == error


def test_without_a_directory_nothing_is_saved_and_stops_are_heard(warnings_of):
    context = Alone(None)
    checkpoints = Checkpoints(context, every="1 step", scheduler=None)
    checkpoints.save(wait=True)
    heard = [checkpoints.step()]
    context.reason = "limit"
    heard.append(checkpoints.step())
    checkpoints.close()
    assert heard == [False, True]
    assert warnings_of() == ["no directory for checkpoints, so nothing is saved: `SERRIED_CHECKPOINT_DIR` is not set"]
