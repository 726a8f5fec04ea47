"""`serried doctor`: what each check says of a machine, and that none can hold up the others."""

from __future__ import annotations

import errno
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

import checks_page
from command_line import here
from house import ROOT
from serried.base.processes import user as user_name
from serried.doctor.checks import findings
from serried.doctor.machine import Machine
from serried.schedulers.pbs import cluster as pbs
from serried.schedulers.survey import Greeting
from serried.schema.checks import NOT_TESTED, NOTE, OF_MACHINE, OF_NODES, OK, PROBLEM, Finding


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


def test_the_page_has_a_paragraph_for_each_check():
    text = (ROOT / "docs/reference/checks.md").read_text(encoding="utf-8")
    assert text == checks_page.update(text), "run `make docs`"
    assert list(checks_page.written(text)) == [*OF_MACHINE, *OF_NODES], "write what the missing check sees"


def test_a_check_that_hangs_is_named_and_the_others_are_made():
    checks = {
        "home": lambda: time.sleep(60) or (OK, "never"),
        "git": lambda: (OK, "here"),
        "records": lambda: time.sleep(60) or (OK, "never"),
        "umask": lambda: 1 / 0,
        "locale": lambda: (NOTE, "ASCII", "export LC_ALL=C.UTF-8"),
    }
    seen = [(one.id, one.level, one.seen) for one in findings(checks, limit=5)]
    line = next(
        number for number, text in enumerate(Path(__file__).read_text().splitlines(), 1) if "1 / 0,\n" in f"{text}\n"
    )
    assert seen == [
        ("home", PROBLEM, "gave no answer within 5 s"),
        ("git", OK, "here"),
        ("records", NOT_TESTED, "gave no answer within 2 s"),
        ("umask", NOT_TESTED, f"the check failed: ZeroDivisionError: division by zero (test_doctor.py:{line})"),
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
    for name in ("sbatch", "sinfo", "squeue", "sacctmgr"):
        program(name, f"echo {name} $* >>{tmp_path}/calls")
    slurm(f"cat >>{tmp_path}/calls; echo 'slurm 24.11.1'; echo 'connect failure' >&2; exit {status}")
    seen = found()
    calls = f"version\nshow assoc_mgr users={user_name()} flags=users,assoc\n"
    assert (tmp_path / "calls").read_text() == calls
    level, text = (PROBLEM, "Slurm does not answer: connect failure") if status else (OK, "Slurm 24.11.1 answered in")
    assert (seen["scheduler"].level, seen["scheduler"].seen[: len(text)]) == (level, text)
    assert seen["cluster"][1:3] == (NOTE, "`slurm`, which serves clusters without a profile")


def test_a_scheduler_that_hangs_is_a_problem(slurm):
    slurm("sleep 60")
    assert found()["scheduler"][1:3] == (PROBLEM, "Slurm has not answered within 3 s")


ASSOCIATIONS = """scontrol: version
slurm-wlm 22.05.8
UserName=ada(1) DefAccount=math DefWckey=(null) AdminLevel=Not Set
ClusterName=oak Account=math UserName= Partition= Priority=0 ID=3
    GrpJobs=8(0) GrpJobsAccrue=N(0)
    GrpSubmitJobs=N(0) GrpWall=N(0.00)
    GrpTRES=cpu=N(0),mem=N(0),gres/gpu=16(4)
    MaxJobs=5 MaxJobsAccrue= MaxSubmitJobs= MaxWallPJ=
ClusterName=oak Account=math UserName=ada(1) Partition= Priority=0 ID=4
    GrpJobs=N(0) GrpJobsAccrue=N(0)
    MaxJobs=5(2) MaxJobsAccrue= MaxSubmitJobs=7(SUBMITTED) MaxWallPJ=
"""


@pytest.mark.parametrize(("account", "submitted"), [("", 3), ("", 7), ("bio", 3)])
def test_the_answer_has_the_default_account_and_its_limits(account, submitted, slurm, tmp_path, monkeypatch):
    (tmp_path / "answer").write_text(ASSOCIATIONS.replace("SUBMITTED", str(submitted)))
    slurm(f"cat {tmp_path}/answer")
    monkeypatch.setenv("SBATCH_ACCOUNT", account)
    limits = (
        "`math` by the scheduler's default; the account's running jobs: 0 of 8; the account's GPUs: 4 of 16; "
        f"your running jobs: 2 of 5; your submitted jobs: {submitted} of 7"
    )
    foreign = (NOTE, "`bio` is not among your accounts: `math`")
    assert found()["account"][1:3] == (foreign if account else (PROBLEM if submitted == 7 else OK, limits))


def test_pbs_reports_its_version_and_limits(program, tmp_path):
    text = (Path(__file__).parents[1] / "schedulers/pbs/qstat-B-f.txt").read_text()
    limited = text + "    max_run = [u:PBS_GENERIC=4]\n"
    assert pbs.read_greeting(limited) == Greeting("23.06.06", limits=(("your running jobs", 4, None),))
    (tmp_path / "answer").write_text(limited)
    program("qstat", f'[ "$*" = "-B -f" ] && cat {tmp_path}/answer')
    program("qsub", "exit 1")
    program("pbsnodes", "exit 1")
    seen = found("pbs")
    assert seen["scheduler"].seen.startswith("PBS 23.06.06 answered in ")
    assert seen["account"][1:3] == (OK, "none, and the profile says that jobs need none; your running jobs: 4")


def test_a_profile_is_compared_with_the_last_answers(slurm, program, tmp_path):
    slurm("exit 0")
    program("sinfo", f"echo sinfo >>{tmp_path}/calls; echo 'gpu*|1-00:00:00|gpu:a100:4|64|512000|1-8'")
    settings = Path(os.environ["XDG_CONFIG_HOME"], "serried", "config.toml")
    settings.parent.mkdir(parents=True)
    settings.write_text('[clusters.oak]\nscheduler = "slurm"\npartitions.gpu = {time = "12h", gpus = 4}\n')
    assert found("oak")["cluster"][1:3] == (OK, f"`oak`, described in {settings}")
    assert here("clusters", "check", "oak").returncode == 1
    differs = f"`oak`, described in {settings}; by the scheduler's last answers `partitions.gpu.time` is 12h, not 1d"
    assert found("oak")["cluster"][1:3] == (NOTE, differs)
    assert (tmp_path / "calls").read_text() == "sinfo\n"
    settings.write_text('[clusters.oak]\nscheduler = "slurm"\nmatch.hostname = ["oak*.edu"]\n')
    foreign = f"`oak`, described in {settings}, does not match this machine: oak*.edu"
    assert found("oak")["cluster"][1:3] == (NOTE, foreign)


@pytest.mark.parametrize(
    ("rows", "answer"),
    [
        ("{} 1000 2000 4000 0 10 0 0 0", (OK, "`{}`: 1.0 MB of 4.1 MB")),
        ("{} [3900] 0k 4000k - 100* 90 100 6d23h", (PROBLEM, "`{}`: 4.0 MB of 4.1 MB; `{}`: 100 of 100 files")),
        ("Disk quotas for user root (uid 0): none", (OK, "no quota of yours is reported")),
    ],
)
def test_quotas_are_read(rows, answer, program, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SCRATCH", str(tmp_path))
    mount = next(str(folder) for folder in (tmp_path, *tmp_path.parents) if folder.is_mount())
    program("lfs", "echo not a lustre >&2; exit 1")
    program("quota", f"echo '  {rows.format(mount)}'")
    level, seen = answer
    assert found()["quota"][1:3] == (level, seen.format(mount, mount))


def test_a_quota_that_is_not_known_is_not_tested(program, monkeypatch, tmp_path):
    program("quota", "/bin/sleep 60")
    monkeypatch.setenv("PATH", str(tmp_path / "programs"))
    assert found()["quota"][1:3] == (NOT_TESTED, "`quota` has not answered within 1 s")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert found()["quota"][1:3] == (NOT_TESTED, "none of lfs, quota is here")


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
    assert seen["home"][1:3] == (PROBLEM, f"`{tmp_path}/file`: Not a directory")
    assert seen["temporary"][1:3] == (NOTE, f"no file can be written to `{tmp_path}/nosuch`: `/tmp` is used")
    monkeypatch.delenv("HOME")
    assert found()["home"][1:3] == (NOTE, "the variable HOME is not set: many programs need it")


def test_a_full_disk_is_named_with_its_remedy(monkeypatch, tmp_path):
    def write(folder):
        raise OSError(errno.ENOSPC, "No space left on device", str(folder))

    monkeypatch.setattr("serried.doctor.machine._write_in", write)
    monkeypatch.setenv("HOME", str(tmp_path))
    remedy = "serried clean --list shows the largest files of runs"
    assert found()["home"][1:4] == (PROBLEM, f"`{tmp_path}`: No space left on device", remedy)


def test_a_system_without_proc_and_noexec_is_checked(monkeypatch, tmp_path):
    monkeypatch.delattr("os.ST_NOEXEC")
    monkeypatch.setattr("os.path.isdir", lambda _: False)
    monkeypatch.setattr("os.getuid", lambda: 1000)
    monkeypatch.setattr("resource.getrlimit", lambda _: (2666, 4000))
    machine = Machine(tmp_path, os.environ)
    assert machine.processes() == (NOT_TESTED, "at most 2666; this system has no /proc")
    assert machine.home()[0] == OK


def test_folders_of_a_cluster_elsewhere_are_not_looked_for_here():
    settings = Path(os.environ["XDG_CONFIG_HOME"], "serried", "config.toml")
    settings.parent.mkdir(parents=True)
    settings.write_text('[clusters.oak]\nlogin = "oak"\nroot = "/scratch/ada"\n')
    seen = found("oak")
    for name in ("root", "root-on-nodes", "root-clock"):
        assert seen[name][1:3] == (NOT_TESTED, "`/scratch/ada` is on `oak`")


def test_a_repository_that_git_refuses_is_not_taken_for_none(program, tmp_path):
    program("git", "echo fatal: dubious ownership >&2; exit 128")
    assert Machine(tmp_path, os.environ).git()[1].endswith("is not in a git repository, so no commit is recorded")
    (tmp_path / ".git").mkdir()
    refused = "git refuses this repository, so no commit is recorded: fatal: dubious ownership"
    assert Machine(tmp_path / "src", os.environ).git()[:2] == (NOTE, refused)


def test_a_umask_that_locks_out_its_user_is_a_problem():
    before = os.umask(0o777)
    try:
        seen = Machine(Path("/"), os.environ).umask()
    finally:
        os.umask(before)
    assert seen[:2] == (PROBLEM, "0777: you cannot use your own new files")


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
