"""Reading samples of all nodes and attempts, whatever became of the files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from building import RunOnDisk
from serried.base.files import make_directory
from serried.records import samples
from serried.records.rules import judge
from serried.records.samples import STEPS, MeasuredRows, Measurements, Range, measured_of
from serried.records.usage import Usage
from serried.schema import series
from serried.schema.layout import TaskDirectory
from tables import for_each

ABOUT = {
    "t": 100.0,
    "host": "n01",
    "interval": 5.0,
    "node": {"cpus": 16, "memory": 1 << 36, "memory_scope": "job"},
    "gpu_source": "nvml",
    "gpus": {"0": {"name": "NVIDIA H200", "memory": 1 << 37}},
}


@pytest.fixture
def place(tmp_path):
    return TaskDirectory(tmp_path)


def period(t, **more):
    return {"t": t, "seconds": 30.0, "count": 6, "node": {"cpu": [1, 2, 3]}, "gpus": {}, "ranks": {}, **more}


def write(place, lines, node=0, attempt=1, end="\n"):
    path = place.attempt(attempt).samples(node)
    path.parent.mkdir(parents=True, exist_ok=True)
    texts = (line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines)
    path.write_bytes(b"\n".join(texts) + end.encode())
    return path


def times(node):
    return [each.t for each in node.periods]


def test_nodes_come_in_the_order_of_attempts_and_nodes(place):
    for attempt, node in ((2, 0), (1, 10), (1, 2)):
        write(place, [{**ABOUT, "host": f"n{node}"}, period(130.0)], node, attempt)
    found = samples.read(place)
    assert [(node.attempt, node.node, node.host) for node in found.nodes] == [
        (1, 2, "n2"),
        (1, 10, "n10"),
        (2, 0, "n0"),
    ]
    assert [node.attempt for node in samples.read(place, attempt=2).nodes] == [2]


def test_of_thousands_of_nodes_some_are_read_evenly_spread_and_the_same_in_each_attempt(place):
    for attempt in (1, 2):
        for node in range(300):
            write(place, [{**ABOUT, "host": f"n{node}"}, period(130.0)], node, attempt)
    found = samples.read(place)
    read = [[node.node for node in found.nodes if node.attempt == attempt] for attempt in (1, 2)]
    assert read[0] == read[1] == [at * 300 // 128 for at in range(128)]
    assert found.unread == 172
    summary = measured_of(found)
    assert (len(summary.nodes), summary.unread) == (128, 172)
    assert Measurements.from_json(json.loads(json.dumps(summary.to_json()))).unread == 172


def test_nodes_of_a_lab_that_share_a_machine_have_names_of_their_own(place):
    for node in (0, 1):
        write(place, [{**ABOUT, "host": "vm"}, period(130.0)], node)
    assert [node.host for node in samples.read(place).nodes] == ["vm (node 0)", "vm (node 1)"]


def test_a_line_has_the_range_of_each_quantity(place):
    write(place, [ABOUT, period(130.0, gpus={"0": {"busy": [90, 95.5, 100], "ecc_errors": 2}})])
    (node,) = samples.read(place).nodes
    (only,) = node.periods
    assert samples.range_in(only.node, "cpu") == Range(1, 2, 3)
    assert samples.range_in(only.gpus["0"], "busy") == Range(90, 95.5, 100)
    assert samples.number_in(only.gpus["0"], "ecc_errors") == 2
    assert (node.interval, node.gpu_source, node.about["cpus"]) == (5.0, "nvml", 16)
    assert node.gpus["0"]["name"] == "NVIDIA H200"


@for_each("value", [None, "97", [1, 2], [1, "2", 3], [1, 2, float("nan")], {"mean": 3}, [True, 1, 1], [1, 2, 10**400]])
def test_a_damaged_quantity_is_missing(value):
    assert samples.range_in({"busy": value}, "busy") is None
    assert samples.number_in({"busy": value}, "busy") is None


def test_torn_and_binary_lines_are_counted_and_skipped_but_one_that_is_being_written(place):
    damaged = [b"\x00\xff\x17", b'{"t": 1', b"[1, 2]", b'"text"', b"[" * 100_000, json.dumps(period("soon")).encode()]
    write(place, [ABOUT, period(130.0), *damaged, period(160.0), b'{"t": 190.0, "sec'], end="")
    (node,) = samples.read(place).nodes
    assert (times(node), node.damaged) == ([130.0, 160.0], len(damaged))


def test_lines_in_another_order_and_clocks_that_were_set_back_are_sorted_and_counted(place):
    write(place, [ABOUT, *(period(t) for t in (160.0, 130.0, 190.0, 40.0))])
    found = samples.read(place)
    assert (times(found.nodes[0]), found.nodes[0].disordered) == ([40.0, 130.0, 160.0, 190.0], 2)


def test_an_impossible_time_is_damage(place):
    write(place, [ABOUT, period(130.0), *map(period, (-5.0, 0, float("inf"), 1.7e12))])
    assert samples.read(place).nodes[0].damaged == 4


def test_nodes_without_samples_are_named(place):
    write(place, [ABOUT, period(130.0)])
    write(place, [ABOUT], node=1)
    place.attempt(1).node(2).mkdir()
    found = samples.read(place)
    assert [node.node for node in found.nodes] == [0]
    assert found.without == ((1, 1), (1, 2))


def test_a_missing_run_directory_has_no_samples(tmp_path):
    assert samples.read(TaskDirectory(tmp_path / "purged")) == samples.Samples()


def test_a_restarted_sampler_describes_its_node_again(place):
    write(place, [ABOUT, period(130.0), {**ABOUT, "gpus": {"1": {"name": "other"}}}, period(160.0)])
    (node,) = samples.read(place).nodes
    assert sorted(node.gpus) == ["0", "1"]
    assert len(node.periods) == 2


def test_long_files_are_read_in_part_from_beginning_to_end_and_short_ones_whole(place):
    write(place, [ABOUT, *(period(100.0 + 30 * at) for at in range(500))], attempt=7)
    (short,) = samples.read(place, attempt=7).nodes
    assert (len(short.periods), short.one_in) == (500, 1)
    for node in range(2):
        write(place, [{**ABOUT, "host": f"n{node}"}, *(period(100.0 + 30 * at) for at in range(5000))], node)
    found = samples.read(place, attempt=1, most_lines=200)
    assert 40 <= measured_of(found).one_in <= 60
    for node in found.nodes:
        assert 80 <= len(node.periods) <= 120
        assert node.periods[0].t < 100.0 + 30 * 100
        assert node.periods[-1].t == 100.0 + 30 * 4999
        assert len(set(times(node))) == len(node.periods)
        assert (node.host, node.damaged, node.disordered) == (f"n{node.node}", 0, 0)


def test_a_huge_file_without_lines_is_read_in_part(place):
    path = write(place, [])
    with path.open("wb") as file:
        file.truncate(1 << 33)
    found = samples.read(place, most_lines=16)
    assert (found.nodes, found.without) == ((), ((1, 0),))


def test_the_newest_periods_of_a_growing_file(place):
    path = write(place, [ABOUT, *(period(100.0 + 30 * at) for at in range(3000)), b'{"t": 160.0, "sec'], end="")
    assert [each.t for each in samples.newest(path, 2)] == [100.0 + 30 * 2998, 100.0 + 30 * 2999]
    assert len(samples.newest(path, 5000)) == 3000
    assert samples.newest(path.with_name("missing"), 2) == []


def test_lines_that_are_left_out_do_not_fall_into_step_with_a_training(place):
    """Every 20th line is the idle one of an evaluation."""
    lines = [period(100.0 + 30 * at) for at in range(4000)]
    for at, line in enumerate(lines):
        line["gpus"] = {"0": {"busy": [0.0, 0.0 if at % 20 == 0 else 100.0, 100.0]}}
    write(place, [ABOUT, *lines])
    (node,) = samples.read(place, most_lines=200).nodes
    idle = sum(each.gpus["0"]["busy"][1] == 0 for each in node.periods)
    assert 0.02 <= idle / len(node.periods) <= 0.08


RECORDED = Path(__file__).parent / "recorded" / "two-ranks-on-two-cpus.jsonl"


def test_a_real_run_that_uses_its_cpus_is_measured_and_gets_no_notes(tmp_path):
    path = TaskDirectory(tmp_path).attempt(1).samples(0)
    path.parent.mkdir(parents=True)
    shutil.copy(RECORDED, path)
    measured = measured_of(samples.read(TaskDirectory(tmp_path)))
    (node,) = measured.nodes
    assert (node.host, node.cpus, node.memory_scope) == ("vm", 2, "node")
    assert node.cpu is not None
    assert node.cpu.mean == pytest.approx(1.99, abs=0.02)
    assert node.seconds == pytest.approx(540, abs=60)
    assert [rank.rank for rank in measured.ranks] == [0, 1]
    assert (measured.gpus, measured.damaged, measured.one_in) == ((), 0, 1)
    assert Measurements.from_json(measured.to_json()) == measured
    usage = Usage("g66h8h", state="COMPLETED", seconds=558, limit_seconds=10800, ranks=2, cpus=2, measured=measured)
    assert judge(usage) == []


def test_folders_are_not_listed_again_for_each_row(tmp_path, state_home, monkeypatch):  # noqa: ARG001
    run = RunOnDisk(tmp_path, nodes=1, ranks=1)
    path = run.attempt().metrics(0, 0)
    make_directory(path.parent)
    path.write_text("".join(f"{json.dumps({'t': 1.0, 'step': step})}\n" for step in range(50)))
    listings = []
    known = series.ranks

    def listed(place: TaskDirectory) -> list[int]:
        listings.append(place)
        return known(place)

    monkeypatch.setattr(series, "ranks", listed)
    measured = MeasuredRows(run.where.task(None), STEPS)
    listings.clear()
    assert [row["step"] for row in measured.rows()] == [*range(50)]
    assert len(listings) == 1
