"""`serried login`, with a real sshd: what it prints, at a terminal and without one."""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from pathlib import Path

import pytest
from sshd import CODES, PASSWORD, SECOND_FACTOR, Sshd, at_terminal

from serried.records import index
from serried.records.index import ClusterRuns, RunElsewhere
from serried.remote import far_part

LOGIN = [sys.executable, "-m", "serried", "login"]


@pytest.fixture
def make_sshd(tmp_path, monkeypatch):
    made = []

    def make(**options):
        made.append(Sshd(tmp_path, **options))
        monkeypatch.setenv("SERRIED_SSH", str(made[-1].ssh))
        return made[-1]

    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    settings = Path(os.environ["XDG_CONFIG_HOME"], "serried", "config.toml")
    settings.parent.mkdir(parents=True)
    settings.write_text('[clusters.fir]\nlogin = "fir"\nscheduler = "slurm"\n')
    with tempfile.TemporaryDirectory(prefix="run-", dir="/tmp") as runtime:
        monkeypatch.setenv("XDG_RUNTIME_DIR", runtime)
        yield make
        for each in made:
            each.close()


def listed(said):
    """The columns of `fir` among the clusters."""
    return next(re.split(r"  +", line) for line in said("login").splitlines() if line.startswith("fir "))


def test_a_login_by_key_is_listed_checked_and_closed(make_sshd, said):
    make_sshd()
    assert listed(said) == ["fir", "fir", "no login yet", "-", "-"]
    assert said("login fir --check") == "error: not connected to `fir`\n\nhint: serried login fir\n"
    connected = (
        "fir: connected to fir-login1\n"
        "  way:     one connection for all commands, kept for 1h after its last use\n"
        "  reason:  `fir` allows several sessions on one connection\n"
        "  another: opens when needed, without prompts\n"
    )
    assert (said("login fir"), said("login fir --check")) == (connected, connected)
    assert listed(said) == ["fir", "fir", "connected", "fir-login1", "one connection for all commands"]
    document = json.loads(said("login fir --check --json"))["clusters"][0]
    assert document | {"since": ""} == {
        "name": "fir", "host": "fir", "open": True, "prompts": False, "mode": "master", "node": "fir-login1",
        "reason": "`fir` allows several sessions on one connection", "since": "",
    }  # fmt: skip
    assert said("login fir --close") == "closed the connection: fir\n"
    assert said("login fir --close") == "no connection of Serried was open: fir\n"
    assert listed(said)[2] == "opens when needed"


def test_a_login_with_a_second_factor_needs_a_terminal(make_sshd, said, monkeypatch):
    make_sshd(**SECOND_FACTOR)
    monkeypatch.setenv("NO_COLOR", "1")
    status, shown = at_terminal(["setsid", "--wait", *LOGIN, "fir"])
    assert (status, shown.splitlines()[-1]) == (4, "hint: serried login fir, on a terminal: it has to prompt")
    shown = (
        "(ada@127.0.0.1) Password: \n"
        "(ada@127.0.0.1) One-time password (OATH) for `ada': \n"
        "fir: connected to fir-login1\n"
        "  way:     one connection for all commands, kept for 8h after its last use\n"
        "  reason:  `fir` allows several sessions on one connection\n"
        "  another: needs you: serried login fir\n"
    )
    assert at_terminal([*LOGIN, "fir", "--keep", "8h"], ("Password: ", PASSWORD), ("OATH", CODES[0])) == (0, shown)
    said("login fir --close")
    assert said("login fir --check") == "error: not connected to `fir`\n\nhint: serried login fir\n"


def test_mistakes_are_answered_before_anything_is_sent(make_sshd, said):
    far = make_sshd()
    profile = 'in the profile: [clusters.oak] and login = "HOST", a host of ~/.ssh/config\n'
    assert [said(f"login {words}") for words in ("fri", "oak", "--check", "fir --keep soon")] == [
        "error: cluster `fri` has no `login`\n\nhint: did you mean `serried login fir`?\n",
        "error: cluster `oak` has no `login`\n\nhint: " + profile,
        "error: no cluster is named\n\nhint: serried login lists the clusters to connect to\n",
        "error: `--keep` must be a duration such as `90m`, `1h30m` or `2-00:00:00`, not `soon`\n",
    ]
    assert far.connections == 0


def test_clusters_without_a_connection_are_named_in_one_line_and_only_for_runs_that_have_not_ended(make_sshd, said):
    make_sshd()
    far_part.archive(os.environ)  # which takes longer than a list waits
    config = Path(os.environ["XDG_CONFIG_HOME"], "serried", "config.toml")
    config.write_text("".join(f'[clusters.{name}]\nlogin = "{name}"\n' for name in ("ash", "elm", "oak")))

    def run(cluster, ended):
        return RunElsewhere(f"k3f9q{cluster[-1]}", "n", "e", "p", 0.0, ended, (), {}, ())

    for cluster in ("ash", "elm", "gone", "oak"):
        ended = 1.0 if cluster == "oak" else None
        index.remember(ClusterRuns(cluster, 1.0, [run(cluster, ended)]))
    warning = (
        "warning: not connected to `ash`; not connected to `elm`\nhint: serried login ash\n      serried login elm\n"
    )
    assert said("ps") == f"{warning}no runs to show\n  serried ps --all   list all\n"
    config.write_text('[clusters.oak]\nlogin = "fir"\n')
    assert said("ps") == "no runs to show\n  serried ps --all   list all\n"
    listed = [line.split()[0] for line in said("login").splitlines()[1:]]
    assert [name for name in ("ash", "fir", "oak", "cedar") if name in listed] == ["fir", "oak"]


def test_a_machine_that_cannot_run_it_names_the_clusters_that_can(make_sshd, said):
    make_sshd()
    assert said("submit --gpus 1 -- true").splitlines()[-1] == "      on a cluster: serried submit --cluster fir"
