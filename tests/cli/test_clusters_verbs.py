"""`serried clusters learn` and `check` beside a real Slurm."""

from __future__ import annotations

import json
import os
import time
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from command_line import check_json
from serried.base.errors import SerriedError, UsageError
from serried.cli import config


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path


def run(*words: str) -> Result:
    done = CliRunner().invoke(config.clusters_command, words, catch_exceptions=False)
    check_json(["clusters", *words], done.stdout)
    return done


@pytest.mark.slurm
@pytest.mark.usefixtures("in_lab")
def test_a_profile_learnt_from_slurm_is_used_checked_and_replaced_only_when_told(
    folder: Path, monkeypatch: pytest.MonkeyPatch
):
    today = time.gmtime()
    monkeypatch.setattr(time, "gmtime", lambda *_: today)
    printed = run("learn")
    table = tomllib.loads(printed.stdout)
    expected = ({"gpus": 4, "cpus": 16, "mem": "65536M", "nodes": 4}, "lab", 4)
    assert (table["partitions"]["lab"], table["default_partition"], table["gpus_per_node"]) == expected
    saved = run("learn", "oak", "--save")
    path = folder / "config" / "serried" / "clusters" / "oak.toml"
    assert (saved.stdout, path.read_text()) == (f"{path}\n", printed.stdout)
    assert (run("check", "oak").exit_code, run("check", "oak").stdout) == (0, "")
    expected = {"name": "oak", "scheduler": "slurm", "origin": str(path), "here": True, "retired": False}
    assert json.loads(run("list", "--json").stdout)["clusters"][0] == expected

    path.write_text(printed.stdout.replace("cpus = 16", "cpus = 32") + "\n[partitions.gone]\ntime = '1h'\n")
    lines = path.read_text().splitlines()
    checked = run("check", "--json")
    value = json.loads(checked.stdout)
    cpus = {"key": "partitions.lab.cpus", "profile": "32", "cluster": "16"}
    gone = {"key": "partitions.gone", "profile": "described", "cluster": "not there"}
    differences = [
        {**cpus, "origin": f"{path}:{lines.index('cpus = 32') + 1}"},
        {**gone, "origin": f"{path}:{len(lines)}"},
    ]
    assert (checked.exit_code, value["name"], value["differences"]) == (1, "oak", differences)
    with pytest.raises(UsageError, match="exists already"):
        run("learn", "oak", "--save")
    assert run("learn", "oak", "--save", "--force").exit_code == 0
    assert run("check").exit_code == 0
    path.with_name("pine.toml").write_text('scheduler = "pbs"\n')
    with pytest.raises(UsageError, match="`pine` uses `pbs`, and the scheduler of this machine is `slurm`"):
        run("check", "pine")


@pytest.mark.usefixtures("folder")
def test_a_scheduler_that_is_away_or_missing_is_said_to_be(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("PATH", str(tmp_path))
    for word in ("learn", "check"):
        with pytest.raises(UsageError, match="this machine has neither PBS nor Slurm"):
            run(word)
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("sbatch", "sinfo"):
        (programs / name).write_text("#!/bin/sh\nexit 1\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}/bin")
    with pytest.raises(SerriedError) as caught:
        run("check", "slurm")
    assert (caught.value.exit_code, caught.value.message) == (3, "`sinfo` does not answer")


@pytest.mark.parametrize("name", ["../up", "-rf", "", "a b", "a\nb", "$(id)"])
@pytest.mark.usefixtures("in_lab")
def test_a_profile_is_not_written_under_a_name_that_is_none(folder: Path, name: str):
    with pytest.raises(UsageError, match="cannot be the name of a cluster"):
        run("learn", "--save", "--", name)
    assert not (folder / "config").exists()
