"""Programs of Hydra: their parameters from a sweep, and a multirun as an array."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

VALUES = {
    "lr": [0.1, 1e-05],
    "model.name": ["a b,c{d}[e]='\"$HOME ${x} \\${y} {seed} {args_hydra} \\"],
    "empty": [""],
    "text": ["null"],
    "nothing": [None],
    "flag": [True],
    "sizes": [[1, "a,b", None]],
    "db": ["mysql"],
}

PROGRAM = """\
import json, os
import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf

import losses

@hydra.main(version_base="1.3", config_path="conf", config_name="config")
def train(config):
    found = OmegaConf.to_container(config, resolve=True)
    with open(os.path.join(HydraConfig.get().runtime.output_dir, "found.json"), "w") as file:
        json.dump(found, file)
    return losses.loss(config.lr)

train()
"""

LOSSES = """\
def loss(lr):
    if lr > 1:
        raise ValueError(f"lr={lr} diverges")
    return (lr - 0.5) ** 2
"""

CONFIG = """\
defaults: [db: sqlite, _self_]
lr: 1.0
model: {name: none}
empty: full
text: full
nothing: something
flag: false
sizes: [0]
"""


def write_program(project):
    (project / "conf" / "db").mkdir(parents=True)
    (project / "conf" / "config.yaml").write_text(CONFIG)
    for name in ("sqlite", "mysql"):
        (project / "conf" / "db" / f"{name}.yaml").write_text(f"driver: {name}\n")
    (project / "train.py").write_text(PROGRAM)
    (project / "losses.py").write_text(LOSSES)


def test_a_program_of_hydra_gets_each_parameter_of_a_sweep_as_it_is(local):
    write_program(local.project)
    command = [sys.executable, "train.py", "hydra.run.dir={results}", "{args_hydra}"]
    parameters = {name: {"values": values} for name, values in VALUES.items()}
    sweep = {"method": "grid", "command": command, "parameters": parameters}
    (local.project / "sweep.yaml").write_text(json.dumps(sweep))
    submitted = local.serried("sweep", "sweep.yaml", "--cluster", "local")
    assert submitted.returncode == 0, submitted.stderr
    run = submitted.stdout.strip()
    assert local.wait(run)[0] == 0
    for task, lr in enumerate(VALUES["lr"]):
        results = local.directory(run) / f"tasks/{task}/results"
        expected = {name: values[0] for name, values in VALUES.items() if name not in ("model.name", "db")}
        expected |= {"lr": lr, "model": {"name": VALUES["model.name"][0]}, "db": {"driver": "mysql"}}
        assert json.loads((results / "found.json").read_text()) == expected
        assert (results / ".hydra" / "overrides.yaml").exists()


def test_a_table_whose_keys_hydra_misreads_is_refused_at_submit(local):
    (local.project / "sweep.yaml").write_text("parameters: {sizes: {values: [{a: 1}, {b: [{1: 2}]}]}}\n")
    words = ("sweep", "sweep.yaml", "--cluster", "local", "--dry-run", "--", "python", "train.py")
    refused = local.serried(*words, "{args_hydra}")
    message = "error: the key `1` of `sizes` cannot be in an override of Hydra\n\nhint: `{args_json_file}` passes"
    assert (refused.returncode, refused.stderr.startswith(message)) == (2, True)
    (local.project / "train.py").touch()
    assert local.serried(*words, "{args_hydra}", "{config.sizes}").returncode == 0
    assert local.serried(*words, "{args_json_file}").returncode == 0


def multirun(place, *overrides):
    words = (sys.executable, "train.py", "-m", "hydra/launcher=serried", f"hydra.launcher.cluster={place.cluster}")
    done = subprocess.run(
        [*words, *overrides], cwd=place.project, env=dict(place.environ), capture_output=True, text=True, check=False
    )
    assert "as run" in done.stdout, done.stderr
    (run,) = json.loads(place.serried("ps", "--all", "--json").stdout)["runs"]
    return done, run


def test_a_multirun_is_an_array_whose_outputs_are_results(place):
    write_program(place.project)
    done, run = multirun(place, "lr=0.1,0.9", "db=mysql", "hydra.launcher.ranks=2", "hydra.launcher.parallel=1")
    assert done.returncode == 0, done.stderr
    assert f"as run {run['id']}: serried show" in done.stdout
    assert run["name"] == "train"
    plan = place.show(run["id"])["plan"]
    assert (plan["allocation"]["ranks"], plan["array"]["parallel"]) == (2, 1)
    for task, lr in enumerate((0.1, 0.9)):
        results = place.directory(run["id"]) / f"tasks/{task}/results"
        found = json.loads((results / "found.json").read_text())
        assert (found["lr"], found["db"]) == (lr, {"driver": "mysql"})
    assert len(list((place.project / "multirun").rglob("found.json"))) == 0


def test_a_job_that_fails_fails_its_task_and_the_multirun(local):
    write_program(local.project)
    (local.project / "serried.toml").write_text("[experiments.long.resources]\ntime = '1m'\n")
    done, run = multirun(local, "lr=0.1,1.5,0.2", "hydra.launcher.experiment=long")
    assert done.returncode == 1
    assert "ValueError: lr=1.5 diverges" in done.stderr
    assert run["experiment"] == "long"
    tasks = [local.show(f"{run['id']}/{task}")["state"] for task in range(3)]
    assert tasks == ["COMPLETED", "FAILED", "COMPLETED"]


def test_without_waiting_the_jobs_use_the_code_and_settings_of_the_submit(local):
    write_program(local.project)
    done, run = multirun(local, "lr=0.1,0.9", "hydra.launcher.wait=false", f"hydra.sweep.dir={local.project}/out")
    assert done.returncode == 0, done.stderr
    shutil.rmtree(local.project / "conf")
    (local.project / "losses.py").unlink()
    assert local.wait(run["id"])[0] == 0
    assert [json.loads((local.project / f"out/{n}/found.json").read_text())["lr"] for n in (0, 1)] == [0.1, 0.9]
