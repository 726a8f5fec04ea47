"""`serried metrics`: what a run logged and what was measured of it, whole output compared."""

from __future__ import annotations

import csv
import json

import pytest

from building import CREATED
from serried.base.files import make_directory
from serried.schedulers.interface import Job

T = CREATED + 60
GIB = 1 << 30
ABOUT = {
    "t": T,
    "host": "n1",
    "interval": 5.0,
    "node": {"cpus": 16, "memory": 64 * GIB, "memory_scope": "job"},
    "gpu_source": "nvml",
    "gpus": {"0": {"name": "NVIDIA H200"}, "1": {"name": "NVIDIA H200"}},
}


def a_gpu(busy, **others):
    values = {"busy": [busy - 5, busy, busy + 2], "memory": [GIB, 2 * GIB, 3 * GIB], "power": [600.0, 640.5, 690.0]}
    return {**values, "temperature": [60, 61, 62], "clock": [1900, 1950, 1980], **others}


def a_period(number, gpus, ranks=()):
    node = {"cpu": [1.0, 1.5, 2.0], "disk_free": 9 * GIB}
    about = {"t": T + 30 * number, "seconds": 30.0, "count": 6}
    return {**about, "node": node, "gpus": gpus, "ranks": dict(ranks)}


PERIODS = (
    a_period(1, {"0": a_gpu(90), "1": a_gpu(80, throttled=["power-cap", "thermal"], ecc_errors=0)}),
    a_period(2, {"0": a_gpu(95, xid=[79])}),  # GPU 1 is lost
)
STEP = {"step": 1200, "total_steps": 5000, "steps_per_second": [3.0, 3.1, 3.2], "metrics": {"loss": 0.31}}


def write(run, *entries, node=0, number=1, task=None, raw=""):
    path = run.attempt(number, task=task).samples(node)
    make_directory(path.parent)
    with path.open("a") as file:
        file.write("".join(f"{json.dumps(entry)}\n" for entry in entries) + raw)


def log_steps(run, *entries, rank=0, number=1):
    path = run.attempt(number).metrics(0, rank)
    make_directory(path.parent)
    with path.open("a") as file:
        file.write("".join(f"{json.dumps(entry)}\n" for entry in entries))


@pytest.fixture
def run(make):
    made = make(nodes=2, ranks=2, gpus=2, name="digits")
    log_steps(made, {"t": T + 1.25, "step": 1, "loss": 2.5}, {"t": T + 2, "step": 2, "loss": "nan", "val/acc": 0.5})
    write(made, ABOUT, *PERIODS, raw='{"t": 17')
    return made.ending()


@pytest.mark.usefixtures("run")
def test_logged_steps_are_the_default(serried):
    assert serried("metrics").out == (
        "time,attempt,rank,step,loss,val/acc\n"
        "2026-11-18T11:07:41.250Z,1,0,1,2.5,\n"
        "2026-11-18T11:07:42.000Z,1,0,2,nan,0.5\n"
    )


@pytest.mark.usefixtures("run")
def test_gpus_have_means_minima_and_maxima(serried):
    first, second, third = csv.DictReader(serried("metrics", "last", "--what", "gpus").out.splitlines())
    expected = {"time": "2026-11-18T11:08:10.000Z", "seconds": "30", "attempt": "1", "node": "0", "host": "n1"}
    expected |= {"gpu": "1", "throttled": "power-cap thermal", "ecc_errors": "0"}
    for name, least, mean, most in (
        ("busy", "75", "80", "82"),
        ("memory", str(GIB), str(2 * GIB), str(3 * GIB)),
        ("power", "600", "640.5", "690"),
        ("temperature", "60", "61", "62"),
        ("clock", "1900", "1950", "1980"),
    ):
        expected |= {name: mean, f"{name}_min": least, f"{name}_max": most}
    assert {name: value for name, value in second.items() if value} == expected
    assert (first["gpu"], third["gpu"], third["xid"]) == ("0", "0", "79")


def test_nodes_and_ranks_have_rows_of_their_own(serried, make):
    run = make()
    write(run, ABOUT, a_period(1, {}, ranks={"0": STEP, "1": {"step": 7}}))
    (node,) = csv.DictReader(serried("metrics", "--what", "nodes").out.splitlines())
    assert (node["cpu"], node["cpu_max"], node["disk_free"], node["net_in"]) == ("1.5", "2", str(9 * GIB), "")
    (rank,) = csv.DictReader(serried("metrics", "--what", "ranks", "--rank", "0").out.splitlines())
    assert (rank["rank"], rank["step"], rank["steps_per_second"], rank["metrics.loss"]) == ("0", "1200", "3.1", "0.31")


@pytest.mark.usefixtures("run")
def test_json_is_one_value_with_the_rows(serried):
    value = json.loads(serried("metrics", "--json").out)
    assert value == {
        "schema": 1,
        "run": "k3f9q2",
        "what": "steps",
        "rows": [
            {"time": "2026-11-18T11:07:41.250Z", "attempt": 1, "rank": 0, "step": 1, "loss": 2.5},
            {"time": "2026-11-18T11:07:42.000Z", "attempt": 1, "rank": 0, "step": 2, "loss": "nan", "val/acc": 0.5},
        ],
    }
    assert json.loads(serried("metrics", "--json", "--node", "7", "--what", "gpus").out)["rows"] == []


def test_steps_that_a_later_attempt_repeats_replace_the_earlier_ones(serried, make):
    run = make()
    log_steps(run, *({"t": T + step, "step": step, "loss": 1.0} for step in (1, 2, 3)))
    log_steps(run, {"t": T + 50, "resumed": 1}, {"t": T + 60, "step": 2, "loss": 0.5}, number=2)
    rows = list(csv.DictReader(serried("metrics").out.splitlines()))
    assert [(row["attempt"], row["step"], row["loss"]) for row in rows] == [("1", "1", "1"), ("2", "2", "0.5")]


def test_steps_come_from_the_first_rank_that_logged_any(serried, make):
    run = make(ranks=4)
    log_steps(run, {"t": T, "step": 1, "loss": 2.0, "rank": 9}, rank=2)
    assert serried("metrics").out == "time,attempt,rank,step,loss,metrics.rank\n2026-11-18T11:07:40.000Z,1,2,1,2,9\n"


def test_a_run_without_steps_says_what_there_is_instead(serried, make):
    run = make()
    done = serried("metrics")
    assert (done.code, done.out, serried("metrics", "--format", "jsonl").out) == (0, "time,attempt,rank,step\n", "")
    assert done.err == "note: rank 0 of run `k3f9q2` has logged no steps\n"
    write(run, ABOUT, a_period(1, {}, ranks={"0": STEP}))
    expected = ["note: its nodes have measured: serried metrics k3f9q2 --what ranks"]
    assert serried("metrics").err.splitlines()[1:] == expected
    assert serried("metrics", "--what", "gpus").err == "note: the nodes of run `k3f9q2` have measured no gpus\n"


def test_damaged_lines_are_skipped(serried, make):
    run = make()
    write(run, ABOUT, PERIODS[0], raw='\x00\x01\n[1, 2]\n{"t": "x", "seconds": 1}\n{"t": 1e300, "seconds": 30}\nnull\n')
    odd = {"0": {"busy": [1, 2], "memory": ["a", "b", "c"], "power": None, "throttled": {}, "xid": True}}
    write(run, {"t": T + 90, "seconds": 30, "gpus": {**odd, "x y": {"busy": [1, 2, 3]}}, "node": 3, "ranks": []})
    rows = list(csv.DictReader(serried("metrics", "--what", "gpus").out.splitlines()))
    assert [(row["gpu"], row["busy"]) for row in rows] == [("0", "90"), ("1", "80"), ("0", ""), ("x y", "2")]


def test_followed_rows_come_once_until_the_run_ends(serried, make, slurm, clock):
    run = make()
    slurm.tell(Job("123", None, "RUNNING"))
    write(run, ABOUT, PERIODS[0])
    clock.then = [
        lambda: write(run, PERIODS[1]),
        lambda: write(run, {**ABOUT, "host": "n2"}, a_period(3, {"0": a_gpu(50)}), node=1),
        lambda: write(run, ABOUT, a_period(9, {"0": a_gpu(40)}), number=2),
        lambda: run.ending(number=2),
    ]
    lines = serried("metrics", "--what", "gpus", "--json", "--follow").out.splitlines()
    rows = [json.loads(line) for line in lines]
    expected = [(1, "n1", 0, 90.0), (1, "n1", 1, 80.0), (1, "n1", 0, 95.0), (1, "n2", 0, 50.0), (2, "n1", 0, 40.0)]
    assert [(row["attempt"], row["host"], row["gpu"], row["busy"]) for row in rows] == expected


def test_followed_steps_come_as_they_are_logged(serried, make, slurm, clock):
    run = make()
    slurm.tell(Job("123", None, "RUNNING"))
    clock.then = [
        lambda: log_steps(run, {"t": T, "step": 1, "loss": 2.0}),
        lambda: log_steps(run, *({"t": T, "step": step, "loss": 1.0, "later": 3} for step in (2, 3))),
        run.ending,
    ]
    done = serried("metrics", "-f")
    assert done.out == (
        "time,attempt,rank,step,loss\n"
        "2026-11-18T11:07:40.000Z,1,0,1,2\n"
        "2026-11-18T11:07:40.000Z,1,0,2,1\n"
        "2026-11-18T11:07:40.000Z,1,0,3,1\n"
    )
    assert done.err == "note: without a column, which the first rows decide: later; `--json -f` has all\n"


def test_a_time_that_no_calendar_has_is_empty(serried, make):
    run = make()
    log_steps(run, {"t": 10**400, "step": 1}, {"t": 1e20, "step": 2}, {"t": "x", "step": 3}, {"step": 4})
    assert serried("metrics").out == "time,attempt,rank,step\n,1,0,1\n,1,0,2\n,1,0,3\n,1,0,4\n"


def test_an_array_has_metrics_by_task(serried, make):
    run = make(indices=(3, 4))
    write(run, ABOUT, PERIODS[0], task=4)
    done = serried("metrics", "last", "--what", "gpus")
    assert (done.code, done.out) == (2, "")
    assert "hint: name one: serried metrics k3f9q2/3\n" in done.err
    assert len(serried("metrics", "last/4", "--what", "gpus").out.splitlines()) == 3


@pytest.mark.usefixtures("run")
def test_options_that_contradict_each_other_are_refused(serried):
    done = serried("metrics", "last", "--json", "--format", "csv")
    assert (done.code, done.out) == (2, "")
    assert done.err.splitlines()[0] == "error: `--json` and `--format csv` contradict each other"
