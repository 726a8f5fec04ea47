"""`serried doctor`: what each check says of a machine, and that none can hold up the others."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from command_line import here
from serried.doctor.checks import findings
from serried.doctor.machine import Machine
from serried.schema.checks import NOT_TESTED, NOTE, OF_MACHINE, OK, PROBLEM, Finding


def found(cluster: str | None = None) -> dict[str, Finding]:
    machine = Machine(Path.cwd(), os.environ, cluster)
    return {finding.id: finding for finding in findings(machine.checks())}


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Put a program on PATH."""
    folder = tmp_path / "programs"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")

    def write(name: str, text: str) -> None:
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)

    return write


@pytest.fixture
def slurm(tmp_path, monkeypatch, program):
    """A machine with the commands of Slurm, whose `scontrol` does what a test says."""
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    (tmp_path / "slurm.conf").write_text("ClusterName=oak\n")
    for name in ("sbatch", "sinfo", "squeue"):
        program(name, "exit 1")
    return lambda text: program("scontrol", text)


def test_every_check_has_its_reason(tmp_path):
    assert list(Machine(tmp_path, os.environ).checks()) == [*OF_MACHINE]


def test_a_check_that_hangs_is_named_and_the_others_are_made():
    checks = {
        "home": lambda: time.sleep(60) or (OK, "never"),
        "git": lambda: (OK, "here"),
        "umask": lambda: 1 / 0,
        "locale": lambda: (NOTE, "ASCII", "export LC_ALL=C.UTF-8"),
    }
    seen = [(one.id, one.level, one.seen) for one in findings(checks, limit=5)]
    assert seen == [
        ("home", PROBLEM, "gave no answer within 5 s"),
        ("git", OK, "here"),
        ("umask", PROBLEM, "the check itself failed"),
        ("locale", NOTE, "ASCII"),
    ]


def test_nothing_runs_on_after_a_check_that_hangs_or_when_nobody_reads(program, tmp_path, wait_until):
    program("git", f"echo $$ >{tmp_path}/pid; sleep 600")
    machine = Machine(tmp_path, os.environ)
    for checks in ({"git": machine.git}, {"umask": machine.umask, "git": machine.git}):
        next(reports := findings(checks, limit=2))
        wait_until((tmp_path / "pid").exists)
        reports.close()
        wait_until(lambda: not Path("/proc", (tmp_path / "pid").read_text().strip()).exists())
        (tmp_path / "pid").unlink()


@pytest.mark.parametrize("status", [0, 1])
def test_the_scheduler_is_called_once(status, slurm, program, tmp_path):
    for name in ("sbatch", "sinfo", "squeue"):
        program(name, f"echo {name} $* >>{tmp_path}/calls")
    slurm(f"echo $* >>{tmp_path}/calls; echo 'Slurmctld(primary) at n1 is DOWN'; exit {status}")
    seen = found()
    assert (tmp_path / "calls").read_text() == "ping\n"
    assert seen["scheduler"].level == (PROBLEM if status else OK)
    assert status == 0 or seen["scheduler"].seen == "Slurm does not answer: Slurmctld(primary) at n1 is DOWN"
    assert seen["cluster"][1:3] == (NOTE, "`slurm`, which serves clusters without a profile")


def test_a_scheduler_that_hangs_is_a_problem(slurm):
    slurm("sleep 60")
    assert found()["scheduler"][1:3] == (PROBLEM, "Slurm has not answered within 4 s")


def test_a_missing_account_is_a_problem(slurm):
    slurm("exit 0")
    settings = Path(os.environ["XDG_CONFIG_HOME"], "serried", "config.toml")
    settings.parent.mkdir(parents=True)
    settings.write_text('[clusters.oak]\nscheduler = "slurm"\nneeds_account = true\n')
    assert found("oak")["account"].level == PROBLEM
    settings.write_text(settings.read_text() + 'resources.account = "def-ada"\n')
    assert found("oak")["account"][1:3] == (OK, "`def-ada`")


def test_a_folder_that_cannot_be_written_is_a_problem(monkeypatch, tmp_path):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", "/proc/self")
    assert found()["records"].level == PROBLEM


def test_the_folder_that_cannot_be_written_is_named(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("HOME", str(tmp_path / "file"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "nosuch"))
    monkeypatch.setattr("tempfile.tempdir", None)
    seen = found()
    assert seen["home"][1:3] == (PROBLEM, f"{tmp_path}/file: Not a directory")
    assert seen["temporary"][1:3] == (NOTE, f"no file can be written to `{tmp_path}/nosuch`: `/tmp` is used")
    monkeypatch.delenv("HOME")
    assert found()["home"][1:3] == (NOTE, "the variable HOME is not set: many programs need it")


def test_folders_of_a_cluster_elsewhere_are_not_looked_for_here():
    settings = Path(os.environ["XDG_CONFIG_HOME"], "serried", "config.toml")
    settings.parent.mkdir(parents=True)
    settings.write_text('[clusters.oak]\nlogin = "oak"\nroot = "/scratch/ada"\n')
    seen = found("oak")
    for name in ("root", "root-on-nodes", "root-clock"):
        assert seen[name][1:3] == (NOT_TESTED, "`/scratch/ada` is on `oak`")


def test_a_repository_that_git_refuses_is_not_taken_for_none(program, tmp_path):
    program("git", "echo fatal: dubious ownership >&2; exit 128")
    assert Machine(tmp_path, os.environ).git()[1].endswith("is in no repository: no commit is recorded")
    (tmp_path / ".git").mkdir()
    refused = "git refuses this repository, so no commit is recorded: fatal: dubious ownership"
    assert Machine(tmp_path / "src", os.environ).git()[:2] == (NOTE, refused)


def test_a_umask_that_locks_out_its_user_is_a_problem():
    before = os.umask(0o777)
    try:
        seen = Machine(Path("/"), os.environ).umask()
    finally:
        os.umask(before)
    assert seen[:2] == (PROBLEM, "0777: your own new files cannot be used by you")


def test_wrong_settings_are_quoted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("serried.toml").write_text("[project]\nnmae = 'digits'\n")
    done = here("doctor", "--json")
    checks = {one["id"]: one for one in json.loads(done.stdout)["checks"]}
    assert (done.returncode, checks["settings"]["level"], checks["umask"]["level"]) == (1, PROBLEM, OK)
    assert "nmae" in checks["settings"]["seen"]
    assert checks["root"] | {"why": ""} == {
        "id": "root",
        "level": NOT_TESTED,
        "seen": "needs `settings` to be in order",
        "fix": None,
        "why": "",
        "hosts": [],
    }


def test_it_says_what_it_saw_and_leaves_nothing(tmp_path, monkeypatch):
    home = tmp_path / "ada"
    home.mkdir()
    monkeypatch.chdir(home)
    monkeypatch.setenv("HOME", str(home))
    done = here("doctor")
    assert (done.returncode, [*home.rglob("*")]) == (0, [])
    lines = done.stdout.splitlines()
    assert lines[0].startswith("ok          python         3.")
    assert lines[0].endswith(f" on {socket.gethostname()}")
    assert done.stderr.splitlines()[-1] == f"{len(OF_MACHINE)} checks: 0 problems, 2 notes"


def test_a_deleted_folder_is_an_error(tmp_path):
    script = 'rmdir "$PWD"; exec "$@"'
    (tmp_path / "gone").mkdir()
    for words in (("doctor",), ("show", "last"), ("submit", "--", "true")):
        command = ["sh", "-c", script, "-", sys.executable, "-m", "serried", *words]
        done = subprocess.run(command, check=False, cwd=tmp_path / "gone", capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (
            2,
            "error: the current folder was deleted\n\nhint: cd to another folder\n",
        )
        (tmp_path / "gone").mkdir()


def test_an_unknown_cluster_is_refused():
    done = here("doctor", "--cluster", "nosuch")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: unknown cluster: `nosuch`")
