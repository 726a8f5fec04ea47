"""`serried config`, `serried clusters`, `serried completion`, and the flags made from the definitions."""

from __future__ import annotations

import json
import re
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import json_schemas
from command_line import check_json
from serried.base.errors import UsageError
from serried.cli import config, docs, options
from serried.cli import config as config_verb
from serried.config import definitions
from tables import for_each

TEXT = """
[project]
name = "digits"
[experiments.train]
command = ["python", "train.py"]
[experiments.train.resources]
ranks = 2
time = "90m"
mem = "10G"
[experiments.train.environment.env]
A = "1"
WANDB_API_KEY = "canary"
[clusters.pine]
root = "/scratch"
gpus_per_node = 4
[clusters.pine.partitions.gpu]
time = "1d"
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made = tmp_path / "project"
    made.mkdir()
    (made / "serried.toml").write_text(TEXT)
    monkeypatch.chdir(made)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("SERRIED_LOCAL_SLOTS", "8")
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    return made


def out(command: click.Command, *words: str) -> str:
    printed = CliRunner().invoke(command, words, catch_exceptions=False).stdout
    check_json(["clusters" if command is config.clusters_command else "config", *words], printed)
    return printed


def test_settings_are_shown_with_their_origin():
    shown = out(config_verb.command, "show", "--all", "--nodes", "1").splitlines()
    lines = [re.sub(" {2,}", "  ", line) for line in shown]
    assert [line for line in lines if not line.endswith(" default")] == [
        "KEY  VALUE  ORIGIN",
        "project.name  digits  serried.toml:3",
        "command  python train.py  serried.toml:5",
        "cluster  local  recognised",
        "resources.nodes  1  command line",
        "resources.ranks  2  serried.toml:7",
        "resources.mem  10G  serried.toml:9",
        "resources.time  1h30m  serried.toml:8",
        "environment.env.A  1  serried.toml:11",
        "environment.env.WANDB_API_KEY  (not shown)  serried.toml:12",
        "cluster.scheduler  local  profile `local`",
        "cluster.root  /data/serried  XDG_DATA_HOME",
        "cluster.kill_wait  30s  profile `local`",
        "cluster.gpus_per_node  0  this machine",
        "cluster.cpus_per_node  8  this machine",
    ]
    assert {"seed  0  default", "report.mute  -  default", "launch.kind  agent  default"} < set(lines)


def test_without_all_the_size_of_the_run_and_what_something_sets_are_shown_as_the_plan_has_them():
    short = json.loads(out(config_verb.command, "show", "--json", "--cluster", "pine", "--set", "limit.total_time=2d"))
    rows = {row["key"]: (row["value"], row["text"], row["origin"]) for row in short["settings"]}
    assert {key: rows[key] for key in rows if key.startswith(("resources", "limit", "seed", "launch"))} == {
        "resources.nodes": (1, "1", "default"),
        "resources.gpus": (0, "0", "default"),
        "resources.ranks": (2, "2", "serried.toml:7"),
        "resources.cpus": (2, "2", "default"),
        "resources.mem": (10240, "10G", "serried.toml:9"),
        "resources.time": (5400, "1h30m", "serried.toml:8"),
        "limit.restarts": (31, "31", "default"),
        "limit.total_time": (172800, "2d", "command line"),
        "launch.kind": ("agent", "agent", "default"),
    }
    short = json.loads(out(config_verb.command, "show", "--json", "--cluster", "cedar"))
    assert "this cannot be submitted: jobs on cluster `cedar` must name an account" in short["warnings"]


def test_explain_adds_the_meaning_from_the_definitions():
    text = out(config_verb.command, "show", "--explain")
    assert "\nresources.time = 1h30m  (serried.toml:8)\n    Time limit. Default: 1h; none on local.\n" in text


def test_settings_of_the_training_are_shown_with_theirs_and_none_is_hidden():
    said = out(config_verb.command, "show", "--json", "--set", "config.key_size=[8, 4]", "--set", "config.lr=1e-3")
    rows = {row["key"]: row for row in json.loads(said)["settings"] if row["key"].startswith("config.")}
    expected = {"config.key_size": ([8, 4], "[8, 4]", "command line"), "config.lr": (0.001, "0.001", "command line")}
    assert {key: (row["value"], row["text"], row["origin"]) for key, row in rows.items()} == expected


def test_json_gives_values_in_seconds_and_mebibytes():
    value = json.loads(out(config_verb.command, "show", "train", "--json"))
    rows = {row["key"]: row for row in value["settings"]}
    assert (value["schema"], rows["resources.time"], rows["resources.mem"]["value"]) == (
        1,
        {"key": "resources.time", "value": 5400, "text": "1h30m", "origin": "serried.toml:8", "source": "project"},
        10240,
    )


def test_settings_of_every_table_are_shown_without_values_that_sound_secret():
    lines = out(config_verb.command, "show", "--all").splitlines()
    shown = {line.partition(".")[0] for line in lines if "." in line.split()[0]}
    assert shown == {"project", *definitions.PARTS, "cluster"}
    for text in ("\n".join(lines), out(config_verb.command, "show", "--json")):
        assert ("canary" in text, "WANDB_API_KEY" in text) == (False, True)


def test_clusters_are_listed_and_ours_is_marked():
    assert out(config.clusters_command) == (
        """\
   CLUSTER      SCHEDULER  DESCRIBED IN
   pine         slurm      serried.toml
   cedar        slurm      shipped with Serried; retired
   fir          slurm      shipped with Serried
   graham       slurm      shipped with Serried; retired
   ibex         slurm      shipped with Serried
*  local        local      shipped with Serried
   narval       slurm      shipped with Serried
   nibi         slurm      shipped with Serried
   pbs          pbs        shipped with Serried
   plai         slurm      shipped with Serried
   satori       slurm      shipped with Serried
   slurm        slurm      shipped with Serried
   sockeye      slurm      shipped with Serried
   sockeye-pbs  pbs        shipped with Serried; retired
"""
    )
    assert out(config.clusters_command, "--json") == out(config.clusters_command, "list", "--json")


def test_a_cluster_is_shown_with_its_partitions_and_what_each_value_comes_from():
    assert out(config.clusters_command, "show", "pine") == (
        """\
KEY             VALUE     ORIGIN
name            pine
scheduler       slurm     profile `slurm`
root            /scratch  serried.toml:14
gpu_option      gres      profile `slurm`: MIT Satori's Slurm guide, DSL-Lab/HPC_helper and ammunk/hpc ask so
kill_wait       30s       profile `slurm`: Slurm's default KillWait
gpus_per_node   4         serried.toml:15
limit.continue  requeue   default

PARTITION  TIME
gpu        1d
"""
    )

    value = json.loads(out(config.clusters_command, "show", "pine", "--json"))
    partition = value["cluster"]["partitions"]["gpu"]
    assert {key: held for key, held in partition.items() if held is not None} == {"time": 86400}


def test_each_command_has_a_valid_schema_of_its_json_and_another_one_is_refused():
    jsonschema = pytest.importorskip("jsonschema", reason="make .venv/test installs it")
    assert Path(config.__file__).parents[1].joinpath("views/json_schemas.json").read_text() == json_schemas.text()
    for command in json_schemas.COMMANDS:
        jsonschema.Draft7Validator.check_schema(json.loads(out(config_verb.command, "schema", *command.split())))
    lab = "did you mean `serried config schema lab status`?"
    for word, hint in (("lap status", lab), ("x", "commands with `--json` have one")):
        with pytest.raises(UsageError) as caught:
            out(config_verb.command, "schema", word)
        assert (caught.value.message, caught.value.hint) == (f"`serried {word} --json` has no JSON Schema", hint)


@for_each(("shell", "word"), [("bash", "complete"), ("zsh", "compdef"), ("fish", "complete")])
def test_each_shell_has_its_completion(shell: str, word: str):
    script = out(docs.completion_command, shell)
    assert word in script
    assert "_SERRIED_COMPLETE" in script


@click.command()
@options.resources
@options.common
def verb(*, cluster: str | None, name: str | None, settings: tuple[str, ...], **values: object) -> None:
    click.echo(json.dumps([cluster, name, options.overrides(values, settings)]))


def test_each_resource_has_its_flag():
    flags = {flag for parameter in verb.params for flag in parameter.opts if flag.startswith("--")}
    of_resources = {options.flag(key) for key in definitions.keys(definitions.Resources)}
    assert flags == of_resources | {"--cluster", "--launch", "--queue", "--name", "--set"}


def test_an_empty_flag_takes_its_setting_away_unless_it_is_an_amount():
    given = options.overrides({"gpu_type": "", "constraint": ("",)})
    assert given == {"resources.gpu_type": "", "resources.constraint": ""}
    with pytest.raises(UsageError, match=r"`--nodes` must be a whole number"):
        options.overrides({"nodes": ""})


def test_flags_become_overrides_and_beat_set():
    line = "--nodes 2 --time 2h --constraint a --constraint b --exclusive --cluster pine"
    line += " --set resources.nodes=9 --set limit.grace=1m --set project.snapshot=false"
    assert json.loads(out(verb, *line.split())) == [
        "pine",
        None,
        {
            "resources.nodes": "2",
            "limit.grace": "1m",
            "project.snapshot": "false",
            "resources.time": "2h",
            "resources.constraint": ["a", "b"],
            "resources.exclusive": True,
        },
    ]


@for_each(
    ("words", "message", "hint"),
    [
        (["--nodes", "two"], "`--nodes` must be a whole number from 1, not `two`", None),
        (
            ["--time", "60"],
            "`--time` must be a duration such as `90m`, `1h30m` or `2-00:00:00`, not `60`",
            "did you mean `60m`, `60h` or `60s`?",
        ),
        (["--time", "0"], "`--time` must be a duration such as `90m`, `1h30m` or `2-00:00:00`, not `0`", None),
        (["--set", "nodes"], "`--set nodes` is not `KEY=VALUE`", "for example `--set resources.nodes=4`"),
    ],
)
def test_a_wrong_flag_is_named_as_it_was_typed(words: list[str], message: str, hint: str | None):
    with pytest.raises(UsageError) as caught:
        out(verb, *words)
    assert (caught.value.message, caught.value.hint) == (message, hint)
