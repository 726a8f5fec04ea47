from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from serried import config
from serried.config import Resolved, sources
from serried.errors import ConfigError, UsageError

BARE = ("python", "train.py")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project's folder in which no Slurm is on PATH."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    made = tmp_path / "project"
    made.mkdir()
    return made


def resolve(
    folder: Path,
    text: str | bytes | None = None,
    *,
    name: str | None = None,
    command: tuple[str, ...] | None = None,
    cluster: str | None = None,
    **overrides: Any,
) -> Resolved:
    """Resolve in `folder` with `text` as its serried.toml; overrides have `__` for dots."""
    if text is not None:
        (folder / "serried.toml").write_bytes(text.encode() if isinstance(text, str) else text)
    given = {key.replace("__", "."): value for key, value in overrides.items()}
    return config.resolve(name, command, given, cluster, folder, os.environ)


def refusal(folder: Path, text: str | bytes, **options: Any) -> tuple[str, str | None]:
    with pytest.raises(UsageError) as caught:
        resolve(folder, text, **options)
    return caught.value.message, caught.value.hint


def fake_slurm(folder: Path, monkeypatch: pytest.MonkeyPatch, sinfo: str = "") -> None:
    """Put commands on PATH that make this look like a Slurm."""
    programs = folder.parent / "bin"
    programs.mkdir()
    for name, says in (("sbatch", ""), ("sinfo", sinfo)):
        (programs / name).write_text(f"#!/bin/sh\ncat <<'END'\n{says}\nEND\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")


def test_a_command_needs_no_file_at_all(folder: Path):
    found = resolve(folder, command=BARE)
    assert (found.project.name, found.project.file, found.experiment.name, found.experiment.command) == (
        "project",
        None,
        "train",
        BARE,
    )


def test_the_only_experiment_needs_no_name(folder: Path):
    found = resolve(folder, "[experiments.digits]\ncommand = 'python train.py'")
    assert (found.experiment.name, found.experiment.command) == ("digits", BARE)


def test_several_experiments_need_a_name(folder: Path):
    text = "[experiments.a]\ncommand='a'\n[experiments.b]\ncommand='b'"
    assert refusal(folder, text) == ("which experiment?", "name one of `a`, `b`")


def test_an_unknown_experiment_is_compared_with_the_known_ones(folder: Path):
    text = "[experiments.digits]\ncommand='a'"
    assert refusal(folder, text, name="digit") == ("there is no experiment `digit`", "did you mean `digits`?")


def test_a_script_in_the_place_of_an_experiment_is_shown_how_to_run(folder: Path):
    assert refusal(folder, "", name="train.py") == (
        "there is no experiment `train.py`",
        "a command goes after `--`: `-- python train.py`",
    )


def test_nothing_to_run_says_what_to_do(folder: Path):
    with pytest.raises(UsageError) as caught:
        resolve(folder)
    assert (caught.value.message, caught.value.hint) == (
        "nothing to run: there is no `serried.toml` here",
        "give a command, `-- python train.py`, or begin with `serried init`",
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
    found = resolve(folder, LAYERS, resources__time="2h")
    resources = found.experiment.resources
    assert (resources.nodes, resources.constraint, resources.time, resources.cpus, resources.qos) == (
        3,
        ("c",),
        7200,
        3,
        "long",
    )
    assert found.experiment.environment.env == {"A": "defaults", "B": "experiment"}


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
        "serried.toml:3: `resources.mem` and `resources.mem_per_cpu` say the same thing",
        "keep one of them",
    )


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("[project]\nnmae = 'x'", "serried.toml:2: unknown key `project.nmae`", "did you mean `name`?"),
        ("[projct]", "serried.toml:1: unknown key `projct`", "did you mean `project`?"),
        (
            "[experiments.a]\ncommand = 'a'\nnodes = 2",
            "serried.toml:3: unknown key `experiments.a.nodes`",
            "it belongs in the table `experiments.a.resources`",
        ),
        (
            "[defaults.resources]\n\ngpus = 'four'",
            "serried.toml:3: `defaults.resources.gpus` must be a whole number from 0, not `four`",
            None,
        ),
        (
            "[defaults]\nresources = { time = 60 }",
            (
                "serried.toml:2: `defaults.resources.time` must be a duration such as `90m`, `1h30m` or "
                "`2-00:00:00`, not `60`"
            ),
            "did you mean `60m`, `60h` or `60s`?",
        ),
        ("resources = 3", "serried.toml:1: unknown key `resources`", "known here: `project`, `defaults`, "),
        ("defaults = 3", "serried.toml:1: `defaults` is a table, not a value", "write `[defaults]`"),
        (
            "[clusters.x]\nscheduler = 'slrum'",
            "serried.toml:2: `clusters.x.scheduler` must be `slurm` or `local`, not `slrum`",
            "did you mean `slurm`?",
        ),
        (
            "[defaults.environment.env]\n'A B' = 'x'",
            "serried.toml:2: `A B` cannot be the name of an environment variable",
            None,
        ),
        ("[defaults]\ncluster = 'locla'", "serried.toml:2: there is no cluster `locla`", "did you mean `local`?"),
        (
            "[defaults]\nworkdir = '../x'",
            "serried.toml:2: `workdir` must be inside the project, and `../x` is not",
            None,
        ),
        (
            '[experiments.a]\ncommand = "it\'s"',
            "serried.toml:2: `command` has a quote that is never closed",
            "a list of words needs no quotes",
        ),
    ],
)
def test_what_a_file_says_wrong_is_named_with_its_line(folder: Path, text: str, message: str, hint: str | None):
    said, hinted = refusal(folder, text, command=None if "[experiments" in text else BARE)
    assert said == message
    assert hinted is None if hint is None else (hinted or "").startswith(hint)


def test_settings_of_experiments_that_do_not_run_are_checked_too(folder: Path):
    text = "[experiments.a]\ncommand = 'a'\n[experiments.b]\ncommand = 'b'\nlimit.signal = 'USR9'"
    assert refusal(folder, text, name="a")[0].startswith(
        "serried.toml:5: `experiments.b.limit.signal` must be a signal"
    )


def test_a_wrong_variable_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SERRIED_RESOURCES_NODE", "4")
    assert refusal(folder, "", command=BARE) == (
        "unknown key `resources.node` (from `SERRIED_RESOURCES_NODE`)",
        "did you mean `nodes`?",
    )


def test_variables_of_a_job_that_we_are_in_are_not_settings(folder: Path, monkeypatch: pytest.MonkeyPatch):
    for name in ("SERRIED_RUN_ID", "SERRIED_RESULTS_DIR", "SERRIED_ATTEMPT", "SERRIED_STOP_FILE"):
        monkeypatch.setenv(name, "x")
    assert resolve(folder, command=BARE).cluster.name == "local"


def test_set_reaches_every_setting(folder: Path):
    found = resolve(
        folder, "", command=BARE, project__snapshot=False, limit__grace="1m", clusters__local__kill_wait="5s", seed=7
    )
    assert (found.project.snapshot, found.experiment.limit.grace, found.cluster.kill_wait, found.experiment.seed) == (
        False,
        60,
        5,
        7,
    )


@pytest.mark.parametrize("key", ["", "resources.", "resources..nodes", "a b"])
def test_what_is_no_key_is_refused(folder: Path, key: str):
    with pytest.raises(UsageError, match="is no key"):
        config.resolve(None, BARE, {key: 1}, None, folder, os.environ)


@pytest.mark.parametrize(
    ("text", "value"), [("4", 4), ("true", True), ("'a'", "a"), ("2h", "2h"), ("a = b", "a = b"), ("", "")]
)
def test_text_from_the_command_line_is_toml_where_it_can_be(text: str, value: object):
    assert sources.guess(text) == value


def test_pyproject_serves_where_there_is_no_file_of_ours(folder: Path):
    (folder / "pyproject.toml").write_text(
        "[project]\nname = 'other'\n[tool.serried.project]\nname = 'ours'\n[tool.serried.defaults.resources]\nnode = 2"
    )
    with pytest.raises(ConfigError, match=r"^pyproject\.toml:6: unknown key `defaults\.resources\.node`$"):
        resolve(folder, command=BARE)


def test_a_broken_pyproject_that_does_not_mention_us_is_left_alone(folder: Path):
    (folder / "pyproject.toml").write_text("[project\n")
    assert resolve(folder, command=BARE).project.file is None


def test_a_command_typed_in_a_subfolder_runs_there_and_an_experiment_at_the_top(folder: Path):
    (folder / "serried.toml").write_text("[experiments.a]\ncommand = 'a'")
    (folder / "sub" / "folder").mkdir(parents=True)
    bare = resolve(folder / "sub" / "folder", command=BARE)
    named = resolve(folder / "sub" / "folder", name="a")
    assert (bare.project.directory, bare.experiment.workdir, bare.project.file) == (
        str(folder),
        "sub/folder",
        "../../serried.toml",
    )
    assert (named.project.directory, named.experiment.workdir) == (str(folder), ".")


def test_a_command_for_a_shell_stays_one_line(folder: Path):
    found = resolve(folder, "[experiments.a]\ncommand = 'echo $HOME | wc'\nshell = true")
    assert (found.experiment.command, found.warnings) == (("echo $HOME | wc",), ())


def test_a_list_of_words_is_no_line_for_a_shell(folder: Path):
    text = "[experiments.a]\ncommand = ['echo', 'x']\nshell = true"
    assert (
        refusal(folder, text)[0] == "serried.toml:3: `shell` wants one line of text, and the command is a list of words"
    )


def test_words_after_the_dashes_are_no_line_for_a_shell_whatever_the_experiment_says(folder: Path):
    found = resolve(folder, "[experiments.a]\ncommand = 'x'\nshell = true", name="a", command=("echo", "a b"))
    assert (found.experiment.command, found.experiment.shell) == (("echo", "a b"), False)


def test_a_variable_that_no_shell_fills_in_is_pointed_out(folder: Path):
    found = resolve(folder, command=("python", "train.py", "--data", "$SLURM_TMPDIR/x"))
    (warning,) = found.warnings
    assert warning == (
        "the command says `$SLURM_TMPDIR` and no shell fills it in: use a placeholder such as `{data}` or `{results}`, "
        "or set `shell = true`"
    )


HOSTILE = ["it's", "a b", "é☃", "$(id)", "-rf", "a\\b", "x#y", "%j", "a\nb", "n" * 300, "trailing ", "a/../../b"]


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_kept_as_they_are(folder: Path, name: str):
    import json

    quoted = json.dumps(name)
    found = resolve(folder, f"[project]\nname = {quoted}\n[experiments.{quoted}]\ncommand = [{quoted}]")
    assert (found.project.name, found.experiment.name, found.experiment.command) == (name, name, (name,))


def test_a_nul_character_can_be_given_to_no_program(folder: Path):
    message, _ = refusal(folder, '[experiments.a]\ncommand = ["a", "b\\u0000c"]')
    assert message == "serried.toml:2: `experiments.a.command` must not contain a NUL character"


def test_the_names_that_an_env_file_defines_are_known_and_its_values_are_not(folder: Path):
    (folder / ".env").write_text("WANDB_API_KEY='canary'\nexport B=2\n")
    found = resolve(folder, "[defaults.environment]\nenv_file = '.env'", command=BARE)
    environment = found.experiment.environment
    assert (environment.env_file, environment.env_file_names) == (str(folder / ".env"), ("WANDB_API_KEY", "B"))
    assert "canary" not in repr(found)


def test_a_root_under_home_on_a_cluster_warns(folder: Path, monkeypatch: pytest.MonkeyPatch):
    fake_slurm(folder, monkeypatch)
    monkeypatch.delenv("USER", raising=False)
    home = os.environ["HOME"]
    found = resolve(folder, command=BARE, resources__ranks=1)
    assert (found.cluster.root, [warning.split(",")[0] for warning in found.warnings]) == (
        f"{home}/serried",
        [f"run directories go to `{home}/serried`"],
    )


@pytest.mark.parametrize("variable", ["SCRATCH", "PSCRATCH"])
def test_run_directories_go_to_scratch_on_a_cluster(folder: Path, monkeypatch: pytest.MonkeyPatch, variable: str):
    fake_slurm(folder, monkeypatch)
    monkeypatch.setenv(variable, "/lustre/ada")
    found = resolve(folder, command=BARE, resources__ranks=1)
    assert (found.cluster.root, str(found.origins["cluster.root"]), found.warnings) == (
        "/lustre/ada/serried",
        variable,
        (),
    )


def test_run_directories_go_to_the_users_data_at_home(folder: Path, monkeypatch: pytest.MonkeyPatch):
    assert resolve(folder, command=BARE).cluster.root == f"{os.environ['XDG_DATA_HOME']}/serried"
    monkeypatch.delenv("XDG_DATA_HOME")
    assert resolve(folder, command=BARE).cluster.root == f"{os.environ['HOME']}/.local/share/serried"


def test_a_root_may_name_variables_and_must_be_absolute(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("WORK", "/w/ada")
    assert resolve(folder, "[clusters.local]\nroot = '${WORK}/runs'", command=BARE).cluster.root == "/w/ada/runs"
    assert refusal(folder, "[clusters.local]\nroot = '$NOWHERE/x'", command=BARE)[0] == (
        "serried.toml:2: `root` names `$NOWHERE`, which is not set here"
    )
    assert refusal(folder, "[clusters.local]\nroot = 'runs'", command=BARE)[0] == (
        "serried.toml:2: `root` must be an absolute path, not `runs`"
    )


def test_a_job_without_gpus_is_no_surprise_where_slurm_did_not_answer(folder: Path, monkeypatch: pytest.MonkeyPatch):
    fake_slurm(folder, monkeypatch)
    monkeypatch.setenv("SCRATCH", "/lustre/ada")
    warning = "nobody said whether `slurm` has GPUs, so none is asked for: say --gpus N, or --ranks N for CPUs"
    seen = [resolve(folder, command=BARE).warnings]
    seen += [resolve(folder, command=BARE, resources__ranks=2).warnings]
    assert seen == [(warning,), ()]


def test_slurm_is_asked_for_its_partitions_once(folder: Path, monkeypatch: pytest.MonkeyPatch):
    fake_slurm(folder, monkeypatch, "gpu*|1-00:00:00|gpu:v100:4(S:0-1)\ncpu|2:00:00|(null)")
    cluster = resolve(folder, command=BARE).cluster
    assert (cluster.name, cluster.gpus_per_node, cluster.gpu_types, cluster.default_partition) == (
        "slurm",
        4,
        ("v100",),
        "gpu",
    )
    assert {name: (p.time, p.gpus) for name, p in cluster.partitions.items()} == {"gpu": (86400, 4), "cpu": (7200, 0)}


def test_a_users_profile_is_recognised_by_its_signs(folder: Path, monkeypatch: pytest.MonkeyPatch):
    fake_slurm(folder, monkeypatch)
    monkeypatch.setenv("CC_CLUSTER", "fir")
    text = "[clusters.fir]\nroot = '/scratch'\n[clusters.fir.match.environ]\nCC_CLUSTER = 'fir*'"
    assert resolve(folder, text, command=BARE).cluster.name == "fir"


def test_the_cluster_can_be_named_in_the_file_the_environment_and_on_the_command_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch
):
    text = "[defaults]\ncluster = 'cedar'"
    seen = [resolve(folder, text, command=BARE).cluster.name]
    monkeypatch.setenv("SERRIED_CLUSTER", "ibex")
    seen += [
        resolve(folder, text, command=BARE).cluster.name,
        resolve(folder, command=BARE, cluster="local").cluster.name,
    ]
    assert seen == ["cedar", "ibex", "local"]
