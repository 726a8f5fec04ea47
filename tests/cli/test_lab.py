"""`serried lab`, as its users type it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import serried
from command_line import check_json
from serried import lab as labs
from serried.base import files, shell
from tables import for_each

MAIN = "from serried.cli import main; main()"


def command(*arguments):
    return [sys.executable, "-c", MAIN, "lab", *arguments]


def environment():
    return {**os.environ, "PYTHONPATH": str(Path(serried.__file__).parents[1])}


def serried_lab(*arguments):
    result = shell.run(command(*arguments), env=environment(), timeout=600)
    check_json(["lab", *arguments], result.stdout)
    return result.status, result.stdout, result.stderr


@pytest.fixture
def empty_root(make_lab):
    """Where labs go that this test starts; skipped without Slurm."""
    make_lab(nodes=1, gpus=0).down()
    yield labs.root()
    labs.down_all()


def test_up_says_what_to_type_next_and_down_leaves_nothing(empty_root):
    up = serried_lab("up", "--nodes", "2", "--gpus", "1", "--gpu-type", "v100")
    said = f"lab `lab` is up: 2 nodes with 1 v100 GPU each; {empty_root}/lab\n"
    steps = "\n  serried lab run -- sinfo\n  serried lab shell\n  serried lab down\n"
    assert up == (0, "", said + steps)
    job = ("srun", "-N2", "--gpus-per-node=v100:1", "printenv", "CUDA_VISIBLE_DEVICES")
    assert serried_lab("run", "--", *job) == (0, "0\n0\n", "")
    assert serried_lab("env") == (0, f"export SLURM_CONF={empty_root}/lab/slurm.conf\n", "")
    assert serried_lab("down") == (0, "", "lab `lab` is down\n")
    assert not empty_root.exists()


def test_status_shows_a_dead_node_to_people_and_to_programs(make_lab):
    lab = make_lab(nodes=2, gpus=1, temporary=False, settings={"SlurmdTimeout": "60000"})  # it does not notice
    again = f"serried lab restart n2 --name {lab.name}"
    assert serried_lab("kill", "n2") == (0, "", f"killed `n2`; restart it: {again}\n")
    line = f"{lab.name}  2 nodes with 1 GPU each; not running: n2; {lab.spec.directory}\n"
    assert serried_lab("status") == (0, line, "")
    document = {
        "name": lab.name,
        "directory": str(lab.spec.directory),
        "is_up": False,
        "temporary": False,
        "gpus_per_node": 1,
        "gpu_type": None,
        "accounting": False,
        "daemons": {"munged": True, "slurmctld": True, "n1": True, "n2": False},
        "nodes": {"n1": "idle", "n2": "idle"},
        "environment": {"SLURM_CONF": str(lab.spec.slurm_conf)},
    }
    assert json.loads(serried_lab("status", "--json")[1]) == {"schema": 1, "labs": [document]}
    assert serried_lab("restart", "n2") == (0, "", "restarted `n2`\n")
    assert lab.run("srun", "-wn2", "true").status == 0


@pytest.mark.parametrize(("script", "status"), [("exit 7", 7), ("kill -9 $$", 137), ("sinfo >/dev/null", 0)])
def test_run_without_a_lab_starts_one_for_the_command_and_exits_with_its_status(empty_root, script, status):
    assert serried_lab("run", "--", "sh", "-c", script) == (status, "", "")
    assert not empty_root.exists()


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_temporary_lab_goes_when_its_command_is_interrupted(empty_root, wait_until, number, status):
    with subprocess.Popen(
        command("run", "--", "sh", "-c", "echo ready; exec sleep 600"),
        env=environment(), stdout=subprocess.PIPE, start_new_session=True,
    ) as running:  # fmt: skip
        assert running.stdout.readline() == b"ready\n"
        # Ctrl-C reaches the whole group; kill and a closed terminal reach serried alone.
        (os.killpg if number == signal.SIGINT else os.kill)(running.pid, number)
        assert running.wait() == status
    wait_until(lambda: not empty_root.exists())


def test_commands_and_the_shell_speak_to_the_lab_and_a_command_has_its_own_options(make_lab, monkeypatch, tmp_path):
    lab = make_lab(nodes=1, temporary=False)
    assert serried_lab("run", "echo", "--name", "x", "--help") == (0, "--name x --help\n", "")
    status, _, err = serried_lab("run", "--", "no-such-program")
    assert (status, err.splitlines()[0]) == (2, "error: `no-such-program` is not installed, or not on PATH")
    program = tmp_path / "shell"
    program.write_text('#!/bin/sh\necho "$SLURM_CONF"\n')
    program.chmod(0o755)
    monkeypatch.setenv("SHELL", str(program))
    said = f"you are in lab `{lab.name}`; leave with exit\n"
    assert serried_lab("shell") == (0, f"{lab.spec.slurm_conf}\n", said)
    unknown = f"error: lab `{lab.name}` has no daemon or node `n9`\n\nhint: it has munged, slurmctld, n1\n"
    assert serried_lab("kill", "n9") == (2, "", unknown)


def test_with_several_labs_one_has_to_say_which(make_lab):
    first, second = sorted(make_lab(nodes=1, temporary=False).name for _ in range(2))
    several = f"error: more than one lab is up\n\nhint: name one of `{first}`, `{second}`\n"
    assert serried_lab("run", "--", "sinfo") == (2, "", several)
    assert serried_lab("run", "--name", second, "--", "sinfo", "-h", "-o%D") == (0, "1\n", "")


def test_somebodys_temporary_lab_is_not_chosen_unasked(make_lab):
    lab = make_lab(nodes=1)
    assert serried_lab("down")[0] == 2
    assert serried_lab("run", "--", "sinfo", "-h", "-o%D") == (0, "4\n", "")
    assert serried_lab("run", "--name", lab.name, "--", "sinfo", "-h", "-o%D") == (0, "1\n", "")
    assert lab.status().is_up


def test_where_the_last_lab_goes_meanwhile_there_is_none(monkeypatch):
    labs.root().mkdir()
    monkeypatch.setattr(files, "check_ours_alone", lambda root: root.rmdir())
    assert labs.labs() == []


@for_each("verb", [("down",), ("env",), ("kill", "n1")])
def test_without_a_lab_one_is_told_how_to_start_one(verb):
    assert serried_lab(*verb) == (2, "", "error: no lab is up\n\nhint: start one: serried lab up\n")


def test_without_slurm_the_install_command_is_given(monkeypatch, tmp_path, capsys):
    from serried import cli

    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(shell, "SYSTEM_FOLDERS", ())
    monkeypatch.setattr(sys, "argv", ["serried", "lab", "up"])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith("hint: apt-get install munge slurm-wlm")


def test_a_lab_is_like_the_cluster_of_a_profile(empty_root, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "serried.toml").write_text(
        """
[clusters.oak]
default_partition = "gpu"
gpu_types = ["a100"]
[clusters.oak.partitions.gpu]
time = "24h"
nodes = 2
gpus = 8
cpus = 96
mem = "1T"
[clusters.oak.partitions.long]
time = "7d"
cpus = 32
"""
    )
    assert serried_lab("up", "--like", "oak", "--nodes", "2")[0] == 0
    try:
        shown = serried_lab("run", "--", "sinfo", "--noheader", "-o", "%P %l %s %c %m %G")[1]
        asked = serried_lab("run", "--", "srun", "-plong", "-N2", "-c96", "--mem=1T", "--gpus-per-node=a100:8", "true")
    finally:
        serried_lab("down")
    size = "96 1048576 gpu:a100:8"
    expected = [f"gpu* 1-00:00:00 1-2 {size}", f"lab infinite 1-infinite {size}", f"long 7-00:00:00 1-infinite {size}"]
    assert sorted(shown.splitlines()) == expected
    assert asked == (0, "", "")
    assert not (empty_root / "lab").exists()


def test_a_lab_of_a_wrong_size_is_refused(empty_root):
    for option, value, message in (
        ("--memory", "much", "`--memory` must be an amount of memory"),
        ("--cpus", "0", "a node of a lab has 1 to 4,096 CPUs, not 0"),
        ("--like", "nosuch", "unknown cluster `nosuch`"),
        ("--set", "KillWait", "`--set` needs KEY=VALUE, got `KillWait`"),
    ):
        status, out, err = serried_lab("up", option, value)
        assert (status, out, message in err) == (2, "", True)
    assert not empty_root.exists()
