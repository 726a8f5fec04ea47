"""live.json as readers take it: whatever is in the file, progress or nothing, and never a traceback."""

from __future__ import annotations

import json
import math

from building import a_live_node, a_plan, live_of
from serried.records.live import RunProgress, doubts, parse, progress_of
from serried.records.record import Summary
from serried.schema.plan import ReportedMetric, Sweep
from serried.views import run_lines
from tables import for_each

NOW = 1_795_000_000.0


def progress(document, *, now=NOW, metric=""):
    live = parse(json.loads(json.dumps(document)))
    assert live is not None
    return RunProgress(live, live.age(now), metric)


def test_figures_of_a_large_job_are_plain_numbers_and_name_the_node_to_look_at():
    nodes = [a_live_node(node, gpus=(97.0, 3.0 if node == 41 else 91.0)) for node in range(256)]
    assert run_lines.progress_facts(progress(live_of(NOW, *nodes, limit_seconds_left=None))) == [
        ("progress", "step 1200/5000, loss 0.3123, lr 0.001"),
        ("speed", "3.1 it/s, 101,581 samples/s, 2% of the time waiting for data"),
        ("time left", "20m by the rate of its steps"),
        ("GPUs", "512 NVIDIA H200, 94% busy, the least 3% on n42, 112 of 140 GiB, 640 W"),
        ("CPUs", "3,174 of 4,096 busy"),
        ("memory", "8.5 of 64 GiB on n1"),
    ]


def test_the_whole_progress_as_json():
    assert progress(live_of(NOW)).to_json() == {
        "at": "2026-11-18T11:06:40Z",
        "stale": False,
        "step": 1200,
        "total_steps": 5000,
        "step_age": 0.4,
        "stalled": False,
        "checking": False,
        "metrics": {"loss": 0.31234, "lr": 0.001},
        "samples_per_second": 396.8,
        "steps_per_second": 3.1,
        "output_age": 2.0,
        "data_wait": 0.02,
        "gpu_busy": 94.0,
        "seconds_left": 1225.8,
        "limit_seconds_left": 2880.0,
        "notice_seconds_left": None,
        "ranks": 2,
        "warnings": [],
    }


DAMAGED = {
    "empty": b"",
    "torn": json.dumps(live_of(NOW)).encode()[:-40],
    "not JSON": b"\x00\xff\xfe" * 100,
    "a list": b"[]",
    "a number": b"7",
    "deep": b"[" * 100_000,
    "of a later version": b'{"schema": 2, "t": 1}',
    "without a version": b'{"t": 1}',
    "without a time": b'{"schema": 1, "nodes": []}',
    "a time in words": b'{"schema": 1, "t": "now"}',
    "a time after all times": b'{"schema": 1, "t": 1e300}',
    "a number of 5,000 digits": b'{"schema": 1, "t": ' + b"9" * 5000 + b"}",
}


def test_a_damaged_or_missing_file_is_none(tmp_path):
    path = tmp_path / "live.json"
    assert progress_of(path, "", NOW) is None
    assert progress_of(tmp_path, "", NOW) is None
    for name, content in DAMAGED.items():
        path.write_bytes(content)
        assert (name, progress_of(path, "", NOW)) == (name, None)


ODD = {
    "nothing": {},
    "no lists": {"nodes": 7, "warnings": {}, "ranks": [], "gpus": "many", "interval": -3},
    "odd nodes": {"nodes": [None, 3, {}, {"node": "x", "host": None, "gpus": [[]], "ranks": [0]}]},
    "odd ranks": {
        "nodes": [{"ranks": [{}, {"rank": -1, "step": "7", "metrics": 3}, {"metrics": {"a": [], "b": None}}]}]
    },
    "huge": {"nodes": [{"ranks": [{"step": 1e308, "total_steps": 10**400, "steps_per_second": 1e-320}]}]},
    "never": {
        "limit_seconds_left": 9,
        "nodes": [{"ranks": [{"step": 1, "total_steps": 1e308, "steps_per_second": 0.5}]}],
    },
    "booleans": {"ranks": True, "nodes": [{"age": True, "ranks": [{"step": True, "step_age": False}]}]},
    "warnings": {"warnings": [{"code": 3}, {"message": 5}, "x", {"message": "GPU 3 was lost"}]},
}


@for_each("facts", ODD.values())
def test_odd_values_are_missing_ones(facts):
    found = progress({"schema": 1, "t": NOW, **facts})
    assert json.loads(json.dumps(found.to_json()))["stale"] is False
    assert [label for label, _ in run_lines.progress_facts(found)][:1] == ["progress"]
    assert run_lines.progress_line(found) is not None


def test_a_nan_in_the_file_makes_no_nan_in_our_json(tmp_path):
    path = tmp_path / "live.json"
    warning = {"code": "stalled", "message": "x", "ranks": [math.nan]}
    path.write_text(json.dumps(live_of(NOW, a_live_node(metrics={"loss": math.nan}), warnings=[warning])))
    found = progress_of(path, "", NOW).to_json()
    assert json.loads(json.dumps(found, allow_nan=False))["metrics"] == {"loss": "nan"}


def test_a_negative_age_or_a_time_in_the_future_is_now():
    found = progress(live_of(NOW + 3600, a_live_node(step_age=-5.0)))
    assert (found.age, found.is_stale, found.lead.step_age) == (0.0, False, None)


def test_a_file_is_stale_by_its_own_interval():
    ages = [50, 79, 81, 200, 299, 301]
    assert [progress(live_of(NOW - age)).is_stale for age in ages] == [False, False, True, True, True, True]
    of_many_nodes = [progress(live_of(NOW - age, interval=60.0)).is_stale for age in ages]
    assert of_many_nodes == [False, False, False, False, False, True]


def test_of_a_stale_file_the_time_left_by_steps_is_unknown_and_the_limit_comes_closer():
    found = progress(live_of(NOW - 1000))
    assert (found.seconds_left, found.limit_seconds_left) == (None, 1880.0)
    assert progress(live_of(NOW - 5000)).limit_seconds_left == 0.0


def test_a_training_without_a_step_for_long_stalls_and_has_no_rate():
    found = progress(live_of(NOW, a_live_node(step_age=420.0)))
    assert found.is_stalled
    assert {found.steps_per_second, found.samples_per_second, found.seconds_left} == {None}
    slow = [progress(live_of(NOW, a_live_node(step_age=age, step_gap=50.0))) for age in (420.0, 501.0)]
    assert [one.is_stalled for one in slow] == [False, True]
    seldom = [progress(live_of(NOW, a_live_node(step_age=age), interval=40.0)) for age in (150.0, 170.0)]
    assert [one.is_stalled for one in seldom] == [False, True]


def test_a_pause_that_is_usual_for_the_run_is_shown_and_is_no_doubt():
    pauses = [progress(live_of(NOW, a_live_node(step_age=age, usual_pause=240.0))) for age in (200.0, 250.0)]
    assert [one.is_stalled for one in pauses] == [True, True]
    assert [one.to_json()["stalled"] for one in pauses] == [False, True]
    assert [len(doubts(one)) for one in pauses] == [0, 1]


def test_the_first_rank_with_a_step_speaks_for_all():
    node = a_live_node()
    node["ranks"][0] = {"rank": 0}
    node["ranks"][1]["step"] = 1190
    assert progress(live_of(NOW, a_live_node(1), node)).step == 1190
    assert progress(live_of(NOW, a_live_node(step=None))).to_json()["step"] is None


def test_the_plans_metric_is_shown_else_the_loss_else_the_first():
    metrics = {"serried/step_seconds": 1, "acc": 0.9, "train/loss_total": 0.5, "val_loss": "nan"}
    document = live_of(NOW, a_live_node(metrics=metrics))
    assert progress(document, metric="acc").shown_metric == ("acc", 0.9)
    name, value = progress(document, metric="f1").shown_metric
    assert (name, math.isnan(value)) == ("val_loss", True)
    assert progress(document).to_json()["metrics"]["val_loss"] == "nan"
    assert progress(live_of(NOW, a_live_node(metrics={"a": 1, "b": 2}))).shown_metric == ("a", 1.0)
    assert progress(live_of(NOW, a_live_node(metrics={}))).shown_metric is None


@for_each(
    ("facts", "name"),
    [
        ({"metric": ReportedMetric("val_acc", r"stdout:val_acc=(\S+)")}, "val_acc"),
        ({"sweep": Sweep("k3f9q2", ("lr",), metric="f1")}, "f1"),
        ({}, ""),
    ],
)
def test_the_metric_of_a_plan_is_the_experiments_or_the_sweeps(facts, name):
    assert Summary.of(a_plan()._replace(**facts)).metric == name


def test_the_limit_that_comes_before_the_last_step():
    lefts = (600.0, 2880.0, None)
    assert [progress(live_of(NOW, limit_seconds_left=left)).is_too_slow for left in lefts] == [True, False, False]


@for_each(
    "left, line, is_a_doubt",
    [
        ({"limit_seconds_left": 2880, "notice_seconds_left": 2580}, "20m left", False),
        ({"limit_seconds_left": 900, "notice_seconds_left": 600}, "stop notice in 10m", True),
        ({"limit_seconds_left": 900, "notice_seconds_left": 600, "continues": True}, "stop notice in 10m", False),
        ({"limit_seconds_left": 1500, "notice_seconds_left": 1200}, "stop notice in 20m", False),
        ({"limit_seconds_left": 90, "notice_seconds_left": 0}, "limit in 1m", True),
        ({"limit_seconds_left": 600}, "limit in 10m", True),
    ],
)
def test_the_time_until_ranks_must_stop_counts_and_is_no_doubt_where_another_attempt_follows(left, line, is_a_doubt):
    found = progress(live_of(NOW, **left))
    assert run_lines.progress_line(found).endswith(line)
    assert [doubt.code for doubt in doubts(found)] == ["limit-too-near"] * is_a_doubt
