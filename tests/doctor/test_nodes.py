"""`serried doctor --nodes 2` and `--like RUN`: the job that they submit, and what they print of its checks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from command_line import here


@pytest.fixture(autouse=True)
def project(tmp_path, monkeypatch):
    monkeypatch.setenv("SCRATCH", str(tmp_path / "scratch"))
    monkeypatch.setenv("SERRIED_LOCAL_DIR", str(tmp_path / "local"))
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def test_a_check_of_nodes_is_a_short_job_whose_ranks_do_nothing(project):
    (project / "serried.toml").write_text(
        '[experiments.train]\ncommand = "python train.py"\narray = "0-9"\nlaunch.kind = "torchrun"\n'
        'limit.restarts = 3\ndata.prepare = "touch made"\nbeside = ["sleep 9"]\nresources.time = "2d"\n'
        'environment.env = { A = "1" }\n'
    )
    for words in ((), ("train",)):
        done = here("doctor", *words, "--nodes", "1", "--dry-run", "--json")
        plan = json.loads(done.stdout)["plan"]
        seen = [plan[key] for key in ("name", "command", "preflight", "array", "beside", "data")]
        assert seen == ["doctor", ["true"], True, None, [], None]
        assert (plan["launch"]["kind"], plan["limit"]["restarts"]) == ("agent", 0)
        assert (plan["allocation"]["time_seconds"], plan["environment"]["env"]) == (600, {"A": "1"})
    assert not (project / "made").exists()


def test_without_a_project_its_ranks_start_beside_the_runs(tmp_path):
    done = here("doctor", "--nodes", "1", "--dry-run", "--json")
    source = json.loads(done.stdout)["plan"]["source"]
    assert (done.returncode, source["snapshot"], Path(source["directory"])) == (0, False, tmp_path / "home")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--ticket",), "`--ticket` is for a check of nodes"),
        (("--dry-run",), "`--dry-run` is for a check of nodes"),
        (("--like", "last", "--nodes", "2"), "`--like` and `--nodes` are mutually exclusive"),
        (("--nodes", "2"), "this machine is one node"),
    ],
)
def test_options_that_mean_nothing_here_are_refused(words, message):
    done = here("doctor", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
