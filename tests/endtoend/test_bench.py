"""Benches as a user runs them: on this machine, and on a real Slurm with several nodes and launchers."""

from __future__ import annotations

import csv
import io
import json
import shutil
import sys
from typing import Any

import pytest

from serried.bench.results import NO_STEP

PRINTS = """\
import os, sys
ranks = int(os.environ.get("WORLD_SIZE", "1"))
batch = int(sys.argv[1].partition("=")[2])
if os.environ.get("RANK", "0") == "0":
    for step in range(20):
        print(f"step {step}: {batch * ranks * (2 if step else 1)} images/s", flush=True)
if sys.argv[-1] == "crash" and ranks > 1:
    sys.exit("RuntimeError: CUDA out of memory")
"""

TRAINS = """\
import torch
from torch import nn
import serried.train as st

with st.session() as run:
    model = run.wrap(nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for x in run.loader(torch.rand(30 * 4 * run.world_size, 8), batch_size=4):
        loss = model(x).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(loss=loss)
"""


def bench(place: Any, *arguments: str) -> dict[str, Any]:
    """Run it to its end; return its document."""
    done = place.serried("bench", "scaling", "--cluster", place.cluster, "--wait", "--json", "--yes", *arguments)
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def test_a_program_that_prints_its_speed_is_measured_and_a_point_that_fails_is_a_row(local):
    (local.project / "train.py").write_text(PRINTS)
    options = ("--ranks", "1,2", "--batch", "4", "--metric-from", r"stdout:(\d+) images/s", "--warm-up", "1")
    program = ("--", sys.executable, "train.py", "--batch={config.batch_size}")
    found = bench(local, *options, *program)
    rows = [(row["nodes"], row["ranks"], row["samples_per_second"], row["speed_up"]) for row in found["rows"]]
    assert rows == [(1, 1, 8.0, 1.0), (1, 2, 16.0, 2.0)]

    for point in found["points"]:
        shutil.rmtree(local.directory(point["run"]))
    shown = json.loads(local.serried("bench", "show", "--json").stdout)
    assert [row["samples_per_second"] for row in shown["rows"]] == [8.0, 16.0]

    crashes = bench(local, *options, *program, "crash")
    one, two = crashes["rows"]
    assert (one["samples_per_second"], two["samples_per_second"]) == (8.0, None)
    (point,) = [point for point in crashes["points"] if point["ranks"] == 2]
    assert point["state"] == "FAILED"
    assert two["problems"] == [f"{point['run']}: {point['reason']}"]
    assert point["reason"].endswith("out of memory")

    shown = local.serried("bench", "show", "--csv").stdout
    lines = [*csv.DictReader(io.StringIO(shown))]
    assert [(line["world"], line["state"], line["samples_per_second"]) for line in lines] == [
        ("1", "COMPLETED", "8.0"),
        ("2", "FAILED", ""),
    ]
    again = local.serried("bench", "continue", "--failed", "--dry-run").stderr
    assert "1x2   agent" in again
    assert "1x1" not in again


def test_a_program_that_never_reports_is_a_row_that_says_so(local):
    found = bench(local, "--", "true")
    assert [row["samples_per_second"] for row in found["rows"]] == [None]
    (point,) = found["points"]
    assert found["rows"][0]["problems"] == [f"{point['run']}: {NO_STEP}"]


@pytest.mark.slurm
@pytest.mark.torch
def test_launchers_and_communication_are_compared_on_a_cluster(slurm, torch_python):
    (slurm.project / "train.py").write_text(TRAINS)
    sizes = ("--nodes", "1,2", "--ranks", "1", "--launch", "agent,mpirun", "--communication")
    resources = ("--set", "resources.gpus=0", "--cpus", "1", "--mem", "1G", "--time", "5m")
    found = bench(slurm, *sizes, *resources, "--", *torch_python, "train.py")
    states = {(point["nodes"], point["launch"], point["without_sync"]): point["state"] for point in found["points"]}
    assert states == {
        (1, "agent", False): "COMPLETED",
        **{(2, launch, bare): "COMPLETED" for launch in ("agent", "mpirun") for bare in (False, True)},
    }
    rows = found["rows"]
    assert [(row["nodes"], row["launch"]) for row in rows] == [(1, "agent"), (2, "agent"), (2, "mpirun")]
    assert [run["batch"] for row in rows for run in row["runs"]] == [4.0] * 3
    assert [run["steps"] for row in rows for run in row["runs"]] == [27] * 3
    assert all(row["speed_up"] > 0 and row["startup_seconds"] > 0 for row in rows)
    assert [row["communication"] is None for row in rows] == [True, False, False]
    assert found["device"] == "CPU"
