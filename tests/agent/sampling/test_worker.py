"""The measuring process, without its agent."""

from __future__ import annotations

import json
import os
import time

import pytest

from serried.agent.sampling.worker import OpenPeriod, Sampler
from serried.base.files import read_journal

NO_PROCESS = 1 << 30


@pytest.fixture
def sampler(tmp_path):
    settings = {"every": 5, "node": 0, "host": "n0", "mode": 0o640, "gpus": "", "is_shared": True, "stands_for": 8}
    places = dict.fromkeys(("folder", "attempt", "results"), str(tmp_path))
    return Sampler({**settings, **places, "mark": None, "metric": None}, 0.0)


@pytest.fixture
def samples(tmp_path):
    (tmp_path / "node-0").mkdir()
    return tmp_path / "node-0" / "samples.jsonl"


def ranks(count, pid):
    return [{"rank": number, "pid": pid, "log": f"{number}.log"} for number in range(count)]


@pytest.mark.parametrize(("count", "seconds"), [(2, 30.0), (16, 30.0), (64, 120.0)])
def test_periods_are_longer_for_many_ranks(sampler, samples, count, seconds):
    sampler.set_ranks(ranks(count, NO_PROCESS))
    for now in range(0, 245, 5):
        sampler.sample(float(now))
    _, *periods = read_journal(samples)
    assert {period["seconds"] for period in periods} == {seconds}


def test_a_line_that_could_not_be_written_leaves_the_next_one_whole(sampler, tmp_path):
    for now in range(0, 40, 5):
        sampler.sample(float(now))
    (tmp_path / "node-0").mkdir()
    for now in range(40, 95, 5):
        sampler.sample(float(now))
    samples = tmp_path / "node-0" / "samples.jsonl"
    assert [period["count"] for period in read_journal(samples)] == [6, 6]
    assert samples.stat().st_mode & 0o777 == 0o640


def test_on_a_machine_with_other_users_the_cpu_is_that_of_the_ranks(sampler):
    sampler.set_ranks(ranks(1, os.getpid()))
    (first,) = sampler.sample(0.0)
    (second,) = sampler.sample(1000.0)
    assert "cpu" not in first
    assert second["cpu"] == second["ranks"][0]["cpu"]


def test_the_only_rank_of_a_node_with_metrics_stands_for_all(sampler, samples):
    entry = {"t": time.time(), "step": 5, "serried/samples_per_second": 10.0, "serried/wait_share": 0.25}
    samples.with_name("metrics-0.jsonl").write_text(json.dumps(entry) + "\n")
    sampler.set_ranks(ranks(8, NO_PROCESS))
    (sample,) = sampler.sample(time.monotonic())
    found = [(rank["samples_per_second"], rank["data_wait"]) for rank in sample["ranks"] if "data_wait" in rank]
    assert found == [(80.0, 0.25)]


def test_what_a_rank_reported_last_stays_when_another_launch_starts_a_rank_of_its_number(sampler, samples):
    """Of a job script. Of two such ranks the newer one is measured."""
    logs = [samples.with_name(f"{launch}.log") for launch in (1, 2)]
    logs[0].write_text("ready")
    first, second = ({"rank": 0, "pid": NO_PROCESS, "log": str(log)} for log in logs)
    sampler.set_ranks([first])
    sampler.sample(0.0)
    metrics = samples.with_name("metrics-0.jsonl")
    metrics.write_text(json.dumps({"t": time.time(), "step": 5}) + "\n")
    sampler.set_ranks([first, second])
    metrics.unlink()
    sampler.finish(5.0)
    (period,) = read_journal(samples)[1:]
    assert period["ranks"]["0"]["step"] == 5


def test_a_line_has_ranges_last_values_and_every_event():
    period = OpenPeriod(100.0)
    assert period.line(130.0, 1000.0) is None
    period.add(
        {"cpu": 1.0, "disk_free": 9},
        {0: {"busy": 90.0, "throttled": ["power-cap"], "xid": [], "ecc_errors": 0}},
        {3: {"cpu": 0.5, "step": 10, "step_age": 3.0, "metrics": {"loss": 2.0}}},
    )
    period.add({"cpu": 2.0, "disk_free": 8}, {0: {"busy": 100.0, "throttled": ["power-cap"], "xid": [79]}}, {})
    period.add({"cpu": 6.0}, {}, {3: {"cpu": 0.7, "step": 12, "metrics": {"loss": 1.0}}})
    assert period.line(130.0, 1000.0) == {
        "t": 1000.0,
        "seconds": 30.0,
        "count": 3,
        "node": {"cpu": [1.0, 3.0, 6.0], "disk_free": 8},
        "gpus": {"0": {"busy": [90.0, 95.0, 100.0], "ecc_errors": 0, "throttled": ["power-cap"], "xid": [79]}},
        "ranks": {"3": {"cpu": [0.5, 0.6, 0.7], "step": 12, "metrics": {"loss": 1.0}}},
    }


def test_an_hour_of_a_large_node_fits_in_a_megabyte():
    number = 123_456_789_012.0
    gpu = dict.fromkeys(("busy", "memory", "power", "temperature", "clock", "sm_active"), 1234.0)
    gpu |= {"throttled": ["power-cap", "thermal-slowdown"], "ecc_errors": 0}
    rank = dict.fromkeys(("cpu", "memory", "read", "write", "steps_per_second", "samples_per_second"), number)
    rank |= {"data_wait": 0.1234, "step": 123_456_789, "total_steps": 987_654_321}
    rank |= {"metrics": {f"train/some_loss_{number}": 0.123456 for number in range(6)}}
    node = dict.fromkeys(("cpu", "memory", "disk_read", "disk_write", "net_in", "net_out", "disk_free"), number)
    period = OpenPeriod(0.0)
    for _ in range(6):
        period.add(node, dict.fromkeys(range(8), gpu), dict.fromkeys(range(8), rank))
    line = json.dumps(period.line(30.0, 1e9), separators=(",", ":"))
    assert 120 * len(line) < 1_000_000
