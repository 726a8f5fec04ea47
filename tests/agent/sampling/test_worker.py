"""The measuring process, without its agent."""

from __future__ import annotations

import json
import os
import time

import pytest

from serried.agent.sampling.worker import Sampler
from serried.fs.files import read_journal

NO_PROCESS = 1 << 30


@pytest.fixture
def sampler(tmp_path):
    (tmp_path / "node-0").mkdir()
    place = {"node": 0, "host": "n0", "folder": str(tmp_path), "attempt": str(tmp_path), "results": str(tmp_path)}
    return Sampler(
        {
            **place,
            "every": 5,
            "mode": 0o600,
            "gpus": "",
            "is_shared": True,
            "mark": None,
            "metric": None,
            "stands_for": 8,
        },
        0.0,
    )


def ranks(count, pid):
    return [{"rank": number, "pid": pid, "log": f"{number}.log"} for number in range(count)]


@pytest.mark.parametrize(("count", "seconds"), [(2, 30.0), (16, 30.0), (64, 120.0)])
def test_periods_are_longer_for_many_ranks(sampler, tmp_path, count, seconds):
    sampler.set_ranks(ranks(count, NO_PROCESS))
    for now in range(0, 245, 5):
        sampler.sample(float(now))
    _, *periods = read_journal(tmp_path / "node-0" / "samples.jsonl")
    assert {period["seconds"] for period in periods} == {seconds}


def test_on_a_machine_with_other_users_the_cpu_is_that_of_the_ranks(sampler):
    sampler.set_ranks(ranks(1, os.getpid()))
    (first,) = sampler.sample(0.0)
    (second,) = sampler.sample(1000.0)
    assert "cpu" not in first
    assert second["cpu"] == second["ranks"][0]["cpu"]


def test_the_only_rank_of_a_node_with_metrics_stands_for_all(sampler, tmp_path):
    entry = {"t": time.time(), "step": 5, "serried/samples_per_second": 10.0, "serried/wait_share": 0.25}
    (tmp_path / "node-0" / "metrics-0.jsonl").write_text(json.dumps(entry) + "\n")
    sampler.set_ranks(ranks(8, NO_PROCESS))
    (sample,) = sampler.sample(time.monotonic())
    found = [(rank["samples_per_second"], rank["data_wait"]) for rank in sample["ranks"] if "data_wait" in rank]
    assert found == [(80.0, 0.25)]
