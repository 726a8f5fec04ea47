"""`serried shell`: the lines of the plan that it prints before it waits for nodes."""

from __future__ import annotations

from click.testing import CliRunner

from serried.cli import shell
from serried.submission import foreground

TEXT = """
[experiments.train]
command = "python train.py"
[experiments.train.data]
stage = ["{folder}/sets"]
require = ["{folder}/labels"]
[clusters.local]
root = "{folder}/runs"
"""


def test_the_size_the_time_and_the_data_are_printed_before_the_wait(tmp_path, monkeypatch):
    (tmp_path / "sets").mkdir()
    (tmp_path / "sets" / "a").write_bytes(bytes(1000))
    (tmp_path / "labels").touch()
    (tmp_path / "serried.toml").write_text(TEXT.format(folder=tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(foreground, "open_shell", lambda *_, **__: 0)

    done = CliRunner().invoke(shell.command, ["train", "--cluster", "local", "--ranks", "2", "--cpus", "1"])

    lines = dict(line.split("  ", 1) for line in done.stderr.splitlines() if line[:1].isalpha() and "  " in line)
    assert done.exit_code == 0, done.output
    assert tuple(lines) == tuple(label for label in shell.SHOWN if label != "cost")
    assert lines["requires"].strip() == f"{tmp_path}/labels"
