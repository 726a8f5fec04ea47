"""One serried.toml, at home, on a cluster, and after a rank was killed: ranks learn the same, to the last bit."""

from __future__ import annotations

import json
import sys

import pytest

from place import HAS_PBS

TRAIN = """
import torch
from sklearn.datasets import load_digits
import serried.train as st

torch.manual_seed(0)
images, labels = (torch.from_numpy(each) for each in load_digits(return_X_y=True))
data = torch.utils.data.TensorDataset(images.float() / 16, labels)
with st.session() as run:
    model = run.wrap(torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loader = run.loader(data, batch_size=16, shuffle=True)
    for epoch in run.epochs(1):
        for inputs, targets in loader:
            loss = torch.nn.functional.cross_entropy(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.log(loss=loss.item().hex(), threads=torch.get_num_threads())
"""

FILE = f"""
[project]
name = "digits"

[experiments.train]
command = ["{sys.executable}", "train.py"]

[experiments.train.resources]
nodes = 2
ranks = 2
cpus = 1

[experiments.train.on.local.resources]
nodes = 1
ranks = 4
"""


def learned(place, run):
    """What each rank computed at each step, and with how many threads: rounding depends on them."""
    status, end = place.wait(run)
    assert (status, end["state"]) == (0, "COMPLETED"), place.serried("why", run).stdout
    lines = [path.read_text().splitlines() for path in sorted(place.directory(run).rglob("metrics-*.jsonl"))]
    assert len(lines) == 4
    said = [[entry for entry in map(json.loads, rank) if "loss" in entry] for rank in lines]
    return [[(entry["loss"], entry["threads"]) for entry in rank] for rank in said]


@pytest.mark.torch
@pytest.mark.parametrize("name", [pytest.param("slurm", marks=pytest.mark.slurm), *(["pbs"] if HAS_PBS else [])])
def test_two_nodes_of_a_cluster_learn_what_one_machine_learns(project, local, name, request):
    (project / "train.py").write_text(TRAIN)
    (project / "serried.toml").write_text(FILE)
    cluster = request.getfixturevalue(name)

    runs = [(place, place.submit("train")) for place in (local, cluster)]

    at_home, on_the_cluster = [learned(place, run) for place, run in runs]
    assert len(at_home[0]) == len(set(at_home[0])) == 29
    assert on_the_cluster == at_home


RESUMES = """
import os, signal, sys
from pathlib import Path
import torch
import serried.train as st

kill_at = int(sys.argv[1])
marker = Path(os.environ["SERRIED_RUN_DIR"]) / "killed"
data = torch.utils.data.TensorDataset(torch.randn(256, 8, generator=torch.Generator().manual_seed(1)))
with st.session(seed=1) as run:
    model = run.wrap(torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(), torch.nn.Linear(16, 1)))
    optimizer = torch.optim.Adam(model.parameters())
    loader = run.loader(data, batch_size=8, shuffle=True)
    checkpoints = run.checkpoints(model=model, optimizer=optimizer, every="4 steps")
    for epoch in run.epochs(2):
        for step, (inputs,) in enumerate(loader):
            loss = model(inputs).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.log(loss=loss.item().hex())
            checkpoints.step()
            if checkpoints.steps == 19 and "unpublished" in sys.argv:
                checkpoints.wait()
                if run.rank == 1:  # then step 20 is copied, and never complete
                    os.kill(checkpoints._saver._writer.pid, signal.SIGSTOP)
            if (epoch, step) == (1, kill_at) and run.rank == 1 and not marker.exists():
                marker.touch()
                os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.torch
def test_ranks_that_start_again_after_a_kill_learn_what_an_uninterrupted_run_learns(project, local):
    (project / "train.py").write_text(RESUMES)
    flags = ("--ranks", "2", "--set", "limit.rounds=3", "--", sys.executable, "train.py")

    runs = [local.submit(*flags, *words) for words in (("99",), ("5",), ("5", "unpublished"))]

    curves, resumed = [], []
    for run in runs:
        status, end = local.wait(run)
        assert (status, end["state"]) == (0, "COMPLETED"), local.serried("why", run).stdout
        lines = [path.read_text().splitlines() for path in sorted(local.directory(run).rglob("metrics-*.jsonl"))]
        ranks = [[entry for entry in map(json.loads, rank) if "loss" in entry] for rank in lines]
        curves.append([{entry["step"]: entry["loss"] for entry in rank} for rank in ranks])
        resumed.append([entry["resumed"] for rank in lines for entry in map(json.loads, rank) if "resumed" in entry])
    assert "recovered once: rank 1" in end["message"]
    spent = json.loads(local.serried("show", run, "--json").stdout)["runs"][0]["time"]
    parts = {name: spent[name] for name in spent if name.endswith("_seconds")}
    assert parts.pop("total_seconds") == pytest.approx(sum(parts.values()), abs=0.01)
    assert min(parts["steps_seconds"], parts["start_seconds"], parts["repeated_seconds"], spent["goodput"]) > 0
    assert parts["unknown_seconds"] == 0
    assert len(curves[0][0]) == 32
    assert curves == [curves[0]] * 3
    assert resumed == [[], [20, 20], [20, 20]]
