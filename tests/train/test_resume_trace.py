"""The trace that a rank leaves in a rehearsal: what it was when it was stopped, and when it went on."""

from __future__ import annotations

import functools
import json
import threading
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install torch")
pytestmark = pytest.mark.torch

import serried.train as st  # noqa: E402 - only where torch is
from serried.resume_check import judge  # noqa: E402
from serried.schema.layout import RunDirectory  # noqa: E402
from serried.train import resume_trace  # noqa: E402


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A run directory, as an agent would have told this process."""
    monkeypatch.setenv("SERRIED_RUN_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("SERRIED_CHECKPOINT_DIR", str(tmp_path / "run" / "checkpoints"))
    monkeypatch.setenv("SERRIED_STOP_FILE", str(tmp_path / "stop"))
    monkeypatch.setenv("SERRIED_REHEARSAL", "[3]")
    return RunDirectory(tmp_path / "run")


@pytest.fixture
def attempt(place, tmp_path, monkeypatch, wait_until):
    """Runs a training as an attempt; asks it to stop when it waits for that."""

    def run(number, train):
        monkeypatch.setenv("SERRIED_ATTEMPT", str(number))
        place.attempt(number).node(0).mkdir(parents=True)
        stop = tmp_path / "stop"
        stop.unlink(missing_ok=True)
        ended = threading.Event()

        def ask():
            wait_until(lambda: ended.is_set() or (judge.last_event(place, number) or {}).get("event") == "waiting")
            stop.write_text("limit")

        thread = threading.Thread(target=ask)
        thread.start()
        try:
            train()
        except SystemExit as leaving:
            return leaving.code
        finally:
            ended.set()
            thread.join()
        return 0

    return run


def uninterrupted(path, monkeypatch):
    """The directory of a run that is not stopped."""
    known = {"RUN_DIR": path, "CHECKPOINT_DIR": path / "checkpoints", "REHEARSAL": "[]", "ATTEMPT": "1"}
    for name, value in known.items():
        monkeypatch.setenv(f"SERRIED_{name}", str(value))
    run = RunDirectory(path)
    run.attempt(1).node(0).mkdir(parents=True)
    return run


def train(*, give=("model", "optimizer", "schedule"), after=lambda: None, steps=5, loader=None):
    def body():
        with st.session(seed=3, directory="somewhere/else", metrics_file="somewhere/else.jsonl") as run:
            model = run.wrap(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Dropout(0.5)))
            optimizer = torch.optim.Adam(model.parameters(), 0.1)
            schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
            known = {"model": model, "optimizer": optimizer, "schedule": schedule}
            data = torch.arange(40.0).reshape(20, 2)
            batches = loader(data) if loader else run.loader(data, batch_size=2)
            ckpt = run.checkpoints(every=None, **{name: known[name] for name in give})
            after()
            for _ in run.epochs(1):
                for x in batches:
                    loss = model(x).square().sum()
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                    schedule.step()
                    run.log(loss=loss)
                    if ckpt.step() or ckpt.steps == steps:
                        return

    return body


def events(place):
    (trace,) = judge.read(place)
    return [[(event["event"], event["step"]) for event in attempt] for attempt in trace.attempts]


def test_a_rank_waits_at_its_step_stops_there_and_finds_all_as_it_was(place, attempt):
    assert (attempt(1, train()), attempt(2, train())) == (85, 0)
    assert events(place) == [
        [("begin", 0), ("step", 1), ("step", 2), ("step", 3), ("waiting", 3), ("stop", 3)],
        [("begin", 3), ("step", 4), ("step", 5)],
    ]
    (trace,) = judge.read(place)
    assert list(trace.lost()) == []
    assert len(set(trace.batches().values())) == 5
    assert place.attempt(1).metrics(0, 0).exists()
    assert not Path("somewhere").exists()
    states = trace.of("stop")[0]["states"]
    assert [entry["name"] for entry in states if entry["role"] == "given"] == ["model", "optimizer", "schedule"]
    assert {"torch", "python"} <= {entry["name"] for entry in states if entry["role"] == "random"}


@pytest.mark.parametrize(
    ("changes", "lost"),
    [
        ({"give": ("model", "optimizer")}, ["schedule StepLR torch"]),
        ({"give": ("model", "schedule")}, ["optimizer Adam torch"]),
        ({"give": ("optimizer", "schedule")}, ["model Sequential torch"]),
        ({"after": lambda: torch.rand(1)}, ["torch torch random"]),
    ],
)
def test_what_was_not_restored_has_a_name(place, attempt, changes, lost):
    assert (attempt(1, train(**changes)), attempt(2, train(**changes))) == (85, 0)
    found = judge.lost(judge.read(place))
    assert [f"{one.name} {one.kind} {one.role}" for one in found] == lost


def test_data_that_do_not_go_on_are_seen_by_what_the_model_is_given(place, attempt, tmp_path, monkeypatch):
    from_the_start = train(loader=lambda data: torch.utils.data.DataLoader(data, batch_size=2))
    assert (attempt(1, from_the_start), attempt(2, from_the_start)) == (85, 0)
    stopped = judge.read(place)
    whole = uninterrupted(tmp_path / "whole", monkeypatch)
    (tmp_path / "stop").unlink()
    from_the_start()
    assert judge.first_other_batch(judge.read(whole), stopped) == (4, 0)


class Layers(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(2, 4)
        self.second = torch.nn.Sequential(torch.nn.Dropout(0.5), torch.nn.Linear(4, 1))

    def forward(self, x):
        return self.second(self.first(x))


def train_compiled(way, *, own_loader):
    """A few steps of a small model, which is compiled in this `way`, if any."""
    torch.manual_seed(0)
    compiled = functools.partial(torch.compile, backend="eager", fullgraph=True)
    with st.session(seed=3) as run:
        model = Layers()
        if way == "part":
            model.second = compiled(model.second)
        elif way == "in place":
            model.compile(backend="eager", fullgraph=True)
        model = run.wrap(compiled(model) if way == "before wrap" else model)
        model = compiled(model) if way == "after wrap" else model

        def loss_of(x):
            return model(x).square().sum()

        loss_of = compiled(loss_of) if way == "function" else loss_of
        data = torch.arange(40.0).reshape(20, 2)
        batches = torch.utils.data.DataLoader(data, batch_size=2) if own_loader else run.loader(data, batch_size=2)
        ckpt = run.checkpoints(every=None, model=model)
        for _ in run.epochs(1):
            for x in batches:
                loss_of(x).backward()
                ckpt.step()


@pytest.mark.usefixtures("place")
@pytest.mark.filterwarnings("ignore")  # those of torch, while it compiles
@pytest.mark.parametrize(
    ("way", "own_loader"),
    [(way, True) for way in ("before wrap", "after wrap", "in place", "part", "function")] + [("after wrap", False)],
)
def test_code_is_compiled_once_and_its_data_are_seen_outside_of_it(tmp_path, monkeypatch, way, own_loader):
    seen = []
    for each in (None, way):
        here = uninterrupted(tmp_path / str(each), monkeypatch)
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        train_compiled(each, own_loader=own_loader)
        (trace,) = judge.read(here)
        assert len(trace.of("begin")) == 1
        seen.append(trace.batches())
    counted = torch._dynamo.utils.counters
    found = (counted["stats"]["unique_graphs"], dict(counted["recompiles"]), dict(counted["graph_break"]))
    assert found == (1, {}, {})
    # Nothing outside sees what the script itself gives to code that is compiled as a whole.
    is_hidden = own_loader and way in ("in place", "function")
    assert (len(set(seen[0].values())), seen[1]) == (10, {} if is_hidden else seen[0])


def test_equal_states_have_equal_digests_whatever_holds_them():
    weight = torch.randn(3, 4)
    state = {"b": [1, 2.5, None, "x"], "a": weight, "c": {1: True}}
    same = {"c": {1: True}, "a": weight.clone().t().contiguous().t(), "b": (1, 2.5, None, "x")}
    assert resume_trace.digest(state) == resume_trace.digest(same)
    others = [
        {**state, "a": weight + 1e-6},
        {**state, "a": weight.reshape(4, 3)},
        {**state, "a": weight.double()},
        {**state, "b": [1, 2.5, None]},
        {**state, "c": {1: False}},
        {**state, "d": {}},
    ]
    digests = {resume_trace.digest(each) for each in (state, *others)}
    assert len(digests) == len(others) + 1


def test_other_runs_leave_no_trace(tmp_path, monkeypatch, place, attempt):
    monkeypatch.delenv("SERRIED_REHEARSAL")
    monkeypatch.chdir(tmp_path)
    Path("somewhere").mkdir()
    attempt(1, train(steps=2))
    assert list(place.path.rglob("rehearsal-*")) == []
    assert json.loads((tmp_path / "somewhere" / "else.jsonl").read_text().splitlines()[0])["step"] == 1
