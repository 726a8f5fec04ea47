"""A chain: how many links a total time makes, and what the plan says of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from resolving import refusal, resolve
from serried.submission.plan import make_plan
from serried.submission.snapshot import Revision
from serried.views.plan_lines import plan_lines

HERE = """
[clusters.here]
scheduler = "slurm"
root = "/scratch"
gpus_per_node = 4
[clusters.here.partitions.day]
time = "6h"
[experiments.train]
command = "true"
[experiments.train.resources]
gpus = 4
partition = "day"
[experiments.train.limit]
total_time = "40h"
"""


@pytest.fixture(autouse=True)
def _no_gpus(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


def planned(folder: Path, text: str = HERE, cluster: str = "here", **overrides: object):
    return make_plan(resolve(folder, text, cluster=cluster, **overrides), run_id="k3f9q2", created="")


@pytest.mark.parametrize(
    ("overrides", "link_hours", "restarts"),
    [
        ({}, 6, 6),
        ({"resources__time": "4h"}, 4, 9),
        ({"limit__total_time": "36h"}, 6, 5),
        ({"limit__total_time": "36h", "resources__time": "36m"}, 0.6, 59),
        ({"limit__total_time": "2h"}, 2, 0),
        ({"limit__restarts": 2}, 6, 8),
        ({"limit__total_time": "off", "limit__restarts": 2}, 1, 2),
    ],
)
def test_the_links_are_what_the_total_time_takes_in_jobs_as_long_as_the_queue_allows(
    tmp_path, overrides, link_hours, restarts
):
    made = planned(tmp_path, **overrides)
    assert (made.allocation.time_seconds, made.limit.restarts) == (link_hours * 3600, restarts)


def test_the_plan_says_how_many_links_and_what_all_of_them_cost(tmp_path):
    lines = dict(plan_lines(planned(tmp_path, limit__restarts=1), None, Revision()))
    assert lines["restarts"] == "7 jobs of 6h00m for 1d16h in total, and 1 spare: the job requeues itself"
    assert lines["cost"] == "at most 6h00m* (stop notice after 5h59m), 24 GPU-hours in each of up to 8 attempts"


def test_at_home_where_nothing_is_limited_one_job_has_all_the_time(tmp_path):
    made = planned(tmp_path, HERE.replace("gpus = 4", "ranks = 1").replace('partition = "day"', ""), "local")
    assert (made.allocation.time_seconds, made.limit.restarts) == (40 * 3600, 0)


def test_where_nobody_knows_how_long_a_job_may_be_it_has_to_be_said(tmp_path):
    unknown = HERE.replace('partition = "day"', "")
    (tmp_path / "serried.toml").write_text(unknown)
    with pytest.raises(Exception, match="needs the longest time limit on `here`"):
        planned(tmp_path, unknown)
    assert planned(tmp_path, unknown, resources__time="8h").limit.restarts == 4


def test_a_time_that_the_queue_does_not_allow_is_refused_all_the_same(tmp_path):
    with pytest.raises(Exception, match="7:00:00 were requested, and partition `day` allows"):
        planned(tmp_path, resources__time="7h")


def test_no_time_is_no_time(tmp_path):
    message, _ = refusal(tmp_path, HERE.replace("40h", "0h"))
    assert "`experiments.train.limit.total_time` must be a duration" in message
