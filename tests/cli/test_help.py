"""The help: a first page, a screen for each command, and everything."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import click
from click.testing import CliRunner

import json_schemas
from serried import cli
from serried.cli import ACROSS, SHORT, VERBS, across, serried
from tables import for_each


def commands(command: click.Command, *path: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, *path, name)


COMMANDS = {
    " ".join(path): command
    for verb in VERBS
    if (top := serried.get_command(click.Context(serried), verb))
    for path, command in commands(top, verb)
}


@for_each("path", COMMANDS)
def test_a_short_help_fits_a_screen_and_a_long_one_has_every_option(path: str):
    run = partial(CliRunner().invoke, serried, terminal_width=80)
    short, long = (run([*path.split(), flag]).output for flag in ("-h", "--help"))
    lines = short.splitlines()
    assert (len(lines) <= 24, [line for line in lines + long.splitlines() if len(line) > 80]) == (True, [])
    assert lines[-1] == f"`serried {path} --help` shows everything."
    assert 1 <= len([line for line in lines if line.startswith("serried ")]) <= 3
    assert len([line for line in lines if line.startswith("  -")]) <= 12
    flags = {flag for param in COMMANDS[path].params for flag in (*param.opts, *param.secondary_opts) if flag[0] == "-"}
    assert [flag for flag in flags if flag not in long] == []


def test_the_table_of_short_helps_has_the_long_ones_alone():
    assert set(SHORT) == {path for path, command in COMMANDS.items() if len(command.params) > 15}


def test_every_command_says_what_it_does_across_the_link():
    named = [name for names in ACROSS.values() for name in names.split(", ")]
    assert (sorted({name.split()[0] for name in named}), set(named) - COMMANDS.keys()) == (sorted(VERBS), set())
    assert len(named) == len(set(named))
    assert [across(words.split()) for words in ("sweep lr.toml", "sweep show k3f9q2", "ps")] == [
        "submits", "reads", "reads",
    ]  # fmt: skip


def test_every_command_with_json_has_a_schema_of_it():
    with_json = {path for path, command in COMMANDS.items() if any("--json" in param.opts for param in command.params)}
    assert set(json_schemas.COMMANDS) == with_json | {"sweep"}  # `sweep` alone is `sweep submit`


def test_the_first_page_fits_a_screen_and_another_has_all_commands(said):
    first, everything = said(""), said("help --all")
    assert first == said("-h") == said("--help") == said("help")
    assert (len(first.splitlines()) < 24, max(map(len, first.splitlines())) <= 80) == (True, True)
    listed = re.compile(r"(?m)^  ([a-z][a-z-]+)  ")
    assert listed.findall(first) == " ".join(cli.FIRST.values()).split()
    assert len(VERBS) == 34
    assert listed.findall(everything) == list(VERBS)
    assert everything == said("--help --all")


def test_the_usual_switches_stand_before_the_command(said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "serried.toml").write_text('[experiments.train]\ncommand = "true"\n')
    assert said("-V") == said("--version")
    shown = said("-C project config")
    assert (shown, Path.cwd().name) == (said("config show"), "project")  # this process stays there
    monkeypatch.chdir(tmp_path)
    assert said("-C nowhere ps") == (
        "error: cannot start in `nowhere`: no such file or directory\n\n"
        "hint: `-C DIR` runs the command as if it was started in DIR\n"
    )
    assert said("ps -q") == "error: unknown option: `-q`\n\nhint: it stands before the command: serried -q ps\n"


def test_quiet_leaves_data_and_errors(said, make):
    assert said("-q ps") == ""
    assert said("-q show gone") == said("show gone")
    make(name="digits").ending()
    assert said("-q ps") == said("ps")
