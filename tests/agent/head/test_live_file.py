"""live.json, from samples that a test makes up: complete for 512 ranks, bounded for 32,768, harmless on a full disk."""

from __future__ import annotations

import json
import time
import tracemalloc
from types import SimpleNamespace

import pytest

from building import a_plan
from serried.agent.attempts.deadline import Deadline
from serried.agent.head.live_file import LiveFile
from serried.base.files import make_directory
from serried.schema.layout import TaskDirectory
from serried.schema.plan import Limit, Sampling

NOW = 1_795_000_000.0
RANKS = 8


class Cluster:
    """The nodes of an attempt, on a clock that the test moves."""

    def __init__(self, tmp_path, nodes, *, is_script=False, deadline=None, every=5.0):
        own_files = TaskDirectory(tmp_path).attempt(1)
        self.path = own_files.live
        make_directory(self.path.parent)
        self.now = 100.0
        self.nodes = [
            SimpleNamespace(index=at, host=f"n{at}", last_message_at=self.now, is_lost=False) for at in range(nodes)
        ]
        attempt = SimpleNamespace(
            files=own_files,
            number=1,
            nodes=nodes,
            world_size=nodes * RANKS,
            is_script=is_script,
            file_mode=0o600,
            plan=a_plan()._replace(sampling=Sampling(every), limit=Limit(restarts=1)),
        )
        self.file = LiveFile(attempt, self.nodes, lambda: self.now, deadline)

    def report(self, node, **facts):
        self.nodes[node].last_message_at = self.now
        self.file.on_sample(self.nodes[node], {"event": "sample", **facts})

    @property
    def written(self):
        self.file.write()
        return json.loads(self.path.read_text())


def a_rank(rank, **facts):
    own = {"cpu": 1.03, "memory": 4294967296, "output_age": 2.0, "step": 1200, "total_steps": 5000, "step_age": 0.4}
    rates = {"steps_per_second": 3.1, "samples_per_second": 198.4, "data_wait": 0.02, "metrics": {"loss": 0.31}}
    return {"rank": rank, **own, **rates, **facts}


def a_gpu(gpu, **facts):
    own = {"name": "NVIDIA H200", "busy": 97.0, "memory": 120259084288, "memory_total": 150754820096}
    return {"gpu": gpu, **own, "power": 640.0, "power_cap": 700.0, "temperature": 61.0, **facts}


def a_node(node, **facts):
    ranks = [a_rank(node * RANKS + at, **facts) for at in range(RANKS)]
    own = {"cpu": 12.4, "cpus": 16, "memory": 9126805504, "memory_limit": 68719476736, "memory_scope": "job"}
    return {**own, "disk_free": 91268055040, "gpus": [a_gpu(at) for at in range(RANKS)], "ranks": ranks}


@pytest.fixture(autouse=True)
def _clock(monkeypatch):
    monkeypatch.setattr(time, "time", lambda: NOW)


def test_ages_grow_until_the_file_is_written(tmp_path):
    cluster = Cluster(tmp_path, 1, deadline=Deadline(NOW + 3120, NOW + 2820, NOW + 3105, 10))
    cluster.report(0, cpu=3.2, gpus=[a_gpu(0)], ranks=[a_rank(0), {"rank": 1}])
    cluster.now += 1.5

    assert cluster.written == {
        "schema": 1,
        "t": NOW,
        "interval": 5.0,
        "limit_seconds_left": 3120.0,
        "notice_seconds_left": 2820.0,
        "continues": True,
        "nodes": [
            {
                "cpu": 3.2,
                "gpus": [a_gpu(0)],
                "ranks": [a_rank(0, step_age=1.9, output_age=3.5), {"rank": 1}],
                "node": 0,
                "host": "n0",
                "age": 1.5,
            }
        ],
        "ranks": 8,
        "gpus": 1,
        "gpu_busy": 97.0,
        "samples_per_second": 198.4,
        "warnings": [],
    }
    assert cluster.path.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in cluster.path.parent.iterdir()] == ["live.json"]


def test_the_ranks_and_gpus_of_a_lost_node_do_not_count(tmp_path):
    cluster = Cluster(tmp_path, 2)
    cluster.file._ranks = RANKS  # the second node takes the place of the first
    for node in range(2):
        cluster.report(node, **a_node(node))
    cluster.nodes[0].is_lost = True

    assert (cluster.written["ranks"], cluster.written["gpus"]) == (RANKS, RANKS)


def test_nodes_that_only_beat_are_listed_and_count_their_ranks(tmp_path):
    assert Cluster(tmp_path, 2).written == {
        "schema": 1,
        "t": NOW,
        "interval": 5.0,
        "nodes": [
            {"node": 0, "host": "n0", "age": 0.0, "ranks": []},
            {"node": 1, "host": "n1", "age": 0.0, "ranks": []},
        ],
        "ranks": 16,
        "gpus": 0,
        "warnings": [],
    }


def test_the_ranks_of_a_script_are_those_that_its_nodes_report(tmp_path):
    cluster = Cluster(tmp_path, 2, is_script=True)
    cluster.report(0, ranks=[a_rank(0), a_rank(1)])
    assert cluster.written["ranks"] == 2


def test_without_news_the_file_stays_as_it_is(tmp_path):
    cluster = Cluster(tmp_path, 1)
    cluster.report(0, cpu=3.2)
    cluster.file.write()
    before = cluster.path.stat().st_ino
    cluster.now += 5
    cluster.file.write()
    assert cluster.path.stat().st_ino == before
    cluster.nodes[0].last_message_at = cluster.now  # a heartbeat
    cluster.file.write()
    assert cluster.path.stat().st_ino != before


def test_nodes_that_are_silent_keep_their_place_but_count_in_no_mean(tmp_path):
    cluster = Cluster(tmp_path, 2)
    cluster.report(1, gpus=[a_gpu(0, busy=10.0)], ranks=[a_rank(8, samples_per_second=7.0)])
    cluster.now += 60
    cluster.report(0, gpus=[a_gpu(0, busy=90.0)], ranks=[a_rank(0, samples_per_second=5.0)])
    written = cluster.written
    assert [node["age"] for node in written["nodes"]] == [0.0, 60.0]
    assert (written["gpus"], written["gpu_busy"], written["samples_per_second"]) == (2, 90.0, 5.0)


@pytest.mark.parametrize(("every", "interval"), [(None, 5.0), (1.0, 5.0), (40.0, 40.0)])
def test_the_interval_is_never_shorter_than_that_of_samples(tmp_path, every, interval):
    assert Cluster(tmp_path, 1, every=every).written["interval"] == interval


def test_the_last_sample_of_a_sampler_that_hangs_is_not_what_its_node_does_now(tmp_path):
    cluster = Cluster(tmp_path, 1)
    cluster.report(0, **a_node(0))
    cluster.now += 21
    cluster.nodes[0].last_message_at = cluster.now  # a heartbeat of its agent
    assert cluster.written["nodes"] == [{"node": 0, "host": "n0", "age": 0.0, "ranks": []}]
    assert cluster.written["ranks"] == 8


def test_ranks_have_the_pause_that_is_usual_once_it_is_known(tmp_path):
    cluster = Cluster(tmp_path, 1)
    for pause, step in ((5, 0), (5, 100), (45, 200), (5, 300)):
        cluster.now += pause
        cluster.report(0, ranks=[a_rank(0, step=step)])
        (rank,) = cluster.written["nodes"][0]["ranks"]
        assert rank.get("usual_pause") == {0: None, 100: 60.0, 200: 250.0, 300: 90.0}[step]


def test_512_ranks_are_complete(tmp_path):
    cluster = Cluster(tmp_path, 64)
    for node in range(64):
        cluster.report(node, **a_node(node))
    written = cluster.written
    assert (written["interval"], written["ranks"], len(written["nodes"])) == (5.0, 512, 64)
    assert [rank["rank"] for node in written["nodes"] for rank in node["ranks"]] == [*range(512)]


def test_32768_ranks_fit_in_about_a_megabyte_with_the_first_node_and_those_at_the_extremes(tmp_path):
    cluster = Cluster(tmp_path, 4096)
    special = {
        3000: {"step_age": 400.0},
        3001: {"steps_per_second": 0.2},
        3002: {"busy": 1.0},
        3003: {"temperature": 91.0},
        3004: {"memory": 6e10},
    }
    for node in range(4096):
        facts = special.get(node, {})
        of_gpus = {key: value for key, value in facts.items() if key in ("busy", "temperature")}
        of_ranks = {key: value for key, value in facts.items() if key in ("step_age", "steps_per_second")}
        sample = {**a_node(node, **of_ranks), "gpus": [a_gpu(at, **of_gpus) for at in range(RANKS)]}
        cluster.report(node, **{**sample, "memory": facts.get("memory", sample["memory"])})
    cluster.nodes[3005].last_message_at -= 50

    written = cluster.written

    assert cluster.path.stat().st_size < 1.1e6
    assert (written["interval"], written["ranks"], written["gpus"]) == (60.0, 32768, 32768)
    assert (written["gpu_busy"], written["samples_per_second"]) == (97.0, 6501171.2)
    assert {0, *special, 3005} <= {node["node"] for node in written["nodes"]}
    assert 200 < len(written["nodes"]) < 300


def test_hours_of_samples_take_16_kb_for_each_node(tmp_path):
    nodes = 4
    cluster = Cluster(tmp_path, nodes)
    import statistics  # noqa: F401 - the modules that the head imports late are not what is measured

    tracemalloc.start()
    try:
        for step in range(0, 4000, 100):
            cluster.now += 60
            for node in range(nodes):
                cluster.report(node, **a_node(node, step=step))
            cluster.file.write()
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < nodes * 16_000  # 66 MB for 4,096


def test_many_metrics_take_room_too(tmp_path):
    cluster = Cluster(tmp_path, 64)
    for node in range(64):
        cluster.report(node, **a_node(node, metrics={f"layer{at}/gradient": 0.123456 for at in range(100)}))
    cluster.file.write()
    assert cluster.path.stat().st_size < 1.1e6


def test_a_full_disk_or_a_deleted_directory_harms_nothing_and_the_next_file_is_written(tmp_path):
    cluster = Cluster(tmp_path, 1)
    cluster.path.parent.rmdir()
    cluster.file.write()
    make_directory(cluster.path.parent)
    cluster.file.write()
    assert cluster.path.exists()


def test_a_bug_in_watching_is_reported_once_and_ends_no_head(tmp_path, capfd):
    cluster = Cluster(tmp_path, 1)
    cluster.file.more_warnings = lambda _: 1 / 0
    cluster.file.write()
    cluster.file.write()
    assert capfd.readouterr().err == "serried: cannot tell what the nodes do: ZeroDivisionError('division by zero')\n"
    assert not cluster.path.exists()


@pytest.mark.parametrize(
    "sample",
    [
        {"gpus": None, "ranks": "8"},
        {"gpus": [None, {"busy": "full"}], "ranks": [{"step_age": None}, 7, {"metrics": None}]},
        {"gpus": [{"busy": float("nan")}], "ranks": [{"output_age": True}]},
        {"memory": 10**400, "ranks": [{"rank": 0, "step": 10**400, "step_age": 1.0, "metrics": {"loss": 10**400}}]},
    ],
)
def test_odd_samples_end_no_head(tmp_path, sample):
    cluster = Cluster(tmp_path, 2)
    cluster.report(0, **sample)
    assert len(cluster.written["nodes"]) == 2
