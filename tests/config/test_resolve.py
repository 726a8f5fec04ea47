"""What runs, and which value holds."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from resolving import BARE, fake_slurm, refusal, resolve
from serried.base.errors import UsageError
from serried.config import definitions
from serried.schema.names import JOB_VARIABLES
from serried.schema.plan import Data


def test_a_command_needs_no_file_at_all(folder: Path):
    found = resolve(folder, command=BARE)
    expected = ("project", None, "train", BARE)
    assert (found.project.name, found.project.file, found.experiment.name, found.experiment.command) == expected


def test_the_only_experiment_needs_no_name(folder: Path):
    found = resolve(folder, "[experiments.digits]\ncommand = 'python train.py'")
    assert (found.experiment.name, found.experiment.command) == ("digits", BARE)


def test_what_a_rank_finds_in_its_environment_is_no_setting(folder: Path, monkeypatch: pytest.MonkeyPatch):
    for name in JOB_VARIABLES:
        monkeypatch.setenv(name, "/somewhere")
    assert resolve(folder, command=BARE).experiment.data.planned == Data()


@pytest.mark.parametrize(
    ("text", "name", "expected"),
    [
        (
            "[experiments.a]\ncommand='a'\n[experiments.b]\ncommand='b'",
            None,
            ("which experiment?", "name one of `a`, `b`"),
        ),
        ("[experiments.digits]\ncommand='a'", "digit", ("unknown experiment `digit`", "did you mean `digits`?")),
        ("", "train.py", ("unknown experiment `train.py`", "a command goes after `--`: -- python train.py")),
    ],
)
def test_an_experiment_needs_its_name(folder: Path, text: str, name: str | None, expected: tuple[str, str]):
    assert refusal(folder, text, name=name) == expected


SCRIPT = "#!/bin/bash\n#SBATCH --time=1\n"


@pytest.mark.parametrize(
    ("name", "message", "hint"),
    [
        ("trian.sbatch", "no file and no experiment has the name `trian.sbatch`", "did you mean `train.sbatch`?"),
        ("jobs/tran", "no file and no experiment has the name `jobs/tran`", "did you mean `jobs/train`?"),
        ("other.sh", "no file and no experiment has the name `other.sh`", "a command goes after `--`"),
        ("train", "unknown experiment `train`", "did you mean `train.sbatch`?"),
        ("", "unknown experiment ``", "a command goes after `--`"),
        ("jobs", "`jobs` is a folder, and not an experiment or a job script", "a command goes after `--`"),
        (
            "notes",
            "`notes` is not a job script: it has neither a `#!` line nor directives",
            "begin the script with `#!/bin/bash`; a command goes after `--`",
        ),
        (
            "train.sbatch",
            "`train.sbatch` is a job script, not an experiment",
            "submit it by itself: serried submit train.sbatch",
        ),
    ],
)
def test_a_word_that_names_no_experiment_and_no_script(folder: Path, name: str, message: str, hint: str):
    (folder / "train.sbatch").write_text(SCRIPT)
    (folder / "jobs").mkdir()
    (folder / "jobs" / "train").write_text(SCRIPT)
    (folder / "notes").write_text("text")
    assert refusal(folder, "", name=name) == (message, hint)


def test_an_unreadable_script_is_not_taken_for_another_file(folder: Path, monkeypatch: pytest.MonkeyPatch):
    (folder / "a b.sbatch").write_text(SCRIPT)
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # noqa: ARG005 - root may read every file
    message = "`a b.sbatch` cannot be read: permission denied"
    assert refusal(folder, "", name="a b.sbatch") == (message, "chmod u+r 'a b.sbatch'")


def test_a_script_after_the_dashes_is_warned_about(folder: Path):
    (folder / "train.sbatch").write_text(SCRIPT)
    assert resolve(folder, command=("./train.sbatch", "a")).warnings[0] == (
        "`./train.sbatch` is a job script, but after `--` each rank runs it, without its directives: "
        "`serried submit ./train.sbatch` submits the script"
    )


def test_nothing_to_run_says_what_to_do(folder: Path):
    with pytest.raises(UsageError) as caught:
        resolve(folder)
    assert (caught.value.message, caught.value.hint) == (
        "nothing to run: no `serried.toml` here or above",
        "start with `serried init`",
    )


LAYERS = """
[defaults.resources]
nodes = 1
constraint = ["a", "b"]
time = "1h"
cpus = 3
[defaults.environment.env]
A = "defaults"
B = "defaults"
[experiments.digits]
command = "x"
[experiments.digits.resources]
nodes = 2
constraint = "c"
[experiments.digits.environment]
env = { B = "experiment" }
[experiments.digits.on.local.resources]
nodes = 3
[experiments.digits.on.elsewhere.resources]
nodes = 4
[clusters.local.resources]
cpus = 7
qos = "long"
"""


def test_an_experiment_inherits_and_overrides_scalars_lists_and_names_of_tables(folder: Path):
    found = resolve(folder, f"{LAYERS}\n[clusters.local]\nignores = []", resources__time="2h")
    resources = found.experiment.resources
    expected = (3, ("c",), 7200, 3, "long")
    assert (resources.nodes, resources.constraint, resources.time, resources.cpus, resources.qos) == expected
    assert found.experiment.environment.planned.env == {"A": "defaults", "B": "experiment"}


def test_each_value_knows_where_it_comes_from(folder: Path):
    found = resolve(folder, LAYERS, resources__time="2h")
    shown = {key: str(origin) for key, origin in found.origins.items() if not key.startswith("cluster.")}
    assert shown == {
        "resources.qos": "serried.toml:23",
        "resources.nodes": "serried.toml:18",
        "resources.constraint": "serried.toml:14",
        "resources.cpus": "serried.toml:6",
        "resources.time": "command line",
        "environment.env.A": "serried.toml:8",
        "environment.env.B": "serried.toml:16",
        "command": "serried.toml:11",
        "cluster": "recognised",
    }


def test_sources_override_each_other_in_the_order_that_is_promised(folder: Path, monkeypatch: pytest.MonkeyPatch):
    fake_slurm(folder, monkeypatch)
    home = folder.parent / "home"
    for place, name in ((home / "site" / "serried", "site"), (home / "config" / "serried", "user")):
        place.mkdir(parents=True)
        (place / "config.toml").write_text(f"[defaults.resources]\naccount = '{name}'")
    monkeypatch.setenv("SBATCH_ACCOUNT", "scheduler")
    monkeypatch.setenv("SERRIED_RESOURCES_ACCOUNT", "environment")
    text = "[defaults.resources]\naccount = 'project'"
    seen = [resolve(folder, text, command=BARE, resources__account="command line").experiment.resources.account]
    seen += [resolve(folder, text, command=BARE).experiment.resources.account]
    monkeypatch.delenv("SERRIED_RESOURCES_ACCOUNT")
    seen += [resolve(folder, text, command=BARE).experiment.resources.account]
    seen += [resolve(folder, "", command=BARE).experiment.resources.account]
    (home / "config" / "serried" / "config.toml").unlink()
    seen += [resolve(folder, "", command=BARE).experiment.resources.account]
    (home / "site" / "serried" / "config.toml").unlink()
    seen += [resolve(folder, "", command=BARE).experiment.resources.account]
    monkeypatch.delenv("SBATCH_ACCOUNT")
    seen += [resolve(folder, "", command=BARE).experiment.resources.account]
    assert seen == ["command line", "environment", "project", "user", "site", "scheduler", None]


def test_a_profile_beats_what_the_scheduler_was_told(folder: Path, monkeypatch: pytest.MonkeyPatch):
    fake_slurm(folder, monkeypatch)
    monkeypatch.setenv("SBATCH_PARTITION", "mine")
    monkeypatch.setenv("USER", "ada")
    found = resolve(folder, command=BARE, cluster="plai")
    assert (found.experiment.resources.partition, str(found.origins["resources.partition"])) == (
        "plai",
        "profile `plai`",
    )


@pytest.mark.parametrize("name", ["SBATCH_RESERVATION", "SALLOC_RESERVATION"])
def test_what_the_scheduler_was_told_counts_on_slurm_alone(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str):
    monkeypatch.setenv(name, "maintenance")
    assert resolve(folder, command=BARE).experiment.resources.reservation is None
    fake_slurm(folder, monkeypatch)
    found = resolve(folder, command=BARE)
    assert (found.experiment.resources.reservation, str(found.origins["resources.reservation"])) == (
        "maintenance",
        name,
    )


def test_memory_said_another_way_displaces_what_was_inherited(folder: Path):
    text = "[defaults.resources]\nmem = '4G'\n[experiments.a]\ncommand = 'a'\nresources.mem_per_node = 'all'"
    resources = resolve(folder, text).experiment.resources
    assert (resources.mem, resources.mem_per_node) == (None, 0)


def test_memory_said_two_ways_at_once_is_refused(folder: Path):
    text = "[defaults.resources]\nmem = '4G'\nmem_per_cpu = '1G'"
    assert refusal(folder, text, command=BARE) == (
        "serried.toml:3: `resources.mem` and `resources.mem_per_cpu` exclude each other",
        "keep one of them",
    )


OF_EACH_TABLE = {
    "resources.cpus": 7,
    "environment.module_purge": True,
    "limit.restarts": 3,
    "notify.on": ["stall"],
    "launch.kind": "single",
    "container.contained": True,
    "data.results": ["*.csv"],
    "checkpoint.keep": 5,
    "track.sinks": ["wandb"],
    "metric.name": "loss",
    "sampling.every": "9s",
    "report.mute": ["gpu-low"],
}


def test_every_table_of_an_experiment_may_stand_in_a_clusters_and_in_a_variable(
    folder: Path, monkeypatch: pytest.MonkeyPatch
):
    told = {f"clusters__local__{key.replace('.', '__')}": value for key, value in OF_EACH_TABLE.items()}
    by_cluster = resolve(folder, command=BARE, **told)
    for key, value in OF_EACH_TABLE.items():
        text = json.dumps(value) if isinstance(value, list) else str(value).lower()
        monkeypatch.setenv(f"SERRIED_{key.replace('.', '_').upper()}", text)
    by_variable = resolve(folder, command=BARE)
    assert {key.partition(".")[0] for key in OF_EACH_TABLE} == set(definitions.PARTS)
    expected = {**OF_EACH_TABLE, "sampling.every": 9}
    assert {key: _held(by_cluster.experiment, key) for key in OF_EACH_TABLE} == expected
    assert {key: _held(by_variable.experiment, key) for key in OF_EACH_TABLE} == expected


def _held(experiment: definitions.Experiment, key: str) -> object:
    table, _, name = key.partition(".")
    value = definitions.values_of(getattr(experiment, table))[name]
    return list(value) if isinstance(value, tuple) else value


EMPTIED = """
[defaults.resources]
account = "def-ada"
gpu_type = "v100l"
constraint = ["ib"]
time = "3h"

[experiments.train]
command = "python train.py"
resources.ranks = 1

[experiments.train.on.slurm.resources]
account = ""
constraint = ""
time = ""
"""


def test_an_empty_value_takes_away_what_a_weaker_source_set(folder: Path, monkeypatch: pytest.MonkeyPatch):
    fake_slurm(folder, monkeypatch)
    monkeypatch.setenv("SBATCH_ACCOUNT", "def-site")
    monkeypatch.setenv("SERRIED_RESOURCES_GPU_TYPE", "")
    here = resolve(folder, EMPTIED, cluster="cedar").experiment.resources
    assert (here.account, here.constraint, here.time) == ("def-ada", ("ib",), 3 * 3600)
    there = resolve(folder, cluster="slurm")
    asked = there.experiment.resources
    assert (asked.account, asked.gpu_type, asked.constraint, asked.time) == (None, None, (), None)
    assert "resources.account" not in there.origins


def test_the_command_line_takes_a_setting_away_and_sets_it_again(folder: Path):
    text = "[experiments.a]\ncommand = 'a'\n[experiments.a.container]\nimage = 'a.sif'\nruntime = 'apptainer'\n"
    assert not resolve(folder, text, container__image="").experiment.container.image
    assert resolve(folder, text, container__runtime="").experiment.container.runtime == ""


def test_one_of_several_ways_to_say_a_thing_is_taken_away_alone(folder: Path):
    text = "[defaults.resources]\nmem_per_cpu = '2G'\n[experiments.a]\ncommand = 'a'\n"
    asked = resolve(folder, text, resources__mem_per_node="").experiment.resources
    assert (asked.mem_per_cpu, asked.mem_per_node) == (2048, None)


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("limit.continue", "`limit.continue` must be `requeue`"),
        ("limit.restarts", "`limit.restarts` must be a whole number from 0"),
        ("environment.module_purge", "`environment.module_purge` must be true or false"),
    ],
)
def test_a_setting_that_always_has_a_value_cannot_be_taken_away(folder: Path, key: str, message: str):
    with pytest.raises(UsageError) as caught:
        resolve(folder, command=BARE, **{key: ""})
    assert caught.value.message.startswith(message)


def test_a_folder_of_modulefiles_is_the_projects(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GROUP", "/group")
    text = """
[experiments.a]
command = 'a'
environment.modules = ["use modules", "use $GROUP/its own", "cuda/12", "unload gcc", "use"]
"""
    expected = (f"use {folder}/modules", "use /group/its own", "cuda/12", "unload gcc", "use")
    assert resolve(folder, text).experiment.environment.planned.modules == expected
    nowhere = text.replace("$GROUP", "$NOWHERE")
    assert refusal(folder, nowhere)[0].endswith("`environment.modules` names `$NOWHERE`, which is not set here")
