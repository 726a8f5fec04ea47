"""Former names of settings and options: still read, each with one note."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from serried import cli, config
from serried.errors import ConfigError

TABLE = """\
[experiments.train]
command = "python train.py"

[experiments.train.limit]
grace = "5s"
lead = "2m"
silence = "10m"

[experiments.train.data]
in_place = ["/datasets/imagenet"]
"""


@pytest.fixture(autouse=True)
def project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "serried.toml").write_text(TABLE)
    return tmp_path


def _resolve(overrides=None, **environ):
    return config.resolve("train", None, overrides or {}, "local", Path.cwd(), {**os.environ, **environ})


def test_a_former_key_sets_the_new_one_and_the_note_names_file_and_line():
    resolved = _resolve()
    limit = resolved.experiment.limit
    assert (limit.lead_seconds, limit.silence_seconds) == (120, 600)
    assert resolved.experiment.data.planned.in_place == ("/datasets/imagenet",)
    assert [note for note in resolved.notes if " is now " in note] == [
        "serried.toml:6: `lead` is now `warn_before`",
        "serried.toml:7: `silence` is now `output_timeout`",
        "serried.toml:10: `in_place` is now `require`",
    ]


def test_a_former_variable_and_a_former_flag_name_themselves():
    resolved = _resolve({"limit.silence": "1m"}, SERRIED_LIMIT_LEAD="30s")
    assert (resolved.experiment.limit.lead_seconds, resolved.experiment.limit.silence_seconds) == (30, 60)
    assert [note for note in resolved.notes if " is now " in note and "toml" not in note] == [
        "`SERRIED_LIMIT_LEAD` is now `SERRIED_LIMIT_WARN_BEFORE`",
        "`limit.silence` is now `limit.output_timeout`",
    ]


def test_both_names_at_once_are_an_error_at_their_line(project):
    (project / "serried.toml").write_text(TABLE.replace('grace = "5s"', 'warn_before = "1m"'))
    with pytest.raises(ConfigError) as error:
        _resolve()
    assert str(error.value).startswith(
        "serried.toml:6: `experiments.train.limit.lead` and `warn_before` are the same setting"
    )


def test_a_note_goes_to_stderr_and_json_stays_clean(project, monkeypatch, capsys):
    (project / "commands.txt").write_text("echo a\necho b\n")
    words = ["submit", "--each=commands.txt", "--cluster=local", "--set=project.snapshot=false", "--dry-run", "--json"]
    monkeypatch.setattr(sys, "argv", ["serried", *words])
    cli.main()
    out, err = capsys.readouterr()
    assert err == "note: `--each` is now `--commands`\n"
    assert json.loads(out)["commands"] == [["echo", "a"], ["echo", "b"]]
