"""What is refused, with its place."""

from __future__ import annotations

import os
import traceback
from pathlib import Path

import pytest

from resolving import BARE, refusal, resolve
from serried import config
from serried.base.errors import ConfigError, UsageError
from serried.config import layers
from serried.config.values import Typed, guess
from serried.views import console
from tables import for_each


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
        (
            "[defaults.environment]\ninherit = 3",
            "serried.toml:2: `defaults.environment.inherit` must be names of environment variables, not `3`",
            None,
        ),
        (
            "[defaults.limit]\noutput_timeout = ['1h']",
            (
                "serried.toml:2: `defaults.limit.output_timeout` must be a duration such as `90m`, `1h30m` or "
                "`2-00:00:00`, not `['1h']`"
            ),
            None,
        ),
        ("resources = 3", "serried.toml:1: unknown key `resources`", "known here: `project`, `defaults`, "),
        ("defaults = 3", "serried.toml:1: `defaults` is a table, not a value", "write `[defaults]`"),
        (
            "[clusters.x]\nscheduler = 'slrum'",
            "serried.toml:2: `clusters.x.scheduler` must be `local`, `pbs` or `slurm`, not `slrum`",
            "did you mean `slurm`?",
        ),
        (
            "[defaults.environment.env]\n'A B' = 'x'",
            "serried.toml:2: `A B` cannot be the name of an environment variable",
            None,
        ),
        ("[defaults]\ncluster = 'locla'", "serried.toml:2: unknown cluster `locla`", "did you mean `local`?"),
        (
            "[defaults]\nworkdir = '../x'",
            "serried.toml:2: `workdir` must be inside the project, and `../x` is not",
            None,
        ),
        (
            '[experiments.a]\ncommand = "it\'s"',
            "serried.toml:2: `command` has a quote that is never closed",
            'or write a list of words: `command = ["python", "train.py"]`',
        ),
    ],
)
def test_what_a_file_says_wrong_is_named_with_its_line(folder: Path, text: str, message: str, hint: str | None):
    said, hinted = refusal(folder, text, command=None if "[experiments" in text else BARE)
    assert said == message
    assert hinted is None if hint is None else (hinted or "").startswith(hint)


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("resources.tasks_per_node = 4", "did you mean `ranks`?"),
        ("resources.max_restarts = 4", "did you mean `defaults.limit.restarts`?"),
        ("walltime = '1h'", "did you mean `defaults.resources.time`?"),
        ("environment.FOO = '1'", "did you mean `defaults.environment.env.FOO`?"),
        ("resources.gpus = '4:a100'", "the type of GPU has an own setting: --gpus 4 --gpu-type a100"),
        ("resources.time = '1 day'", "did you mean `1d`?"),
    ],
)
def test_words_of_other_tools_get_the_setting_that_means_the_same(folder: Path, key: str, hint: str):
    assert refusal(folder, f"[defaults]\n{key}")[1] == hint


def test_all_errors_of_a_file_are_named_at_once_each_with_its_hint(folder: Path, capsys: pytest.CaptureFixture[str]):
    lines = [
        "[experiments.a]",
        "command = 'a'",
        "seed = 'x'",
        "[experiments.a.resources]",
        "ntasks = 2",
        "memory = '1G'",
    ]
    with pytest.raises(ConfigError) as caught:
        resolve(folder, "\n".join(lines))
    console.print_error(caught.value)
    assert capsys.readouterr().err == (
        "error: serried.toml:3: `experiments.a.seed` must be a whole number from 0, not `x`\n"
        "\n"
        "error: serried.toml:5: unknown key `experiments.a.resources.ntasks`\n"
        "\n"
        "hint: did you mean `ranks`?\n"
        "\n"
        "error: serried.toml:6: unknown key `experiments.a.resources.memory`\n"
        "\n"
        "hint: did you mean `mem`?\n"
    )
    assert "hint: did you mean `mem`?" in traceback.format_exception(caught.value)[-1]
    with pytest.raises(ConfigError) as caught:
        resolve(folder, "[project]\n" + "".join(f"x{number} = 1\n" for number in range(14)))
    assert [other.message for other in caught.value.others][9:] == ["serried.toml: 4 more errors"]


def test_a_setting_of_the_program_is_recognised_on_the_command_line(folder: Path):
    assert refusal(folder, "", command=BARE, lr="0.1")[1] == "did you mean `config.lr`, a setting of your program?"
    assert refusal(folder, "", command=BARE, ntasks="2")[1] == "did you mean `resources.ranks`?"


def test_a_cluster_of_on_that_is_nearly_a_known_one_is_named(folder: Path):
    text = "[experiments.a]\ncommand = 'a'\n[experiments.a.on.{}.resources]\nranks = 4\n"
    assert resolve(folder, text.format("ceda")).warnings == (
        "`on.ceda` (serried.toml:4) names no cluster that is known here; did you mean `cedar`?",
    )
    assert resolve(folder, text.format("elsewhere")).warnings == resolve(folder, text.format("cedar")).warnings == ()
    notify = "[experiments.a]\ncommand = 'a'\n[defaults.notify]\non = ['fail']\ncommand = ['true']\n"
    assert resolve(folder, notify).warnings == ()


def test_a_program_is_not_taken_for_a_job_script(folder: Path):
    (folder / "train.py").write_text("print()\n")
    assert refusal(folder, "[experiments.a]\nscript = 'train.py'") == (
        "`train.py` does not begin with `#!` and an interpreter",
        'a program is a command: `-- python train.py`, or `command = "python train.py"`',
    )


def test_settings_of_experiments_that_do_not_run_are_checked_too(folder: Path):
    text = "[experiments.a]\ncommand = 'a'\n[experiments.b]\ncommand = 'b'\nlimit.notify = 'USR9'"
    assert refusal(folder, text, name="a")[0].startswith(
        "serried.toml:5: `experiments.b.limit.notify` must be a signal"
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
    assert (
        found.project.snapshot,
        found.experiment.limit.grace_seconds,
        found.cluster.site.kill_wait_seconds,
        found.experiment.seed,
    ) == (False, 60, 5, 7)


@pytest.mark.parametrize("key", ["", "resources.", "resources..nodes", "a b"])
def test_what_is_no_key_is_refused(folder: Path, key: str):
    with pytest.raises(UsageError, match="is not a key"):
        config.resolve(None, BARE, {key: 1}, None, folder, os.environ)


@for_each(("text", "value"), [("4", 4), ("true", True), ("'a'", "a"), ("2h", "2h"), ("a = b", "a = b"), ("", "")])
def test_text_from_the_command_line_is_toml_where_it_can_be(text: str, value: object):
    assert guess(text) == value


@for_each(
    ("key", "typed", "value"),
    [
        (("environment", "env", "X"), "true", "true"),
        (("environment", "env", "X"), "1.50", "1.50"),
        (("environment", "env", "X"), "1_000", "1_000"),
        (("environment", "env", "X"), "2026-01-02", "2026-01-02"),
        (("environment", "env", "X"), "[1, 2]", "[1, 2]"),
        (("environment", "env", "X"), '{"a" = 1}', '{"a" = 1}'),
        (("environment", "env", "X"), "'1'", "1"),
        (("resources", "comment"), "1.0", "1.0"),
        (("resources", "constraint"), "false", ("false",)),
        (("resources", "constraint"), '["a", "b"]', ("a", "b")),
        (("config", "x"), "true", True),
        (("config", "x"), "1.50", 1.5),
        (("clusters", "local", "match", "environ", "X"), "true", "true"),
    ],
)
def test_what_is_typed_for_a_setting_of_text_is_text(key: tuple[str, ...], typed: str, value: object):
    [(keys, setting)] = layers.from_overrides({".".join(key): Typed(typed)}).settings.items()
    assert (keys, setting.value) == (key, value)


def test_a_table_can_be_typed():
    settings = layers.from_overrides(
        {"environment.env": Typed('{A = "1"}'), "resources": Typed("{nodes = 2}")}
    ).settings
    assert {keys: setting.value for keys, setting in settings.items()} == {
        ("environment", "env", "A"): "1",
        ("resources", "nodes"): 2,
    }


def test_pyproject_serves_where_there_is_no_file_of_ours(folder: Path):
    (folder / "pyproject.toml").write_text(
        "[project]\nname = 'other'\n[tool.serried.project]\nname = 'ours'\n[tool.serried.defaults.resources]\nnode = 2"
    )
    with pytest.raises(ConfigError, match=r"^pyproject\.toml:6: unknown key `defaults\.resources\.node`\nhint: "):
        resolve(folder, command=BARE)


def test_a_broken_pyproject_that_does_not_mention_us_is_left_alone(folder: Path):
    (folder / "pyproject.toml").write_text("[project\n")
    assert resolve(folder, command=BARE).project.file is None


def test_a_queue_is_a_partition_by_its_other_name(folder: Path):
    text = "[defaults.resources]\nqueue = 'gpu'"
    assert resolve(folder, text, command=BARE, cluster="pbs").experiment.resources.partition == "gpu"
    assert resolve(folder, text, command=BARE, cluster="pbs", resources__partition="long").origins[
        "resources.partition"
    ].source == ("command line")
    assert refusal(folder, f"{text}\npartition = 'gpu'", command=BARE) == (
        "serried.toml:2: `defaults.resources.queue` and `partition` are the same setting",
        "keep one of them",
    )
