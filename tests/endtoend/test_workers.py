"""Sweeps whose jobs run one trial after another: on this machine and on Slurm, with kills and at the time limit."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys

import pytest

from place import job_script
from serried.base.files import read_json
from serried.schema import layout
from serried.schema.layout import RunDirectory

SCRIPT = """\
import json, os, sys, time
from pathlib import Path
checkpoints, results = Path(os.environ["SERRIED_CHECKPOINT_DIR"]), Path(os.environ["SERRIED_RESULTS_DIR"])
told = json.loads(os.environ["SERRIED_CONFIG"])
print("trial", os.environ["SERRIED_TASK"], os.environ.get("SLURM_ARRAY_TASK_ID", ""), flush=True)
with (results / "told.json").open("a") as file:
    file.write(json.dumps(told) + "\\n")
if told["lr"] == told.get("long") and not os.environ.get("SERRIED_RESUME_FROM"):
    (checkpoints / "step-1").mkdir()
    (checkpoints / "step-1" / "COMPLETE").write_text('{"schema": 1, "files": {}}')
    while not Path(os.environ["SERRIED_STOP_FILE"]).exists():
        time.sleep(0.05)
    sys.exit(85)
sys.exit(3 if told["lr"] < 0 else 0)
"""
"""The trial whose `lr` is `long` waits for the stop notice, unless it has a checkpoint."""


@pytest.fixture
def sweep(place):
    return sweeps_at(place)


def sweeps_at(place):
    (place.project / "train.py").write_text(SCRIPT)

    def send(grid, *flags, **settings):
        said = [word for name, value in settings.items() for word in ("--grid", f"{name}={value}")]
        words = ("--grid", f"lr={grid}", *said, *flags, "--cluster", place.cluster, "--", sys.executable, "train.py")
        done = place.serried("sweep", "--ranks", "1", *words)
        assert done.returncode == 0, done.stderr
        run = done.stdout.strip()
        return run, RunDirectory(place.directory(run))

    return send


def told(where, trial):
    return [json.loads(line) for line in (where.task(trial).results / "told.json").read_text().splitlines()]


def states(place, run):
    shown = json.loads(place.serried("sweep", "show", run, "--json").stdout)
    return {trial["trial"]: trial["state"] for trial in shown["trials"]}


def workers(where, trials):
    return [layout.worker_of(where, trial) for trial in range(trials)]


def test_few_jobs_run_all_trials_each_once(place, sweep):
    values = [0.5, 0.25, -1.0, 0.125, 2.0, 3.0]
    run, where = sweep(",".join(map(str, values)), "--workers", "2", "--time", "10m")
    code, ended = place.wait(run)

    assert (code, ended["tasks"]) == (1, {"COMPLETED": "0-1,3-5", "FAILED": "2"})
    assert [told(where, trial) for trial in range(6)] == [[{"lr": value}] for value in values]
    assert len(set(workers(where, 6))) < 6
    drawn = next(trial for trial in range(6) if layout.worker_of(where, trial) != trial)
    index = str(drawn) if place.cluster == "slurm" else ""
    assert (where.task(drawn).attempt(1).rank_log(0, 0)).read_text().split() == ["trial", str(drawn), *index.split()]
    assert read_json(where.task(drawn).exit)["task"] == drawn
    if place.cluster == "slurm":
        assert place.has_left_queue(ended["job"])


def test_the_jobs_whose_trials_others_have_run_end_without_one(place, sweep, wait_until):
    run, where = sweep("0.5,0.25,2.0,3.0", "--workers", "1", "--time", "10m")
    _, ended = place.wait(run)
    assert workers(where, 4) == [0, 0, 0, 0]
    logs = [where.scheduler_log(trial) for trial in range(1, 4)]
    if place.cluster != "slurm":
        wait_until(lambda: all(log.exists() for log in logs))
        return
    wait_until(lambda: place.has_left_queue(ended["job"]))
    assert not any(log.exists() for log in logs)
    asked = ("scontrol", "--oneliner", "show", "job", ended["job"])
    done = subprocess.run(asked, env=dict(place.environ), capture_output=True, text=True, check=True)
    assert sorted(re.findall(r"JobState=(\w+)", done.stdout)) == ["CANCELLED", "COMPLETED"]


def test_a_job_that_is_killed_loses_no_trial_and_the_next_job_continues(place, sweep, wait_until):
    run, where = sweep("0.5,0.25,2.0,3.0", "--workers", "1", "--time", "10m", long=0.25)
    log = where.task(1).attempt(1).rank_log(0, 0)
    wait_until(lambda: log.exists() and log.read_text())
    wait_until(lambda: states(place, run)[1] == "RUNNING")  # answers of a scheduler are cached for seconds
    os.kill(job_script(run), signal.SIGKILL)

    place.wait(run)
    assert states(place, run) == {0: "COMPLETED", 1: "FAILED", 2: "COMPLETED", 3: "COMPLETED"}
    assert [len(told(where, trial)) for trial in range(4)] == [1, 1, 1, 1]
    assert workers(where, 4)[:2] == [0, 0]
    assert 0 not in workers(where, 4)[2:]

    again = place.serried("sweep", "retry", run).stdout.strip()
    assert place.wait(again)[0] == 0
    assert told(RunDirectory(place.directory(again)), 1) == [{"lr": 0.25, "long": 0.25}]
    assert states(place, run) == dict.fromkeys(range(4), "COMPLETED")


def test_stopping_a_sweep_stops_its_workers_and_no_trial_is_drawn(place, sweep, wait_until):
    run, where = sweep("0.5,0.25,2.0,3.0", "--workers", "1", "--time", "10m", long=0.25)
    log = where.task(1).attempt(1).rank_log(0, 0)
    wait_until(lambda: log.exists() and log.read_text())
    assert place.serried("stop", "-y", f"{run}/2").returncode == 0
    assert place.serried("sweep", "stop", "-y", run).returncode == 0
    place.wait(run)
    assert states(place, run) == {0: "COMPLETED", 1: "CANCELLED", 2: "CANCELLED", 3: "CANCELLED"}
    assert not where.task(2).attempts.exists()
    assert not where.task(3).attempts.exists()


def test_a_drawn_trial_that_the_limit_cuts_resumes_with_its_parameters_in_its_job(place, sweep, wait_until):
    restarts = ("--set", "limit.restarts=2", "--set", "limit.continue=requeue")
    if place.cluster == "pbs":  # its jobs cannot requeue themselves
        words = ("--grid", "lr=0.5,0.25", "--workers", "1", *restarts, "--cluster", "pbs", "--", "python", "train.py")
        refused = place.serried("sweep", *words)
        assert refused.stderr.splitlines()[0] == "error: with `--workers`, a trial cannot continue in a job of its own"
        return
    run, where = sweep("0.5,0.25,2.0", "--workers", "1", "--time", "10m", *restarts, long=0.25)
    wait_until(lambda: place.log(run, task=1))
    place.ask_to_save(run, task=1)
    assert place.wait(run)[0] == 0

    assert workers(where, 3)[:2] == [0, 0]
    ends = [read_json(where.task(1).attempt(number).exit) for number in (1, 2)]
    assert [end["state"] for end in ends] == ["REQUEUED", "COMPLETED"]
    assert told(where, 1) == [{"lr": 0.25, "long": 0.25}] * 2
    assert [len(told(where, trial)) for trial in (0, 2)] == [1, 1]


def test_a_drawn_trial_that_slurm_preempts_resumes_in_its_job(slurm_of, tmp_path, wait_until):
    preempts = {"PreemptType": "preempt/partition_prio", "PreemptMode": "REQUEUE"}
    place, _ = slurm_of(nodes=1, gpus=0, settings=preempts, partitions=("urgent PriorityTier=10",))
    restarts = ("--set", "limit.restarts=1")
    run, where = sweeps_at(place)("0.5,0.25,2.0", "--workers", "1", "--time", "10m", *restarts, long=0.25)
    wait_until(lambda: place.log(run, task=1))
    go = tmp_path / "go"
    urgent = f"until [ -e {shlex.quote(str(go))} ]; do sleep 0.1; done"
    words = ("sbatch", "--partition=urgent", "--exclusive", "--output=/dev/null", f"--wrap={urgent}")
    subprocess.run(words, env=dict(place.environ), check=True, capture_output=True)
    wait_until(where.task(1).attempt(1).exit.exists)
    wait_until(lambda: states(place, run)[1] == "PENDING")
    assert read_json(where.task(1).attempt(1).exit)["cause"] == "cancel"
    go.touch()

    assert place.wait(run)[0] == 0
    assert states(place, run) == dict.fromkeys(range(3), "COMPLETED")
    assert workers(where, 2) == [0, 0]
    assert read_json(where.task(1).exit)["attempts"] == 2
    assert told(where, 1) == [{"lr": 0.25, "long": 0.25}] * 2
    assert [len(told(where, trial)) for trial in (0, 2)] == [1, 1]


def test_a_trial_that_the_limit_cuts_for_good_ends_the_job_and_is_retried_from_its_checkpoint(local, wait_until):
    run, where = sweeps_at(local)("0.5,0.25,2.0", "--workers", "1", "--time", "10m", long=0.25)
    after = local.serried("submit", "--cluster", "local", "--after", f"{run}/2", "--", "true")
    assert (after.returncode, f"no job can wait for trial `{run}/2`" in after.stderr) == (2, True)
    wait_until(lambda: local.log(run, task=1))
    local.ask_to_save(run, task=1)
    local.wait(run)
    assert states(local, run) == {0: "COMPLETED", 1: "TIMEOUT", 2: "COMPLETED"}
    assert workers(where, 3) == [0, 0, 1]

    again = local.serried("sweep", "retry", run).stdout.strip()
    assert local.wait(again)[0] == 0
    assert told(RunDirectory(local.directory(again)), 1) == [{"lr": 0.25, "long": 0.25}]
    assert states(local, run) == dict.fromkeys(range(3), "COMPLETED")


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (("--parallel", "2"), "`--workers` and `--parallel` exclude each other"),
        (
            ("--set", "limit.restarts=1", "--set", "limit.continue=successor"),
            "with `--workers`, a trial cannot continue in a job of its own",
        ),
    ],
)
def test_workers_are_refused_where_a_job_cannot_run_several_trials(local, flags, problem):
    words = ("--grid", "lr=1,2", "--workers", "2", *flags, "--cluster", "local", "--", "true")
    done = local.serried("sweep", "--time", "10m", *words)
    assert done.returncode == 2
    assert problem in done.stderr
