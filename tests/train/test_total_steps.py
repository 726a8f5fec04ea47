"""The last step and the throughput, for those who watch a training."""

from __future__ import annotations

import json

import pytest

import serried.train as st
from serried.train import metrics

pytestmark = pytest.mark.torch


@pytest.fixture
def path(tmp_path, monkeypatch):
    monkeypatch.setattr(metrics, "RATES_SECONDS", 0.0)
    return tmp_path / "metrics-0.jsonl"


def entries(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def train(path, *, every=1, total=None, first=None, **options):
    """Three epochs of five batches; logs every so many of them, `first` is the number of the first step."""
    with st.session(metrics_file=path) as run:
        run.total_steps = total
        evaluation = run.loader(list(range(6)), batch_size=2, resume=False)
        loader = run.loader(list(range(10)), batch_size=2, **options)
        count = 0
        for _ in run.epochs(3):
            for _ in loader:
                count += 1
                if count % every == 0:
                    run.log(loss=1.0, step=None if first is None else count - 1 + first)
            assert len(list(evaluation)) == 3


@pytest.mark.parametrize(
    ("options", "total"),
    [
        *(({"first": first}, [15]) for first in (None, 0, 1)),
        ({"every": 2}, []),  # steps that are not batches
        ({"total": 99}, [99]),  # the script's own
    ],
)
def test_a_step_for_each_batch_gives_the_total(path, options, total):
    train(path, **options)
    assert [entry["total_steps"] for entry in entries(path) if "total_steps" in entry] == total


def test_samples_are_those_of_this_rank_without_evaluation(path):
    train(path)
    rated = [entry for entry in entries(path) if "serried/samples_per_second" in entry]
    assert len(rated) >= 14
    assert rated[-1]["serried/samples_per_second"] >= 0
    within = rated[2]  # two samples per step
    assert within["serried/samples_per_second"] == pytest.approx(2 * within["serried/steps_per_second"])


def test_a_file_that_begins_with_the_resumed_step_still_does(path):
    log = metrics.Metrics(path)
    log.total_steps = 90
    log.resume(7)
    log.log(8, {"loss": 1.0})
    log.close()
    assert [sorted(set(entry) - {"t"}) for entry in entries(path)][:3] == [
        ["resumed"],
        ["loss", "step"],
        ["total_steps"],
    ]
