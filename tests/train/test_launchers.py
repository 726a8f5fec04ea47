"""Sessions under real launchers: our agent, here and on Slurm, and srun alone."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import train_ranks

import serried
from serried.base.files import Journal, read_journal, read_json
from serried.schema.layout import RunDirectory
from serried.schema.series import points

pytest.importorskip("torch", reason="needs torch: pip install torch")
pytestmark = pytest.mark.torch

WHO = """
import json
import serried.train as st
with st.session(start_seconds=600) as run:
    told = run.broadcast_object(run.rank, src=run.world_size - 1)
    print(json.dumps([run.identity.source, run.rank, run.world_size, run.local_rank, run.local_world_size,
                      run.node_rank, told]), flush=True)
"""

COUNTS = """
import json, os, time
import serried.train as st

with st.session() as run:
    file = run.directory / "step.json"
    first = json.loads(file.read_text()) if file.exists() else 0
    run.barrier()
    for step in range(first, 1_000_000):
        time.sleep(0.02)
        run.log(step=step, of=run.attempt)
        if run.attempt == 2 and step == first + 5:
            break
        reason = run.stop_reason()
        if reason:
            print(json.dumps([run.rank, run.attempt, first, step, reason]), flush=True)
            run.barrier()
            if run.is_main:
                file.write_text(json.dumps(step))
            run.barrier()
            run.saved_for_stop(step)
            break
    else:
        raise SystemExit("never told to stop")
    if not run.should_stop:
        print(json.dumps([run.rank, run.attempt, first, step, None]), flush=True)
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "who.py").write_text(WHO)
    (folder / "counts.py").write_text(COUNTS)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PYTHONPATH", train_ranks.SOURCE)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("SCRATCH", str(tmp_path / "scratch"))
    (tmp_path / "scratch").mkdir()
    return folder


def command(*words):
    return [sys.executable, "-m", "serried", *words]


@pytest.mark.usefixtures("project")
def test_our_agents_ranks_know_who_they_are_and_torch_says_what_it_does_where_asked():
    done = subprocess.run(
        command("run", "--ranks", "2", "--debug", "--", sys.executable, "who.py"),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = sorted(line[line.index('["serried') :] for line in done.stdout.splitlines() if '["serried' in line)
    assert [json.loads(line) for line in said] == [["serried", 0, 2, 0, 2, 0, 1], ["serried", 1, 2, 1, 2, 0, 1]]
    assert "[c10d] The debug level is set to DETAIL." in done.stdout


@pytest.mark.usefixtures("project")
def test_a_run_that_comes_to_its_limit_saves_and_goes_on_in_a_second_attempt(torch_python, wait_until):
    submit = command("submit", "--json", "--cluster", "local", "--ranks", "2")
    done = subprocess.run(
        [*submit, "--set", "limit.restarts=1", "--", *torch_python, "counts.py"],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    run = serried.find(json.loads(done.stdout)["runs"][0]["id"])
    place = RunDirectory(run.directory)
    attempt = place.attempt(1)
    wait_until(lambda: all(steps_of(attempt, rank) for rank in (0, 1)), 600, "steps of both ranks")
    Journal(attempt.control).append({"t": 0, "request": "stop", "reason": "limit", "by": "a test", "save": True})
    assert run.wait(600) == "COMPLETED", [run.logs(0, attempt=1), run.logs(0)]
    ((_, _, first, saved, reason),) = told(run.logs(0, attempt=1))
    assert (first, reason) == (0, "limit")
    assert told(run.logs(1, attempt=1)) == [[1, 1, 0, saved, "limit"]]
    assert [told(run.logs(rank)) for rank in (0, 1)] == [[[rank, 2, saved, saved + 5, None]] for rank in (0, 1)]
    assert (read_json(attempt.exit) or {})["state"] == "REQUEUED"
    steps = [point.to_json() for point in points(place, rank=1)]
    assert [entry["step"] for entry in steps if "of" in entry] == list(range(saved + 6))
    assert [entry["of"] for entry in steps if "of" in entry][-6:] == [2] * 6


def steps_of(attempt, rank):
    return [entry for entry in read_journal(attempt.metrics(0, rank)) if "of" in entry]


MPI = """
import json
import serried.train as st
with st.session(start_seconds=600) as run:
    sums = run.all_reduce_mean({"rank": run.rank}, weight=1)
    print(json.dumps([run.identity.source, run.rank, run.world_size, run.local_rank, run.local_world_size,
                      sums["rank"] * run.world_size, run.identity.launch != ""]), flush=True)
"""


def test_ranks_that_open_mpi_has_started_add_up_their_numbers(project, torch_python):
    """A real mpirun, which says nothing of where rank 0 is."""
    if shutil.which("mpirun") is None:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)("needs mpirun: apt-get install openmpi-bin")
    (project / "mpi.py").write_text(MPI)
    as_root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    done = subprocess.run(
        ["mpirun", "-np", "3", "--oversubscribe", *torch_python, "mpi.py"],
        env={**os.environ, **as_root},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert sorted(told(done.stdout)) == [["open-mpi", rank, 3, rank, 3, 3.0, True] for rank in range(3)]


def told(log):
    """What ranks have printed; a launcher may put two on one line, and torch says things in brackets too."""
    return [json.loads(each) for each in re.findall(r'\[(?:\d+|"[\w-]+"), [^\[\]]*\]', log)]


@pytest.mark.slurm
@pytest.mark.usefixtures("project")
def test_ranks_of_an_uneven_slurm_step_find_one_another(in_lab, torch_python):
    """Three nodes, with 2, 1 and 1 tasks, whose names lead nowhere: rank 0 leaves a note where all of them work."""
    done = in_lab.run(
        *("srun", "-N3", "-n4", "--cpus-per-task=1", "--mem=0", "-t10"),
        *(f"--chdir={Path.cwd()}", *torch_python, "who.py"),
        timeout=600,
    )
    assert done.status == 0, done.stderr
    said = sorted(told(done.stdout))
    assert [line[:3] for line in said] == [["slurm", rank, 4] for rank in range(4)]
    assert {line[-1] for line in said} == {3}
    assert sorted(line[5] for line in said) == [0, 0, 1, 2]
    assert [line[3:5] for line in said if line[5] == 0] == [[0, 2], [1, 2]]
    assert list(Path.cwd().glob(".serried*")) == []


@pytest.mark.usefixtures("project", "in_lab")
@pytest.mark.slurm
def test_our_agents_ranks_on_two_nodes_of_slurm(torch_python):
    run = serried.submit([*torch_python, "who.py"], cluster="slurm", nodes=2, ranks=1, gpus=0, mem="100M", time="10m")
    assert run.wait(600) == "COMPLETED", run.logs()
    assert [told(run.logs(rank)) for rank in (0, 1)] == [[["serried", rank, 2, 0, 1, rank, 1]] for rank in (0, 1)]
