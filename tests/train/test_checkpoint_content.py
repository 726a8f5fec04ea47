"""What a checkpoint holds, and that it comes back as it was: one rank, real files, a real writer."""

from __future__ import annotations

import collections
import json
import time

import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install torch")
pytestmark = pytest.mark.torch

from train_alone import Alone, Holding, Training, load, save, through, whole_steps  # noqa: E402 - after the skip

from serried.train.checkpoints import store  # noqa: E402 - after the skip
from serried.train.checkpoints.checkpoints import Checkpoints  # noqa: E402 - after the skip
from serried.train.checkpoints.states import CheckpointError  # noqa: E402 - after the skip

KNOWS_COUNTERS = torch.__version__ >= "2.6"
"""Before, `weights_only` refuses the Counter that MultiStepLR keeps."""


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
        "shared": [],
        "metric": None,
        "files": {
            name: {"size": (place / name).stat().st_size, "crc32": store.checksum(place / name)}
            for name in ("rank-0.pt", "replicated.pt")
        },
    }


def test_torch_load_gives_the_states_of_that_step_under_the_names_of_the_objects(root, train):
    training = train().until(2)
    training.checkpoints.save(wait=True)
    state = torch.load(root / "step-2" / "replicated.pt", weights_only=KNOWS_COUNTERS)
    assert list(state) == ["model", "optimizer", "scheduler", "ema", "average", "serried"]
    expected = training.model.state_dict()
    assert list(state["model"]) == list(expected)
    assert all(torch.equal(state["model"][name], tensor) for name, tensor in expected.items())
    assert state["average"] == {"value": training.average.value}
    weight = training.model[0].weight.detach().clone()
    training.until(4).checkpoints.save()
    saved = training.model[0].weight.detach().clone()
    training.until(8)
    training.checkpoints.wait()
    state = torch.load(root / "step-4" / "replicated.pt", weights_only=KNOWS_COUNTERS)
    assert torch.equal(state["model"]["0.weight"], saved)
    assert not torch.equal(saved, weight)


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


@pytest.fixture(params=[1, 2], ids=["one thread", "several"])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("threads")
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
        "uint16": torch.arange(3).to(getattr(torch, "uint16", torch.int16)),
        "float8": torch.randn(3).to(torch.float8_e4m3fn if torch.__version__ >= "2.3" else torch.half),
        "parameter": torch.nn.Parameter(torch.ones(2)),
        "conjugate": torch.randn(3, dtype=torch.complex64).conj(),
        "negative": torch._neg_view(torch.randn(3)),
    }
    back = through(root, state)
    assert list(back) == list(state)
    for name, tensor in state.items():
        assert (name, back[name].dtype, back[name].shape) == (name, tensor.dtype, tensor.shape)
        assert back[name].reshape(-1).resolve_conj().view(torch.uint8).tolist() == (
            tensor.detach().contiguous().resolve_conj().resolve_neg().reshape(-1).view(torch.uint8).tolist()
        ), name
    assert back["channels_last"].is_contiguous(memory_format=torch.channels_last)


def test_tensors_that_share_memory_share_it_again(root):
    weight = torch.randn(100)
    back = through(root, {"embedding": weight, "head": weight.detach()})
    assert back["embedding"].data_ptr() == back["head"].data_ptr()


def test_plain_values_come_back_as_they_were_and_those_of_numpy_as_numbers(root):
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
    numpy = pytest.importorskip("numpy", reason="needs numpy: pip install numpy")
    back = through(root.with_name("numpy"), {"lr": numpy.float64(0.1), "steps": [numpy.int64(3)]})
    assert (back, type(back["lr"]), type(back["steps"][0])) == ({"lr": 0.1, "steps": [3]}, float, int)


class Opaque:
    pass


def test_what_could_not_be_read_back_is_refused_before_training_begins(root):
    refused = {f"{Opaque.__module__}.Opaque": Opaque(), "builtins.builtin_function_or_method": len}
    for kind, value in {**refused, "builtins.range": range(3)}.items():
        with pytest.raises(CheckpointError) as caught:
            Checkpoints(Alone(root), held=Holding({"deep": [0, {"down": value}]}))
        assert str(caught.value) == (
            f"cannot be saved: `{kind}` in state ['held']['deep'][1]['down']\n"
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
    assert "checkpoint of step 2 was NOT saved; training continues" in warnings_of()[0]


def test_random_numbers_go_on_where_they_were(root):
    numpy = pytest.importorskip("numpy", reason="needs numpy: pip install numpy")
    import random

    draws = (lambda: torch.rand(1).item(), random.random, numpy.random.random)
    for draw in draws:
        draw()
    save(root)
    expected = [draw() for _ in range(3) for draw in draws]
    load(root)
    assert [draw() for _ in range(3) for draw in draws] == expected


class Drawing(Holding):
    """Its state has a seed that it draws, as a loader's of torchdata that has not begun."""

    replicated = False

    def state_dict(self):
        return {"seed": torch.rand(1).item()}


def test_random_numbers_go_on_behind_those_that_saving_drew(root):
    save(root, drawing=Drawing())
    expected = torch.rand(1).item()
    load(root, drawing=Holding(replicated=False))
    assert torch.rand(1).item() == expected


def test_loaders_and_the_sessions_own_parts_come_back_also_to_a_loader_made_later(root):
    context = Alone(root)
    context._loaders = [Holding({"at": 7}, replicated=True), Holding({"at": 8}), Holding({"at": 9}, replicated=True)]
    context._parts = {"progress": Holding({"epoch": 3})}
    first = Checkpoints(context, every=None)
    first.save(wait=True)
    first.close()
    again = Alone(root)
    again._loaders = [Holding(), Holding()]
    again._parts = {"progress": Holding()}
    second = Checkpoints(again, every=None)
    again._loaders.append(Holding())
    second.adopt(again._loaders[2])
    second.close()
    assert [loader.state for loader in again._loaders] == [{"at": 7}, {"at": 8}, {"at": 9}]
    assert again._parts["progress"].state == {"epoch": 3}


def test_a_model_is_kept_without_what_makes_it_parallel_or_fast(root):
    model = torch.nn.Linear(2, 2)
    for wrapped in (torch.nn.DataParallel(model), torch.compile(model, backend="eager"), model):
        save(root, model=wrapped)
    assert whole_steps(root) == [3, 2, 1]
    for step in (1, 2, 3):
        assert list(torch.load(root / f"step-{step}" / "replicated.pt")["model"]) == ["weight", "bias"]


def test_states_that_are_missing_or_that_no_object_takes_are_warned_of(root, warnings_of):
    save(root, old=Holding({"n": 1}), ema=Holding({}), own=Holding({}, replicated=False))
    old, new = Holding(), Holding({"n": 0})
    load(root, old=old, new=new)
    assert (old.state, new.state) == ({"n": 1}, {"n": 0})
    assert warnings_of() == [
        f"checkpoint {root}/step-1 has no state for `new`, which keeps its initial state",
        f"checkpoint {root}/step-1 contains unused state `ema`",
        f"checkpoint {root}/step-1 contains unused state `own`",
    ]


def test_a_state_that_does_not_fit_is_an_error_that_names_both(root):
    save(root, model=torch.nn.Linear(2, 2))
    with pytest.raises(CheckpointError, match=r"`model` does not accept its state from checkpoint `.*/step-1`: "):
        load(root, model=torch.nn.Linear(3, 3))
