"""The settings with which a sweep's trials run, and the advice to repeat one of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from building import a_failure
from serried.base.files import make_directory, write_json
from serried.schema.plan import Sweep

TOML = """
[experiments.train]
command = "python main.py"
resources = { ranks = 2, time = "3h" }
environment.env = { LEVEL = "7" }
metric = { name = "acc", from = 'stdout:acc=(.*)' }
"""
FILE = "program: train.py\nmetric: {name: acc, goal: maximize}\nparameters: {lr: {values: [1, 2]}}\n"
OTHER = "[experiments.other]\ncommand = 'x'\n"


@pytest.mark.usefixtures("_real_processes")
@pytest.mark.parametrize(
    ("toml", "file", "found"),
    [
        (TOML, FILE, ("train.py", 2, "stdout:acc=(.*)", False)),
        (TOML, FILE.replace("name: acc", "name: loss"), ("train.py", 2, "", False)),
        (TOML + OTHER, FILE, ("train.py", 1, "", True)),
        (TOML + OTHER, FILE + "experiment: train\nseeds: 3\n", ("train.py", 2, "stdout:acc=(.*)", False)),
        (TOML, FILE.replace("program: train.py\n", ""), ("main.py", 2, "stdout:acc=(.*)", False)),
        ("", FILE, ("train.py", 1, "", False)),
    ],
)
def test_a_sweep_with_its_own_command_keeps_the_settings_of_its_experiment(  # noqa: PLR0917 - a case and fixtures
    toml, file, found, serried, tmp_path, monkeypatch
):
    make_directory(tmp_path / "project")
    monkeypatch.chdir(tmp_path / "project")
    Path("serried.toml").write_text(toml, encoding="utf-8")
    for program in ("train.py", "main.py"):
        Path(program).touch()
    Path("sweep.yaml").write_text(file, encoding="utf-8")
    done = serried("sweep", "sweep.yaml", "--cluster", "local", "--dry-run", "--json")
    assert done.code == 0, done.err
    plan = json.loads(done.out)["plan"]
    warns = "names no experiment" in done.out
    assert (plan["command"][1], plan["allocation"]["ranks"], plan["sweep"]["source"], warns) == found
    assert bool(plan["environment"]["env"]) == (found[1] == 2)


@pytest.mark.parametrize(
    ("command", "trial", "advised"),
    [
        ("python train.py {args}", "/1", "python train.py --lr=0.1"),
        ("python train.py --rate={config.lr}", "/1", "python train.py --rate=0.1"),
        ("python train.py {args} {task}", "/1", "COMMAND"),
        ("python train.py {args_json_file}", "/1", "COMMAND"),
        ("python train.py {args}", "", "python train.py --lr=0.2"),
    ],
)
def test_a_failed_trial_is_tried_again_with_its_parameters(command, trial, advised, serried, make):
    made = make(nodes=1, ranks=1, indices=range(2), sweep=Sweep("k3f9q2", ("lr",)))
    write_json(made.record.directory.plan, made.plan._replace(command=tuple(command.split())).to_json())
    write_json(made.where.trials, [{"lr": 0.2}, {"lr": 0.1}])
    for task in (0, 1):
        made.ending("FAILED", task=task, exit_code=1, first_failure=a_failure(tail=["ValueError: loss is nan"]))
    said = serried("why", f"k3f9q2{trial}").out
    assert [line.partition("serried run -- ")[2] for line in said.splitlines() if "try it here" in line] == [advised]
