"""`serried shell`: the lines of the plan that it prints before it waits for nodes."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from building import RunOnDisk
from serried.base.errors import UsageError
from serried.cli import shell
from serried.records.status import RunStatus, Verdict
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


def test_nodes_keep_their_numbers_after_a_loss(tmp_path):
    run = RunOnDisk(tmp_path, spare_nodes=1)
    run.journal(*({"event": "connected", "node": node, "host": f"n{node + 1}"} for node in (0, 2, 1)))
    status = RunStatus(
        run.record, run.record.summary, Verdict("RUNNING"), job="123", attempt=1, node_names=("n1", "n3")
    )

    assert (foreground.joinable(status, 0), foreground.joinable(status, 2)) == ("n1", "n3")
    with pytest.raises(UsageError, match="run `k3f9q2` has no node 1") as caught:
        foreground.joinable(status, 1)
    assert caught.value.hint == "it has 0 (n1), 2 (n3)"
