"""What `run.log` writes. tests/records/test_metrics_reading.py has what a reader finds after several attempts."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from train_ranks import answers, run

from serried.train import metrics
from serried.train.metrics import Metrics, default_path


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def steps(path):
    """What was logged, and nothing of what is told without being asked."""
    entries = [{key: value for key, value in entry.items() if key != "t"} for entry in lines(path)]
    return [entry for entry in entries if not any(name.startswith("serried/") for name in entry)]


def rates(path):
    return [entry for entry in lines(path) if any(name.startswith("serried/") for name in entry)]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "metrics-0.jsonl"


@pytest.fixture(autouse=True)
def _no_time_passes(monkeypatch):
    """Nothing is written, or told, because a test has been slow."""
    monkeypatch.setattr(metrics, "WRITE_SECONDS", 1000)
    monkeypatch.setattr(metrics, "RATES_SECONDS", 1000)


def logged(path, *values):
    """A file of steps 1, 2 and so on, with these values."""
    log = Metrics(path)
    for step, each in enumerate(values, start=1):
        log.log(step, each)
    log.close()


def test_each_step_is_a_line_with_its_time_to_a_tenth_of_a_millisecond(path, monkeypatch):
    """A step of 3 ms was one of 2, 3 or 4 ms to `serried bench`. What JSON has no word for is text."""
    monkeypatch.setattr(metrics.time, "time", lambda: 1_700_000_000.123456)
    logged(path, {"loss": 0.5, "images": 64}, {"a": float("nan"), "b": float("inf"), "c": -float("inf")}, {"d": "x"})
    assert steps(path) == [
        {"step": 1, "loss": 0.5, "images": 64},
        {"step": 2, "a": "nan", "b": "inf", "c": "-inf"},
        {"step": 3, "d": "x"},
    ]
    assert {line["t"] for line in lines(path)} == {1_700_000_000.1235}


@pytest.mark.parametrize("is_written", [True, False])
def test_what_is_neither_number_nor_text_is_refused_where_it_is_logged(path, is_written):
    """Refused when it was written, a second later, it took all that was held back with it."""
    log = Metrics(path if is_written else None)
    log.log(1, {"loss": 0.5})
    for value in (None, [1, 2], {"a": 1}, object()):
        with pytest.raises(TypeError, match=f"takes numbers and text: `note` is a {type(value).__name__}"):
            log.log(2, {"note": value})
    log.close()
    assert steps(path) == [{"step": 1, "loss": 0.5}] if is_written else not path.exists()


def test_an_attempt_says_first_what_it_goes_on_from(path):
    log = Metrics(path)
    log.resume(7)
    log.log(8, {})
    log.resume(8)  # loaded once more, to see that it can be
    log.close()
    assert [{key: entry.get(key) for key in ("resumed", "step")} for entry in lines(path)] == [
        {"resumed": 7, "step": None},
        {"resumed": None, "step": 8},
    ]


def test_lines_are_written_each_second_and_many_steps_sooner(path, monkeypatch):
    monkeypatch.setattr(metrics, "MOST_HELD", 3)
    log = Metrics(path)
    for step in range(7):
        log.log(step, {})
    assert [entry["step"] for entry in lines(path)] == [0, 1, 2, 3, 4, 5]
    monkeypatch.setattr(metrics, "WRITE_SECONDS", 0)
    log._next_write = 0
    log.log(7, {"loss": 1.0})
    assert [entry["step"] for entry in lines(path)] == [*range(8)]
    log.close()


def test_throughput_waiting_and_memory_are_told_without_being_asked(path):
    gauges = iter([{"waited_seconds": 1.0, "peak_memory_bytes": 7}, {"waited_seconds": 1.0, "peak_memory_bytes": 9}])
    log = Metrics(path, lambda: next(gauges))
    log.log(10, {"loss": 1.0})
    log.log(14, {"loss": 1.0})
    log.close()
    (rated,) = rates(path)
    names = ("steps_per_second", "step_seconds", "wait_share", "peak_memory_bytes")
    assert set(rated) == {"t", "step", *(f"serried/{name}" for name in names)}
    assert (rated["step"], rated["serried/peak_memory_bytes"], rated["serried/wait_share"]) == (14, 9, 0.0)
    assert rated["serried/step_seconds"] == pytest.approx(1 / rated["serried/steps_per_second"])


def test_it_is_told_of_a_short_training_too_and_of_the_last_seconds_of_a_long_one(path, monkeypatch):
    monkeypatch.setattr(metrics, "RATES_SECONDS", 0)
    log = Metrics(path)
    for step in (1, 2, 3):
        log.log(step, {})
    monkeypatch.setattr(metrics, "RATES_SECONDS", 1000)
    log.log(4, {})
    log.close()
    assert [entry["step"] for entry in rates(path)] == [2, 3, 4]


def test_a_full_disk_does_not_end_the_training(path, monkeypatch):
    log = Metrics(path)

    def full(*_):
        raise OSError(28, "No space left on device")

    log.log(1, {"loss": 1.0})
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        log.write()
    log.log(2, {"loss": 1.0})
    log.close()
    assert [entry["step"] for entry in steps(path)] == [2]


def test_the_file_is_beside_the_ranks_log_and_only_the_first_rank_of_a_node_has_one_if_they_share_a_log():
    environ = {"SERRIED_RUN_DIR": "/r", "SERRIED_ATTEMPT": "2", "SERRIED_NODE": "1"}
    assert default_path(environ, 5) == Path("/r/attempts/2/node-1/metrics-5.jsonl")
    assert default_path({**environ, "SERRIED_TASK": "7"}, 5) == Path("/r/tasks/7/attempts/2/node-1/metrics-5.jsonl")
    assert default_path({}, 0) is None
    environ["SERRIED_LOG_SHARED"] = "1"
    assert default_path({**environ, "LOCAL_RANK": "0"}, 8) == Path("/r/attempts/2/node-1/metrics-8.jsonl")
    assert default_path({**environ, "LOCAL_RANK": "1"}, 9) is None


CALLS = """
import json, sys, torch
import serried.train as st

with st.session(metrics_file=None) as run:
    run.log({"loss": 1.0, "values": 2}, step=3)
    run.log(step=4, loss=1.0)
    run.log({"loss": 1.0}, step=5.0, top=1)
    run.log(step=torch.tensor(6), loss=1.0)
    run.log({"loss": 1.0})
    run.flush()
    refused = []
    for call in (
        lambda: run.log("loss", 1), lambda: run.log([1]), lambda: run.log("loss"), lambda: run.log(3, loss=1),
        lambda: run.log({7: 1.0}), lambda: run.log(step={"loss": 1}), lambda: run.log(step=0.5, loss=1),
        lambda: run.log({"loss": [1, 2]}), lambda: run.saved_for_stop("last.pt"), lambda: run.all_reduce_max(0.5),
        lambda: run.broadcast_object(0, {"a": 1}), lambda: run.loader([1], 64), lambda: run.loader(64, [1]),
    ):
        try:
            call()
        except (TypeError, ValueError) as error:
            refused.append(call)
    print(json.dumps([len(refused), run._is_saved]))
"""


@pytest.mark.torch  # forked where torch has been imported
def test_calls_with_swapped_or_mistyped_arguments_are_refused_at_once(path):
    (ended,) = run(CALLS.replace("None", repr(str(path))), world_size=1)
    assert answers(ended) == [[13, False]], ended.errors
    assert steps(path) == [
        {"step": 3, "loss": 1.0, "values": 2},
        {"step": 4, "loss": 1.0},
        {"step": 5, "loss": 1.0, "top": 1},
        {"step": 6, "loss": 1.0},
        {"step": 7, "loss": 1.0},
    ]
    (ended,) = run(CALLS, world_size=1)  # as in a plain `python train.py`
    assert answers(ended) == [[13, False]], ended.errors
