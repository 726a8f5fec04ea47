"""Sweeps, from a range of settings to the best trial, on this machine and on Slurm."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

HOSTILE = 'a b\'c "$(id)" {seed} %j data/{split}/x {seed?--x} {resume:--resume=} {{seed}} {args_json}'

TOML = f"""\
[experiments.train]
command = [{json.dumps(sys.executable)}, "train.py"]

[sweeps.tune]
experiment = "train"
metric = {{ name = "acc", goal = "maximize" }}
parameters.lr.values = [0.5, 0.25, 2.0]
parameters.model.parameters.name.values = [{json.dumps(HOSTILE)}]
"""

SCRIPT = """\
import json, os, sys
from serried.train.metrics import Metrics, default_path

told = json.loads(os.environ["SERRIED_CONFIG"])
log = Metrics(default_path(os.environ, 0))
for step in range(3):
    log.log(step, {"acc": told["lr"] + step / 100})
log.close()
with open(os.environ["SERRIED_RESULTS_DIR"] + "/told.json", "w") as file:
    json.dump([told, sys.argv[1:]], file)
sys.exit(3 if told["lr"] > 1 else 0)
"""


def test_each_trial_gets_its_parameters_and_the_table_ranks_them(place):
    (place.project / "serried.toml").write_text(TOML)
    (place.project / "train.py").write_text(SCRIPT)
    run = place.serried("sweep", "tune", "--cluster", place.cluster).stdout.strip()
    assert place.wait(run)[0] == 1

    for task, lr in enumerate((0.5, 0.25, 2.0)):
        told, argv = json.loads((place.directory(run) / f"tasks/{task}/results/told.json").read_text())
        assert told == {"lr": lr, "model.name": HOSTILE}
        assert argv == [f"--lr={lr}", f"--model.name={HOSTILE}"]

    shown = json.loads(place.serried("sweep", "show", run, "--json").stdout)
    ranked = [(trial["trial"], trial["state"], trial["value"]) for trial in shown["trials"]]
    assert ranked == [(0, "COMPLETED", 0.52), (1, "COMPLETED", 0.27), (2, "FAILED", 2.02)]
    assert "exited with status 3" in shown["trials"][2]["message"]

    best = place.serried("sweep", "show", run, "--best", "--json").stdout
    assert json.loads(best) == {"lr": 0.5, "model.name": HOSTILE}
    again = place.submit("train", "--from-sweep", run, "--set", "config.extra=1")
    assert place.wait(again)[0] == 0
    told, argv = json.loads((place.directory(again) / "results/told.json").read_text())
    assert told == {"lr": 0.5, "model.name": HOSTILE, "extra": 1}
    assert argv == ["--lr=0.5", f"--model.name={HOSTILE}"]
    again = place.submit("train", "--from-sweep", f"{run}/1", "--set", "config.lr=0.75")
    assert place.wait(again)[0] == 0
    told, argv = json.loads((place.directory(again) / "results/told.json").read_text())
    assert (told["lr"], argv[0]) == (0.75, "--lr=0.75")


def test_parameters_go_where_the_command_says(local):
    (local.project / "train.py").write_text(SCRIPT)
    words = ["--width={config.width}", "{args_no_hyphens}", "--json={args_json}", "--file={args_json_file}"]
    grid = ["--grid", "lr=0.5", "--grid", "width=8", "--grid", "flag=true"]
    run = local.serried("sweep", *grid, "--cluster", "local", "--", sys.executable, "train.py", *words).stdout.strip()
    assert local.wait(run)[0] == 0
    _, argv = json.loads((local.directory(run) / "tasks/0/results/told.json").read_text())
    file = argv.pop().removeprefix("--file=")
    rest = {"lr": 0.5, "flag": True}
    assert argv == ["--width=8", "lr=0.5", "flag=True", f"--json={json.dumps(rest)}"]
    assert json.loads(Path(file).read_text()) == {"lr": 0.5, "width": 8, "flag": True}


def test_the_metric_of_any_program_is_read_where_it_says_it(local):
    words = ("--cluster", "local", "--", "bash", "-c")
    grid = ("--grid", "lr=0.5,0.25")
    printing = ('echo "val_acc=0.1"; echo "final val_acc=$0 of 1"', "{config.lr}")
    source = ("--metric", "val_acc:max", "--metric-from", r"stdout:val_acc=(\S+)")
    run = local.serried("sweep", *grid, *source, *words, *printing).stdout.strip()
    assert local.wait(run)[0] == 0
    shown = json.loads(local.serried("sweep", "show", run, "--json").stdout)
    assert [(trial["trial"], trial["value"]) for trial in shown["trials"]] == [(0, 0.5), (1, 0.25)]

    (local.project / "serried.toml").write_text(
        "[experiments.train]\nshell = true\n"
        """command = 'echo "{\\"loss\\": {config.lr}}" > {results}/m.json'\n"""
        "[sweeps.tune]\nparameters.lr.values = [0.5, 0.25]\n"
        "metric = {name = 'loss', from = 'file:m.json'}\n"
    )
    run = local.serried("sweep", "tune", "--cluster", "local").stdout.strip()
    assert local.wait(run)[0] == 0
    shown = json.loads(local.serried("sweep", "show", run, "--json").stdout)
    assert [(trial["trial"], trial["value"]) for trial in shown["trials"]] == [(1, 0.25), (0, 0.5)]


def test_a_bayesian_search_draws_each_trial_when_it_starts(place):
    (place.project / "train.py").write_text(SCRIPT)
    (place.project / "serried.toml").write_text(f"""\
[experiments.train]
command = [{json.dumps(sys.executable)}, "train.py", "{{args}}", "{{args_json_file}}"]

[sweeps.tune]
method = "bayes"
run_cap = 4
parallel = 2
metric = {{ name = "acc", goal = "maximize" }}
parameters.lr = {{ min = 0.1, max = 0.9 }}
parameters.model.parameters.name.values = [{json.dumps(HOSTILE)}]
""")
    done = place.serried("sweep", "tune", "--cluster", place.cluster)
    assert done.returncode == 0, done.stderr
    run = done.stdout.strip()
    assert place.wait(run)[0] == 0
    shown = json.loads(place.serried("sweep", "show", run, "--json").stdout)
    for trial in shown["trials"]:
        told, argv = json.loads((place.directory(run) / f"tasks/{trial['trial']}/results/told.json").read_text())
        assert told == trial["parameters"] == json.loads(Path(argv.pop()).read_text())
        assert argv == [f"--lr={told['lr']}", f"--model.name={HOSTILE}"]
        assert trial["value"] == told["lr"] + 0.02
    assert len({trial["parameters"]["lr"] for trial in shown["trials"]}) == 4

    added = place.serried("sweep", "add", run, "--count", "1").stdout.strip()
    assert place.wait(added)[0] == 0
    shown = json.loads(place.serried("sweep", "show", run, "--json").stdout)
    assert [trial["id"] for trial in shown["trials"] if trial["trial"] == 4] == [f"{added}/4"]
    assert (place.directory(run) / "search" / "journal.log").exists()
    assert not (place.directory(added) / "search").exists()


def test_trials_that_are_worse_end_early(local):
    (local.project / "train.py").write_text(
        "import sys, time\nlr = float(sys.argv[1].partition('=')[2])\n"
        "for step in range(60_000 if lr < 0.5 else 3):\n    print(f'acc={lr}', flush=True); time.sleep(0.1)\n"
    )
    (local.project / "sweep.yaml").write_text(
        f"command: [{json.dumps(sys.executable)}, train.py, '${{args}}']\nmethod: grid\n"
        "metric: {name: acc, goal: maximize, from: 'stdout:acc=(.*)'}\nparameters: {lr: {values: [0.9, 0.8, 0.1]}}\n"
        "early_terminate: {type: median, min_iter: 1, min_trials: 2}\n"
    )
    run = local.serried("sweep", "sweep.yaml", "--parallel", "1", "--cluster", "local").stdout.strip()
    assert local.wait(run)[0] == 0
    shown = json.loads(local.serried("sweep", "show", run, "--json").stdout)
    assert [(trial["parameters"]["lr"], trial["state"]) for trial in shown["trials"]] == [
        (0.9, "COMPLETED"), (0.8, "COMPLETED"), (0.1, "PRUNED"),
    ]  # fmt: skip
    assert local.serried("sweep", "retry", run).stdout == ""


def test_variables_in_the_command_of_a_wandb_file_are_filled_by_the_rank(local):
    program = "import os, sys\nsys.exit(sys.argv[1:] != ['--token=' + os.environ['TOKEN'], '--lr=1'])\n"
    (local.project / "train.py").write_text(program)
    (local.project / "sweep.yaml").write_text(
        f"command: [{json.dumps(sys.executable)}, train.py, '--token=${{envvar:TOKEN}}', '${{args}}']\n"
        "parameters: {lr: {value: 1}}\n"
    )
    words = ("sweep", "sweep.yaml", "--cluster", "local")
    refused = local.serried(*words)
    assert (refused.returncode, "refusing to submit" in refused.stderr) == (2, True)
    unset = local.serried(*words, "-y")
    assert "warning: the command uses `{env.TOKEN}`, and `TOKEN` is not set here" in unset.stderr
    assert local.wait(unset.stdout.strip())[1]["exit_code"] == 78
    log = local.serried("logs", f"{unset.stdout.strip()}/0").stdout
    assert "serried: the command has {env.TOKEN}, and TOKEN is not set here" in log

    run = replace(local, environ={**local.environ, "TOKEN": "s3 cret"}).serried(*words).stdout.strip()
    assert local.wait(run)[0] == 0, local.why(run)
    for path in local.directory(run).rglob("*"):
        assert not path.is_file() or b"s3 cret" not in path.read_bytes(), path


def test_a_method_replaces_that_of_a_file_and_a_part_of_a_grid_has_its_size(local):
    (local.project / "sweep.json").write_text('{"method": "grid", "parameters": {"lr": {"values": [1, 2, 3]}}}')

    def plan(*options: str) -> str:
        return local.serried("sweep", "sweep.json", "--dry-run", "--cluster", "local", *options, "--", "true").stderr

    assert "sweep        4 trials: lr (3 values)\n" in plan("--method", "random", "--count", "4")
    assert "sweep        3 trials: lr (3 values)\n" in plan("--count", "4")
    assert "sweep        2 trials: lr (3 values), 2 of 3 combinations\n" in plan("--count", "2")


def test_failed_trials_are_repeated_and_further_draws_added_in_one_table(local):
    (local.project / "train.py").write_text(SCRIPT)
    words = ("--cluster", "local", "--", sys.executable, "train.py")
    options = ("--random", "lr=0.1..1.4", "--grid", "width=8,16", "--count", "3", "--metric", "acc:max")
    run = local.serried("sweep", *options, *words).stdout.strip()
    local.wait(run)
    first = json.loads(local.serried("sweep", "show", run, "--json").stdout)["trials"]
    failed = {trial["trial"] for trial in first if trial["state"] == "FAILED"}
    assert 0 < len(failed) < 6, "the draws of seed 0 are on both sides of 1"

    script = (local.project / "train.py").read_text()
    (local.project / "train.py").write_text(script.replace("3 if", "0 if"))
    retried = local.serried("sweep", "retry", run, "--new-code").stdout.strip()
    assert local.wait(retried)[0] == 0
    added = local.serried("sweep", "add", run, "--count", "1", "--new-code").stdout.strip()
    assert local.wait(added)[0] == 0

    shown = json.loads(local.serried("sweep", "show", added, "--json").stdout)
    assert shown["runs"] == [run, retried, added]
    trials = {trial["trial"]: trial for trial in shown["trials"]}
    assert sorted(trials) == list(range(8))
    assert {trial["state"] for trial in trials.values()} == {"COMPLETED"}
    assert {number for number, trial in trials.items() if trial["id"].startswith(retried)} == failed
    assert {number for number, trial in trials.items() if trial["id"].startswith(added)} == {6, 7}
    assert all(trials[trial["trial"]]["parameters"] == trial["parameters"] for trial in first)
    assert trials[6]["parameters"]["lr"] == trials[7]["parameters"]["lr"] != trials[0]["parameters"]["lr"]

    again = local.submit("--from-sweep", f"{run}/7", "--", sys.executable, "train.py")
    assert local.wait(again)[0] == 0
    _, argv = json.loads((local.directory(again) / "results/told.json").read_text())
    assert argv == [f"--{name}={value}" for name, value in trials[7]["parameters"].items()]
    assert "has no trial 8" in local.serried("submit", "--from-sweep", f"{run}/8", "--", "true").stderr

    nothing = local.serried("sweep", "retry", run)
    assert (nothing.returncode, nothing.stdout) == (0, "")
    assert "no trial of sweep" in nothing.stderr
    assert local.serried("sweep", "add", local.submit("--", "true"), "--count", "1").returncode == 2
