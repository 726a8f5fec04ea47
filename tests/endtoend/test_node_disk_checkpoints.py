"""On a real Slurm: what two nodes wrote on their own disks is brought back, and the run goes on from it."""

from __future__ import annotations

import json
import os

import pytest

from serried.base.files import read_json
from trees import tree

TRAIN = """
import os, pathlib, sys, time, zipfile
results, checkpoints, resume = map(pathlib.Path, sys.argv[1:])
rank, stop = os.environ["RANK"], pathlib.Path(os.environ["SERRIED_STOP_FILE"])
assert str(results).startswith(DISK) and str(checkpoints).startswith(DISK), (results, checkpoints)

def save(step):
    with zipfile.ZipFile(checkpoints / f"step{step}.pt", "w") as archive:
        archive.writestr("data", str(step))

if sys.argv[3]:
    step = int(zipfile.ZipFile(resume).read("data"))
    (results / f"resumed-{rank}.csv").write_text(f"from {resume.name}, step {step}")
    sys.exit(0)
(results / f"first-{rank}.csv").write_text("1")
if rank == "0":
    save(1)
while not stop.exists():
    time.sleep(0.1)
(results / f"asked-{rank}.csv").write_text("1")
if rank == "0":
    save(2)
sys.exit(85)
"""


@pytest.mark.slurm
def test_a_run_of_two_nodes_goes_on_from_what_was_brought_from_their_disks(slurm, tmp_path, wait_until):
    disk = tmp_path / "disk"
    program = slurm.project / "train.py"
    program.write_text(TRAIN.replace("DISK", repr(str(disk))))
    experiment = {
        "command": ["python", "train.py", "{results}", "{checkpoints}", "{resume}"],
        "resources": {"nodes": 2},
        "limit": {"restarts": 1},
        "data": {"results": ["*.csv"], "results_every": "1s"},
        "checkpoint": {"watch": ["{checkpoints}/*.pt"], "sync_every": "1s", "keep": 2},
    }
    (slurm.project / "serried.toml").write_text(_toml(disk, experiment))

    run = slurm.submit("train")
    there = slurm.directory(run)
    wait_until(lambda: "step1.pt" in tree(there / "checkpoints"))
    wait_until(lambda: {"first-0.csv", "first-1.csv"} <= tree(there / "results").keys())
    slurm.ask_to_save(run)
    slurm.wait(run)

    end = read_json(there / "exit.json")
    assert (end["state"], end["attempts"], "missing" in end) == ("COMPLETED", 2, False)
    names = [f"{what}-{rank}.csv" for what in ("asked", "first", "resumed") for rank in "01"]
    results = tree(there / "results")
    assert sorted(results) == sorted(names)
    assert results["resumed-1.csv"] == "from step2.pt, step 2"
    assert sorted(tree(there / "checkpoints")) == ["step1.pt", "step2.pt"]

    cancelled = slurm.submit("train")
    there = slurm.directory(cancelled)
    wait_until(lambda: {"first-0.csv", "first-1.csv"} <= tree(there / "results").keys())
    wait_until(lambda: "step1.pt" in tree(there / "checkpoints"))
    slurm.serried("stop", "-y", "--now", cancelled)
    slurm.wait(cancelled)
    end = read_json(there / "exit.json")
    assert (end["state"], "missing" in end) == ("CANCELLED", False)
    assert sorted(tree(there / "results")) == ["first-0.csv", "first-1.csv"]
    assert sorted(tree(there / "checkpoints")) == ["step1.pt"]
    assert [name for _, _, names in os.walk(disk) for name in names] == []


def _toml(disk, experiment):
    lines = [f"[clusters.slurm]\nlocal_disk = '{disk}'\n", "[experiments.train]"]
    plain = {key: value for key, value in experiment.items() if not isinstance(value, dict)}
    lines += [f"{key} = {json.dumps(value)}" for key, value in plain.items()]
    for table, keys in experiment.items():
        if isinstance(keys, dict):
            lines.append(f"[experiments.train.{table}]")
            lines += [f"{key} = {json.dumps(value)}" for key, value in keys.items()]
    return "\n".join(lines)
