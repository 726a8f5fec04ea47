"""`serried stacks` of ranks that hang, from another terminal."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

import containing
from place import Place
from waiting import until

HANGS = """
import os, sys, threading, time
rank = int(os.environ["RANK"])
def wait_for_data():
    time.sleep(100000)
def all_reduce():
    time.sleep(100000)
print("started", flush=True)
if rank == 1:
    os.close(1)
    os.close(2)
    wait_for_data()
all_reduce()
"""


def begin(place: Place, *arguments: str, wait_until, ranks: int) -> str:
    (place.project / "train.py").write_text(HANGS)
    run = place.submit(*arguments)
    logs = place.directory(run) / "attempts" / "1"
    wait_until(lambda: sum("started" in path.read_text() for path in logs.glob("node-*/rank-*.log")) == ranks)
    return run


def stacks(place: Place, run: str, *arguments: str) -> str:
    """The output once all nodes answer in time."""
    done = until(lambda: (found := place.serried("stacks", run, *arguments)).stderr == "" and found)
    assert done.returncode == 0
    return str(done.stdout)


def innermost(place: Place, run: str) -> dict[int, str]:
    """The innermost function of each rank that answers in time."""
    done = place.serried("stacks", run, "--json")
    ranks = json.loads(done.stdout)["ranks"] if done.returncode == 0 else []
    threads = {one["rank"]: process["threads"] for one in ranks for process in one["processes"][:1]}
    return {rank: found[0]["frames"][0][2] for rank, found in threads.items() if found and found[0]["frames"]}


def stop(place: Place, run: str) -> None:
    place.serried("stop", "-y", "--now", run)
    place.wait(run)


def test_the_rank_that_hangs_elsewhere_comes_first_and_all_run_on(place: Place, wait_until):
    nodes = 1 if place.cluster == "local" else 2
    size = ("--nodes", str(nodes), "--ranks", str(4 // nodes), "--cpus", "1", "--mem", "100M")
    run = begin(place, *size, "--", sys.executable, "train.py", wait_until=wait_until, ranks=4)
    expected = {0: "all_reduce", 1: "wait_for_data", 2: "all_reduce", 3: "all_reduce"}
    wait_until(lambda: innermost(place, run) == expected, what="the stacks of all ranks")

    shown = json.loads(stacks(place, run, "--json"))
    assert (shown["schema"], shown["run"], shown["attempt"]) == (1, run, 1)
    first_group = re.compile(r"rank 1 on .+: 1 of 4 ranks\n  train\.py:5 +wait_for_data\n")
    wait_until(lambda: first_group.match(stacks(place, run)))
    of_rank_3 = wait_until(lambda: "all_reduce" in (text := stacks(place, run, "--rank", "3")) and text)
    assert "wait_for_data" not in of_rank_3
    missing = f"error: run `{run}` has no running rank 9"
    wait_until(lambda: place.serried("stacks", run, "--rank", "9").stderr.startswith(missing), what=missing)

    assert place.show(run)["state"] == "RUNNING"
    stop(place, run)
    ended = place.serried("stacks", run)
    assert ended.returncode == 2
    assert ended.stderr.splitlines()[0] == f"error: run `{run}` has no running ranks: it is CANCELLED"


@pytest.mark.slurm
@pytest.mark.parametrize("kind", ["srun", "torchrun"])
def test_ranks_that_a_launcher_started(slurm: Place, wait_until, kind: str):
    size = ("--nodes", "2", "--ranks", "1", "--cpus", "1", "--mem", "500M", "--launch", kind)
    run = begin(slurm, *size, "--", sys.executable, "train.py", wait_until=wait_until, ranks=2)
    wait_until(lambda: innermost(slurm, run) == {0: "all_reduce", 1: "wait_for_data"})
    ranks = json.loads(stacks(slurm, run, "--json"))["ranks"]
    assert {one["node"]: one["host"] for one in ranks} == dict(enumerate(slurm.show(run)["node_names"]))
    stop(slurm, run)


def test_the_programs_of_a_job_script(place: Place, wait_until):
    script = place.project / "job.sh"
    directive = "#SBATCH --ntasks=1 --mem=100M\n" if place.cluster == "slurm" else ""
    script.write_text(f"#!/bin/bash\n{directive}RANK=0 '{sys.executable}' '{place.project}/train.py'\n")
    (place.project / "train.py").write_text(HANGS)
    run = place.submit(str(script))
    log: Path = place.directory(run) / "attempts" / "1" / "script.log"
    wait_until(lambda: "started" in log.read_text())
    wait_until(lambda: innermost(place, run) == {-1: "all_reduce"})
    stop(place, run)


@pytest.mark.parametrize("runtime", ["apptainer", "ch-run"])
def test_a_rank_in_a_container_and_a_command_beside_it(local: Place, tmp_path: Path, wait_until, runtime: str):
    image = rootfs = containing.skeleton(tmp_path / "a root")
    if runtime == "apptainer":
        image = containing.build(rootfs, tmp_path / "image.sif", containing.path_with(runtime))
    command = [sys.executable, "train.py"]
    (local.project / "serried.toml").write_text(
        containing.table("experiments.x", {"command": command})
        + containing.table("experiments.x.environment.env", {"RANK": "0"})
        + containing.table(
            "experiments.x.container", {"image": str(image), "runtime": runtime, "binds": containing.needed()}
        )
    )
    place = Place(local.cluster, local.project, {**local.environ, "PATH": containing.path_with(runtime)})
    run = begin(place, "x", "--ranks", "1", wait_until=wait_until, ranks=1)
    wait_until(lambda: innermost(place, run) == {0: "all_reduce"})
    done = place.serried(
        "shell", run, "--rank", "0", "--", "sh", "-c", f"cat {containing.MARK}; echo $SERRIED_RUN_ID; pwd"
    )
    assert done.stdout == f"inside\n{run}\n{place.directory(run)}/source\n", done.stderr
    stop(place, run)


def test_tasks_of_an_array_have_their_own_stacks(local: Place, wait_until):
    size = ("--array", "0-1", "--cpus", "1", "--mem", "100M")
    (local.project / "train.py").write_text(HANGS)
    run = local.submit(*size, "--set", "environment.env.RANK=0", "--", sys.executable, "train.py")
    tasks = local.directory(run) / "tasks"
    wait_until(lambda: "started" in (tasks / "1" / "attempts" / "1" / "node-0" / "rank-0.log").read_text())
    whole = local.serried("stacks", run)
    assert whole.stderr.splitlines()[0] == f"error: run `{run}` is an array, and each task has its own ranks"
    wait_until(lambda: innermost(local, f"{run}/1") == {0: "all_reduce"})
    stop(local, run)
