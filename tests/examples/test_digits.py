"""The example that the README runs: its options, its manners when interrupted, and what it reaches."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from place import Place
from serried.base import linux

EXAMPLE = Path(__file__).parents[2] / "examples" / "digits"
SCRIPT = EXAMPLE / "train.py"
EPOCH = re.compile(r"\[([#.]{20})\] epoch +(\d+)/(\d+)  accuracy (\d\.\d{3}) +[\d,]+ images/s")

pytestmark = pytest.mark.torch


def test_a_dry_run_with_every_option_makes_one_step_and_one_test(train):
    sizes = ("--batch-size", "8", "--test-batch-size", "50", "--width", "8", "--epochs", "3")
    done = train(SCRIPT, *sizes, "--seed", "7", "--cpu", "--backend", "gloo", "--dry-run")
    assert done.succeeded()
    first, epoch, last = [line for line in done.output.splitlines() if "not saving checkpoints" not in line]
    assert first == "2 ranks on cpu, 8 images each per step, 19,706 weights"
    assert EPOCH.fullmatch(epoch).groups()[:3] == ("#" * 20, "1", "1")
    assert re.fullmatch(r"accuracy=0\.\d{4}", last)


def test_a_wrong_option_is_refused_with_the_right_one(train):
    done = train(SCRIPT, "--test-batchsize", "50", ranks=1)
    assert done.statuses == [1]
    assert "did you mean `test_batch_size`?" in done.output


def test_asked_to_stop_it_saves_and_goes_on_in_the_middle_of_the_epoch(tmp_path: Path, train):
    stop = tmp_path / "stop"
    stop.write_text("limit")
    stopped = train(SCRIPT, "--epochs", "1", SERRIED_CHECKPOINT_DIR=tmp_path, SERRIED_STOP_FILE=stop)
    assert stopped.statuses == [85, 85]
    assert EPOCH.findall(stopped.output) == []
    assert [path.name for path in tmp_path.glob("step-*")] == ["step-1"]

    continued = train(SCRIPT, "--epochs", "1", SERRIED_CHECKPOINT_DIR=tmp_path)
    assert continued.succeeded()
    assert [epoch for _, epoch, *_ in EPOCH.findall(continued.output)] == ["1"]


def test_serried_run_trains_it_on_two_ranks_to_98_percent(tmp_path: Path, commands: Path):
    project = tmp_path / "digits"
    shutil.copytree(EXAMPLE, project)
    settings = ("--epochs", "12", "--width", "16")
    done = subprocess.run(
        [sys.executable, "-m", "serried", "run", "digits", "--json", "--", "python", "train.py", *settings],
        cwd=project,
        env={**os.environ, "PATH": f"{commands}:{os.environ['PATH']}", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (run,) = json.loads(done.stdout)["runs"]
    assert run["state"] == "COMPLETED"
    logged = Path(run["directory"], "attempts", "1", "node-0", "metrics-0.jsonl").read_text().splitlines()
    accuracies = [line["accuracy"] for line in map(json.loads, logged) if "accuracy" in line]
    assert len(accuracies) == 12
    assert accuracies[-1] >= 0.98
    assert f"accuracy={accuracies[-1]:.4f}" in done.stderr


def test_a_sweep_loses_nothing_when_ranks_of_two_trials_are_killed(tmp_path: Path, commands: Path, monkeypatch):
    project = tmp_path / "digits"
    shutil.copytree(EXAMPLE, project)
    monkeypatch.setenv("PATH", f"{commands}:{os.environ['PATH']}")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("SERRIED_LOCAL_DIR", str(tmp_path / "local"))
    monkeypatch.setenv("SERRIED_LOCAL_SLOTS", "2")
    place = Place("local", project, os.environ)
    smaller = ("--count", "4", "--ranks", "1", "--cpus", "1", "--grid", "epochs=1", "--grid", "width=8")
    run = place.serried("sweep", "tune", "--cluster", "local", *smaller).stdout.strip()

    killed: set[str] = set()
    while len(killed) < 2 and place.show(run)["state"] in ("PENDING", "RUNNING"):
        for pid, task in ranks(run):
            if task not in killed and len(killed) < 2 and not has_tested(place.directory(run) / "tasks" / task):
                with contextlib.suppress(ProcessLookupError):  # it has ended since
                    os.kill(pid, signal.SIGKILL)
                    killed.add(task)
        time.sleep(0.1)
    assert place.wait(run)[0] == 1
    trials = json.loads(place.serried("sweep", "show", run, "--json").stdout)["trials"]
    failed = {str(trial["trial"]) for trial in trials if trial["state"] == "FAILED"}
    assert failed
    assert failed <= killed  # a rank may have ended just before

    again = place.serried("sweep", "retry", run).stdout.strip()
    assert place.wait(again)[0] == 0
    shown = json.loads(place.serried("sweep", "show", run, "--json").stdout)
    assert sorted(trial["trial"] for trial in shown["trials"]) == [0, 1, 2, 3]
    assert {trial["state"] for trial in shown["trials"]} == {"COMPLETED"}
    assert {str(trial["trial"]) for trial in shown["trials"] if trial["id"].startswith(again)} == failed
    values = [trial["value"] for trial in shown["trials"]]
    assert values == sorted(values, reverse=True)
    assert all(0 < value <= 1 for value in values)


def has_tested(task: Path) -> bool:
    """Whether the rank has an accuracy, and is about to end."""
    return any("accuracy" in path.read_text() for path in task.glob("attempts/*/node-0/rank-0.log"))


def ranks(run: str) -> list[tuple[int, str]]:
    """Pids and tasks of the processes that run the script."""
    found = []
    for pid in linux.other_pids():
        variables = linux.environ(pid).split(b"\0")
        if f"SERRIED_RUN_ID={run}".encode() in variables and b"train.py" in linux.read(pid, "cmdline"):
            found += [(pid, each[13:].decode()) for each in variables if each.startswith(b"SERRIED_TASK=")]
    return found
