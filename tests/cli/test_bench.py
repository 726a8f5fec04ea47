"""`serried bench`: its tables, and requests that cannot be."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from serried.bench import store
from serried.bench.results import RunFigures, results
from serried.bench.store import Bench, GridPoint, PointRun, grid
from serried.cli import bench

ONE = GridPoint(1, 1, "agent", "single", batch=64)


def a_bench(points):
    entries = tuple(PointRun(point, "k3f9q2", is_submitted=True) for point in points)
    return Bench("b-k3f9", "train", "2026-11-26T12:00:00Z", {}, entries)


@pytest.fixture
def measured():
    """Two repeats on one and two nodes, with a failure."""
    points = grid(nodes=[1, 2], ranks=[1, 4], launches=["torchrun"], batch=64, repeats=2, communication=True)
    runs = []
    for point in points:
        rate = 900.0 * point.world * (0.95 if point.world > 1 else 1) * (1 + point.repeat / 100)
        rate *= 1.25 if point.without_sync else 1
        own = {"step_median": 64 * point.world / rate, "step_p95": 0.1, "startup_seconds": 75.0, "data_wait": 0.02}
        run = RunFigures(
            "k3f9q2", "COMPLETED", "", 90, rate, 64.0, device="NVIDIA V100", gpus=point.world, spread=0.03,
            without_sync=point.without_sync, **own,
        )  # fmt: skip
        if (point.shape, point.repeat) == ("2x4", 1):
            run = RunFigures("abcdef", "FAILED", "rank 3 on n2 exited with status 1: out of memory")
        runs.append((point, run))
    return points, runs


def test_the_tables_have_speed_cost_and_what_went_wrong(measured, capsys):
    points, runs = measured
    bench.out_bench(a_bench(points), results(runs))
    shown = capsys.readouterr().out
    assert (
        shown
        == """\
b-k3f9 train: 2 repeats on NVIDIA V100, the first 10% left out

SIZE  HOW       SAMPLES/S    PER GPU  SPEED-UP  EFF/RANK  EFF/NODE
1x1   single    904 ±0.7%    904      1.00      100%      100%
2x1   torchrun  1,719 ±0.7%  859      1.90      95%       95%
1x4   torchrun  3,437 ±0.7%  859      3.80      95%       100%
2x4   torchrun  6,840        855      7.56      95%       100%

SIZE  HOW       STEP     P95     DIFF  DATA  COMM  START  GPU-H/1M
1x1   single    70.8 ms  100 ms  3%    2%    -     1m15s  0.307
2x1   torchrun  74.5 ms  100 ms  3%    2%    20%   1m15s  0.323
1x4   torchrun  74.5 ms  100 ms  3%    2%    20%   1m15s  0.323
2x4   torchrun  74.9 ms  100 ms  3%    2%    20%   1m15s  0.325

- 2x4 torchrun: abcdef: rank 3 on n2 exited with status 1: out of memory
- 2x4 torchrun: abcdef: no-sync: rank 3 on n2 exited with status 1: out of
  memory
- cheapest: 1x1 single, 0.307 GPU-hours for a million samples
- fastest: 2x4 torchrun, 6,840 samples/s for 1.06 times the cost
- largest with an efficiency of 70% or more: 2x4 torchrun
"""
    )
    assert max(map(len, shown.splitlines())) <= 80


def test_communication_below_zero_is_shown_with_a_note(capsys):
    points = grid(nodes=[2, 4], ranks=[1], launches=["agent"], communication=True)
    rates = [103.0, 100.0, 100.2, 100.0]
    runs = [
        RunFigures("k3f9q2", "COMPLETED", "", 90, rate, cpus=2, without_sync=point.without_sync)
        for point, rate in zip(points, rates, strict=True)
    ]
    bench.out_bench(a_bench(points), results(zip(points, runs, strict=True)))
    shown = capsys.readouterr().out
    cells = [line.split()[6] for line in shown.splitlines()[6:9]]
    assert cells == ["COMM", "-3%", "0%"]
    assert "- COMM below 0% is noise: runs without exchange were slower" in shown


def test_the_widest_table_fits_80_columns(capsys):
    point = GridPoint(16, 8, "horovodrun", "ddp", "strong", 64)
    run = RunFigures(
        "k3f9q2", "COMPLETED", "", 90, 1_234_567.0, 64.0, 0.999, 0.999, 0.1, 0.1, 3600.0, "NVIDIA V100", 128
    )
    again = GridPoint(16, 8, "horovodrun", "ddp", "strong", 64, 1)
    bench.out_bench(a_bench([point, again]), results([(point, run), (again, run)]))
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


HEAD = (
    "| nodes x ranks | how | samples/s | per GPU | speed-up | efficiency, 1 rank | efficiency, 1 node | step "
    "| 95% of steps | difference of ranks | waiting for data | communication | start | GPU-hours per 1M samples |"
)


def test_a_table_for_a_readme(measured):
    points, runs = measured
    assert bench.markdown(a_bench(points), results(runs[:2])).splitlines() == [
        "`train`: 2 repeats on NVIDIA V100, the first 10% left out (serried bench, 2026-11-26).",
        "",
        HEAD,
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|",
        "| 1x1 | single | 900 | 900 | 1.00 | 100% | 100% | 71.1 ms | 100 ms | 3% | 2% | - | 1m15s | 0.309 |",
        "| 2x1 | torchrun | 1,710 | 855 | 1.90 | 95% | 95% | 74.9 ms | 100 ms | 3% | 2% | - | 1m15s | 0.325 |",
        "",
        "- one repeat each: the spread is unknown, and small differences mean nothing (`--repeat 3`)",
    ]


def test_a_line_of_csv_for_each_run(measured):
    points, runs = measured
    lines = bench.bench_csv(a_bench(points[:1]), [runs[0][1]]).splitlines()
    run = "k3f9q2,COMPLETED,NVIDIA V100,90,64.0,900.0,0.07111111111111111,0.1,0.03,0.02,75.0,"
    assert lines[1] == f"1,1,1,torchrun,single,weak,0,0,{run}"


@pytest.fixture
def project(tmp_path, monkeypatch):
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").write_text("print('hello')\n")
    monkeypatch.chdir(folder)
    return folder


COMMAND = ("--cluster", "local", "--", "python", "train.py")


@pytest.mark.usefixtures("_real_processes")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--ranks", "1,x"), "`--ranks 1,x` is not a list of numbers"),
        (("--nodes", "0"), "`--nodes 0` is not a list of numbers"),
        (("--method", "ddp,fsdp"), "`--method` does not know `fsdp`"),
        (("--scaling", "strong"), "`--scaling strong` needs `--batch`"),
        (("--warm-up", "all"), "`--warm-up all` is neither a share nor a number of steps"),
        (("--metric-from", "stdout:("), "`--metric-from` is not a regular expression: "),
        (("--pass", "batch"), "`--pass batch` is not `NAME=TEXT`"),
        (("--pass", "size={batch}"), "`--pass` cannot fill in `{batch}`"),
        (("--ranks", "2", "--launch", "torchrum"), "`torchrum`"),
    ],
)
def test_a_request_that_cannot_be(project, serried, options, message):
    assert project.is_dir()
    done = serried("bench", "scaling", *options, *COMMAND)
    assert done.code == 2
    assert message in done.err.splitlines()[0]
    assert store.benches() == []


@pytest.mark.usefixtures("_real_processes")
def test_a_dry_run_prints_sizes_and_cost_and_writes_nothing(project, serried):
    assert project.is_dir()
    sizes = ("--ranks", "1,2", "--batch", "64", "--scaling", "weak,strong", "--repeat", "2", "--time", "30m")
    done = serried("bench", "scaling", *sizes, "--cpus", "1", "--dry-run", *COMMAND)
    assert (done.code, done.out) == (0, "")
    assert done.err.splitlines()[:6] == [
        "SIZE  HOW           BATCH  EACH NODE  LIMIT   RUNS",
        "1x1   single        64     1 CPU      30m00s  2",
        "1x2   agent         64     2 CPUs     30m00s  2",
        "1x2   agent strong  32     2 CPUs     30m00s  2",
        "",
        "6 runs, at most 5.00 CPU-hours",
    ]
    as_json = json.loads(serried("bench", "scaling", *sizes, "--cpus", "1", "--dry-run", "--json", *COMMAND).out)
    assert (len(as_json["points"]), as_json["hours"]) == (6, {"CPU": 5.0})
    assert store.benches() == []


@pytest.mark.usefixtures("_real_processes")
def test_an_experiment_that_names_its_speed_as_its_metric_needs_no_option(project, serried):
    metric = """metric = { name = "samples_per_second", from = "stdout:(.+) images/s" }"""
    (project / "serried.toml").write_text(
        f"[experiments.train]\ncommand = 'python train.py'\n{metric}\narray = '0-9'\n"
    )
    done = json.loads(serried("bench", "scaling", "train", "--cluster", "local", "--dry-run", "--json").out)
    assert (done["metric_from"], len(done["points"])) == ("stdout:(.+) images/s", 1)
    words = "bench scaling train --cluster local --metric-from file:x.json --dry-run --json"
    assert json.loads(serried(*words.split()).out)["metric_from"] == "file:x.json"


@pytest.mark.usefixtures("_real_processes")
def test_points_that_are_refused_are_named_within_80_columns(project, serried):
    assert project.is_dir()
    done = serried("bench", "scaling", "--nodes", "1,9", "--cpus", "1", "--time", "6m", "--dry-run", *COMMAND)
    assert done.code == 0
    assert done.err.splitlines()[:6] == [
        "SIZE  HOW     BATCH  EACH NODE  LIMIT    RUNS",
        "1x1   single  -      1 CPU      6m00s    1",
        "9x1   agent   -      -          refused  1",
        "- 9x1 agent: this machine is one node, and 9 were requested",
        "",
        "1 run, at most 0.100 CPU-hours",
    ]


def test_benches_are_listed_and_a_missing_one_is_named(serried):
    assert serried("bench").err == "note: no benches yet: serried bench --help\n"
    bench = a_bench([ONE, ONE])
    bench.with_entry(1, PointRun(ONE)).write()
    expected = ["BENCH   NAME   SUBMITTED  CREATED", "b-k3f9  train  1/2        2026-11-26 12:00"]
    assert serried("bench").out.splitlines() == expected
    assert json.loads(serried("bench", "--json").out)["benches"][0]["points"][1]["run"] is None
    missing = serried("bench", "show", "b-none")
    assert (missing.code, missing.err.splitlines()[0]) == (2, "error: no bench is called `b-none`")
    both = serried("bench", "show", "--json", "--csv")
    assert both.err.splitlines()[0] == "error: `--json`, `--csv` and `--markdown` exclude each other"
    shown = json.loads(serried("bench", "show", "--json").out)
    assert [point["state"] for point in shown["points"]] == ["DELETED", "MISSING"]


def test_without_matplotlib_the_table_is_printed_and_the_error_follows(serried, monkeypatch, tmp_path):
    a_bench([ONE]).write()
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    done = serried("bench", "show", "--plot", str(tmp_path / "scaling.png"))
    assert (done.code, done.out.splitlines()[3], done.err.splitlines()[0]) == (
        2,
        "1x1   single  DELETED    -         -         -         -",
        "error: `--plot` needs matplotlib, which is not installed",
    )
    assert list(tmp_path.glob("*.png")) == []


@pytest.mark.usefixtures("_real_processes")
def test_the_comparison_of_hpc_helper_is_the_command_of_its_page(serried, monkeypatch):
    monkeypatch.chdir(Path(__file__).parents[2] / "examples" / "from-hpc-helper")
    page = Path("README.md").read_text(encoding="utf-8")
    [words] = re.findall(r"    serried (bench scaling resnet --nodes .*)", page)
    done = serried(*words.split(), "--cluster", "local", "--set", "resources.gpus=0", "--dry-run")
    ways = "1x1 single|2x1 torchrun|2x1 mpirun|1x4 dp|1x4 torchrun|1x4 mpirun|2x4 torchrun|2x4 mpirun"
    expected = [f"{way} 768" for way in ways.split("|")]
    assert [" ".join(line.split()[:3]) for line in done.err.splitlines()[1:9]] == expected
