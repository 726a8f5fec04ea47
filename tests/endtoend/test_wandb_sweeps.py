"""Sweeps at W&B's service: the real agent and the real wandb in the trials, against the server of the tests."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from place import Place
from wandb_server import KEY, WandbServer

PROGRAM = """
import json, os, pathlib, sys, time, wandb
lr = float(sys.argv[1].partition("=")[2])
attempt = int(os.environ["SERRIED_ATTEMPT"])
with wandb.init(config={"lr": -1}) as run:
    run.log({"acc": lr, "attempt": attempt})
    seen = {"id": run.id, "sweep": run.sweep_id, "config": dict(run.config), "argv": sys.argv[1:]}
results = pathlib.Path(os.environ["SERRIED_RESULTS_DIR"])
(results / f"seen-{attempt}.json").write_text(json.dumps(seen))
if lr == 0.25 and attempt == 1:
    pathlib.Path(os.environ["SERRIED_CHECKPOINT_DIR"], "0.ckpt").write_text("weights")
    while not pathlib.Path(os.environ["SERRIED_STOP_FILE"]).exists():
        time.sleep(0.05)
    sys.exit(85)
sys.exit(3 if lr > 1 else 0)
"""
SWEEP = "method: random\nprogram: train.py\nparameters: {lr: {min: 0, max: 3}}\n"
TOML = """
[experiments.train]
command = "python train.py"
limit = { restarts = 1 }
track = { sinks = ["wandb"], project = "other" }

[sweeps.tune]
id = "ada/digits/x1y2z3"
experiment = "train"
run_cap = 3
parallel = 3
"""

pytestmark = pytest.mark.torch  # wandb takes seconds to start


def test_each_task_is_an_agent_that_trains_one_trial(local: Place, wait_until):
    trials = [{"lr": 0.5, "model.width": 64}, {"lr": 2.0, "model.width": 8}, {"lr": 0.25, "model.width": 16}]
    with WandbServer(SWEEP, trials) as server:
        local.environ.update(WANDB_BASE_URL=server.url, WANDB_API_KEY=KEY)
        (local.project / "train.py").write_text(PROGRAM)
        (local.project / "serried.toml").write_text(TOML)
        submitted = local.serried("sweep", "tune", "--cluster", local.cluster)
        assert submitted.returncode == 0, submitted.stderr
        run = submitted.stdout.strip()
        directory = local.directory(run)
        wait_until(lambda: list(directory.glob("tasks/*/checkpoints/0.ckpt")))
        cut = next(directory.glob("tasks/*/checkpoints/0.ckpt")).parents[1]
        local.ask_to_save(run, task=int(cut.name))
        assert local.wait(run)[0] == 1
        shown = json.loads(local.serried("sweep", "show", run, "--json").stdout)
        page = local.serried("sweep", "show", run).stderr

    states = {trial["parameters"]["lr"]: (trial["state"], trial["parameters"]) for trial in shown["trials"]}
    assert states == {trial["lr"]: ("FAILED" if trial["lr"] > 1 else "COMPLETED", trial) for trial in trials}, (
        local.why(run)
    )
    assert f"{server.url}/ada/digits/sweeps/x1y2z3" in page
    for name, parameters in server.handed.items():
        assert server.runs[name]["sweep"] == "x1y2z3"
        assert server.runs[name]["group"] == run
        assert [row["acc"] for row in server.runs[name]["history"] if "acc" in row][-1] == parameters["lr"]
    seen = [json.loads(path.read_text()) for path in sorted(directory.glob("tasks/*/results/seen-*.json"))]
    assert len(seen) == 4
    for each in seen:
        drawn = server.handed[each["id"]]
        assert each["config"] == drawn
        assert each["argv"] == [f"--{key}={value}" for key, value in drawn.items()]
    again = [json.loads(path.read_text()) for path in sorted((cut / "results").glob("seen-*.json"))]
    assert again[0] == again[1], "the second attempt is the same trial, under the same id"
    assert len(server.handed) == 3

    for path in directory.rglob("*"):
        if path.is_file() and "private" not in path.parts:
            assert KEY.encode() not in path.read_bytes(), path


def test_a_stop_request_ends_the_trial_by_sigterm_and_its_task_fails(local: Place, wait_until):
    program = "import pathlib, time\npathlib.Path('begun').touch()\ntime.sleep(600)\n"
    with WandbServer(SWEEP, [{"lr": 0.5}]) as server:
        local.environ.update(WANDB_BASE_URL=server.url, WANDB_API_KEY=KEY)
        (local.project / "train.py").write_text(program)
        run = local.serried("sweep", "ada/digits/x1y2z3", "--count", "1", "--cluster", "local").stdout.strip()
        directory = local.directory(run)
        wait_until(lambda: list(directory.rglob("begun")))
        server.to_stop.update(server.handed)
        assert local.wait(run)[0] != 0
    (trial,) = json.loads(local.serried("sweep", "show", run, "--json").stdout)["trials"]
    assert (trial["state"], trial["parameters"]) == ("FAILED", {"lr": 0.5})
    assert local.show(f"{run}/0")["exit_code"] == 143


def test_a_file_becomes_a_sweep_at_wandb_and_surplus_agents_end_without_a_trial(local: Place):
    with WandbServer(SWEEP, []) as server:
        local.environ.update(WANDB_BASE_URL=server.url, WANDB_API_KEY=KEY)
        (local.project / "sweep.yaml").write_text(f"project: my digits\n{SWEEP}")
        words = ("sweep", "sweep.yaml", "--wandb", "--cluster", "local")
        refused = local.serried(*words)
        assert (refused.returncode, "a sweep at W&B needs a number of trials" in refused.stderr) == (2, True)
        assert local.serried(*words, "--count", "1", "--dry-run").returncode == 0
        assert server.created == []
        assert local.serried("sweep", "ada/my digits/x1y2z3", "--count", "1", "--dry-run").returncode == 0
        lacks_a_module = local.serried(*words, "--count", "1", "--set", "environment.modules=['nosuch']")
        assert lacks_a_module.returncode != 0
        assert server.created == [], "a request that cannot be submitted leaves no sweep behind"
        (local.project / "serried.toml").write_text("")
        (local.project / ".env").write_text(f"WANDB_API_KEY={KEY}\n")
        (local.project / ".env").chmod(0o600)
        local.environ.pop("WANDB_API_KEY")
        (local.project / "below").mkdir()
        (local.project / "sweep.yaml").rename(local.project / "below" / "sweep.yaml")
        done = replace(local, project=local.project / "below").serried(*words, "--count", "1")
        assert done.returncode == 0, done.stderr
        assert "created the sweep `ada/my digits/x1y2z3` at W&B" in done.stderr
        assert "random" in server.created[0]["config"]
        run = done.stdout.strip()
        assert local.wait(run)[0] == 0
    shown = json.loads(local.serried("sweep", "show", run, "--json").stdout)
    assert [(trial["state"], trial["parameters"]) for trial in shown["trials"]] == [("COMPLETED", {})]
    assert shown["service"] == "ada/my digits/x1y2z3"
    assert local.directory(run).parent.name.startswith("my-digits-"), "the folder is named after the project"


def test_without_an_answer_from_wandb_nothing_is_submitted(local: Place):
    local.environ.update(WANDB_BASE_URL="http://127.0.0.1:9", WANDB_API_KEY=KEY)
    (local.project / "sweep.yaml").write_text(SWEEP)
    done = local.serried("sweep", "sweep.yaml", "--wandb", "--count", "1", "--cluster", "local")
    assert (done.returncode, "cannot connect to `http://127.0.0.1:9`" in done.stderr) == (3, True)
    assert KEY not in done.stdout + done.stderr
