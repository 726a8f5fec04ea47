"""Arrays that one job of Slurm cannot hold: one run, several jobs, on a real Slurm that takes four tasks a job."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from place import Place
from serried.base.files import read_json

SAYS = """\
import json, os, sys, time
from pathlib import Path
said = {name: os.environ[name] for name in ("SERRIED_TASK", "SLURM_ARRAY_TASK_ID")}
path = Path(os.environ["SERRIED_RESULTS_DIR"], "said.json")
with path.open("x") as file:  # a second time fails
    json.dump({**said, "words": sys.argv[1:]}, file)
raise SystemExit(3 if "fails" in sys.argv else 0)
"""

WAITS = """\
import os, time
from pathlib import Path
while not Path(os.environ["GO"], "go").exists():
    time.sleep(0.05)
"""

CONTINUES = """\
import os, sys, time
from pathlib import Path
checkpoints, stop = Path(os.environ["SERRIED_CHECKPOINT_DIR"]), Path(os.environ["SERRIED_STOP_FILE"])
print("attempt", os.environ["SERRIED_ATTEMPT"], "of", os.environ["SERRIED_TASK"], flush=True)
if os.environ["SERRIED_TASK"] != "6" or list(checkpoints.iterdir()):
    raise SystemExit(0)
(checkpoints / "step-1").mkdir()
(checkpoints / "step-1" / "COMPLETE").write_text('{"schema": 1, "files": {}}')
while not stop.exists():
    time.sleep(0.05)
raise SystemExit(85)
"""

pytestmark = pytest.mark.slurm
SMALL = ("--ranks", "1", "--set", "resources.mem=1G", "--set", "sampling.every=off")


@pytest.fixture
def slurm(tmp_path: Path, slurm_of) -> Place:
    return slurm_of(nodes=2, gpus=0, settings={"MaxArraySize": "4"})[0].with_environ(GO=str(tmp_path))


def queue(place: Place) -> str:
    argv = ["squeue", "--noheader", "--states=PENDING,RUNNING,COMPLETING", "--format=%i %T"]
    return subprocess.run(argv, env=dict(place.environ), capture_output=True, text=True, check=True).stdout


def names_of(run: Path) -> list[str]:
    return sorted(path.name for path in run.iterdir())


def test_each_task_runs_once_with_its_own_index_command_seed_and_results(slurm):
    (slurm.project / "say.py").write_text(SAYS)
    lines = [f"{sys.executable} say.py {index} {{seed}} 'a b'" for index in range(10)]
    for index in (5, 9):
        lines[index] += " fails"
    (slurm.project / "each.txt").write_text("\n".join(lines))
    run = slurm.submit(*SMALL, "--set", "seed=70", "--commands", "each.txt")

    code, ended = slurm.wait(run)

    assert (code, ended["state"]) == (1, "FAILED")
    assert ended["message"] == "2 of 10 tasks did not complete; the first is 5"
    assert ended["tasks"] == {"COMPLETED": "0-4,6-8", "FAILED": "5,9"}
    assert len(ended["job"].split(",")) == 3
    directory = Path(ended["directory"])
    said = [json.loads((directory / f"tasks/{index}/results/said.json").read_text()) for index in range(10)]
    assert said == [
        {
            "SERRIED_TASK": str(index),
            "SLURM_ARRAY_TASK_ID": str(index),
            "words": [str(index), str(70 + index), "a b", *(["fails"] if index in (5, 9) else [])],
        }
        for index in range(10)
    ]
    assert [names_of(directory / f"tasks/{index}/attempts") for index in range(10)] == [["1"]] * 10
    assert names_of(directory / "claims") == [f"{run}_0-1", f"{run}_4-1", f"{run}_8-1"]
    why = slurm.serried("why", run).stdout
    assert f"{run}/5" in why
    assert "exited with status 3" in why
    shown = slurm.show(f"{run}/5")
    assert (shown["id"], shown["state"], shown["job"]) == (f"{run}/5", "FAILED", ended["job"].split(",")[1])

    again = json.loads(slurm.serried("rerun", "--json", run, "--failed").stdout)["runs"][0]["id"]
    code, ended = slurm.wait(again)
    assert (code, ended["tasks"], len(ended["job"].split(","))) == (1, {"FAILED": "5,9"}, 2)
    directory = Path(ended["directory"])
    own = [json.loads((directory / f"tasks/{index}/results/said.json").read_text()) for index in (5, 9)]
    assert own == [said[5], said[9]]


def test_jobs_that_were_released_though_nobody_heard_so_are_found_to_have_begun(slurm, tmp_path, wait_until):
    (slurm.project / "wait.py").write_text(WAITS)
    (tmp_path / "bin").mkdir()
    scontrol = tmp_path / "bin" / "scontrol"
    scontrol.write_text(
        f'#!/bin/bash\n{shutil.which("scontrol")} "$@"\n[[ $1 != release ]] && exit\n'
        "echo 'Unable to contact slurm controller (connect failure)' >&2\nexit 1\n"
    )
    scontrol.chmod(0o700)
    path = f"{tmp_path / 'bin'}:{slurm.environ['PATH']}"
    deaf = Place("slurm", slurm.project, {**slurm.environ, "PATH": path})
    # The first task ends at once, and others run or wait when the jobs are released again.
    words = (*SMALL, "--cpus", "16", "--array", "0-9", "--", "bash", "-c")
    program = f"(( SERRIED_TASK == 0 )) || exec {sys.executable} wait.py"

    submitted = deaf.serried("submit", "--cluster", "slurm", *words, program)

    assert submitted.returncode == 3, submitted.stderr
    wait_until(lambda: list((tmp_path / "scratch").glob("**/tasks/0/exit.json")) and "1_0 " not in queue(slurm))
    (run,) = json.loads(slurm.serried("ps", "--json").stdout)["runs"]
    assert run["state"] == "RUNNING"
    Path(slurm.environ["GO"], "go").touch()
    assert slurm.wait(run["id"])[1]["tasks"] == {"COMPLETED": "0-9"}
    said = re.search(r"^creates +(\d+) files and folders", submitted.stderr, re.MULTILINE)
    assert int(said[1]) == 1 + sum(1 for _ in Path(run["directory"]).rglob("*"))


def test_stopping_the_run_cancels_all_its_jobs(slurm, wait_until):
    (slurm.project / "wait.py").write_text(WAITS)
    run = slurm.submit(*SMALL, "--cpus", "16", "--array", "0-9", "--", sys.executable, "wait.py")
    wait_until(lambda: "RUNNING" in slurm.show(run)["tasks"])

    stopped = slurm.serried("stop", "-y", run)

    assert stopped.returncode == 0, stopped.stderr
    ended = slurm.wait(run)[1]
    assert (ended["state"], ended["tasks"]) == ("CANCELLED", {"CANCELLED": "0-9"})
    wait_until(lambda: queue(slurm) == "")


def test_only_so_many_tasks_run_at_once_in_all_jobs_together(slurm, wait_until):
    (slurm.project / "wait.py").write_text(WAITS)
    run = slurm.submit(*SMALL, "--array", "0-9", "--parallel", "1", "--", sys.executable, "wait.py")
    after = slurm.submit(*SMALL, "--after", run, "--", "true")
    wait_until(lambda: slurm.show(run)["tasks"] == {"RUNNING": "0", "PENDING": "1-9"})
    later = slurm.show(run)["job"].split(",")[1:]
    asked = ["squeue", "--noheader", f"--jobs={','.join(later)}", "--format=%r"]
    reasons = subprocess.run(asked, env=dict(slurm.environ), capture_output=True, text=True, check=True).stdout
    assert set(reasons.split()) == {"Dependency"}
    assert slurm.show(after)["state"] == "PENDING"

    Path(slurm.environ["GO"], "go").touch()

    assert slurm.wait(run)[1]["tasks"] == {"COMPLETED": "0-9"}
    assert slurm.wait(after)[1]["state"] == "COMPLETED"


@pytest.mark.parametrize("form", ["requeue", "successor"])
def test_a_task_of_a_later_job_goes_on_in_its_next_attempt(slurm, form):
    (slurm.project / "train.py").write_text(CONTINUES)
    settings = (f"limit.continue={form}", "limit.restarts=2", "limit.warn_before=30s", "clusters.slurm.kill_wait=5s")
    said = [word for setting in settings for word in ("--set", setting)]
    run = slurm.submit(*SMALL, *said, "--time", "1m", "--array", "0-9", "--", sys.executable, "train.py")

    code, ended = slurm.wait(run)

    assert (code, ended["tasks"]) == (0, {"COMPLETED": "0-9"})
    task = Path(ended["directory"]) / "tasks/6"
    assert names_of(task / "attempts") == ["1", "2"]
    log = task / "attempts/2/node-0/rank-0.log"
    assert log.read_text() == "attempt 2 of 6\n"
    claim = read_json(task / "attempts/2/attempt.json")
    assert claim["token"] == (f"{run}_4-1" if form == "requeue" else f"{run}.6-2")
    assert "attempt 1 of 6" in slurm.serried("logs", f"{run}/6", "--attempt", "1").stdout
