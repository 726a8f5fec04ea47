"""`serried shell --rank` beside ranks that run: on this machine, on two nodes of a Slurm, in a terminal."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from place import Place

RANK = """
import os, time
os.environ["TOO_LATE"] = "1"
os.makedirs("below", exist_ok=True)
os.chdir("below")
print("started", flush=True)
while not os.path.exists("../end"):
    time.sleep(0.05)
"""
SHOW = "import json, os; print(json.dumps([os.getcwd(), dict(os.environ)]))"


@pytest.fixture
def begin(wait_until):
    """Start a run whose ranks end when they are told to, or with the test."""
    runs = []

    def begin(place: Place, *options: str, ranks: int) -> str:
        (place.project / "rank.py").write_text(RANK)
        run = place.submit(*options, "--", sys.executable, "rank.py")
        runs.append((place, run))
        logs = place.directory(run) / "attempts" / "1"
        wait_until(lambda: sum("started" in path.read_text() for path in logs.glob("node-*/rank-*.log")) == ranks)
        wait_until(lambda: place.show(run)["state"] == "RUNNING", what="the scheduler reports it, too")
        return run

    yield begin
    for place, run in runs:
        place.serried("stop", "-y", run)


def end(place: Place, run: str) -> None:
    (place.directory(run) / "source" / "end").touch()
    code, ended = place.wait(run)
    assert (code, ended["state"]) == (0, "COMPLETED"), ended


def test_a_command_has_the_environment_of_its_rank_and_exits_with_its_status(place: Place, begin):
    nodes = 1 if place.cluster == "local" else 2
    size = ("--nodes", str(nodes), "--ranks", str(2 // nodes), "--cpus", "1", "--mem", "100M")
    run = begin(place, *size, "--set", "environment.env.OF_THE_EXPERIMENT=a b", ranks=2)

    for rank in (0, 1):
        done = place.serried("shell", run, "--rank", str(rank), "--", sys.executable, "-c", SHOW)
        assert done.returncode == 0, done.stderr
        folder, variables = json.loads(done.stdout)
        assert folder == str(place.directory(run) / "source" / "below")
        expected = {"RANK": str(rank), "WORLD_SIZE": "2", "OF_THE_EXPERIMENT": "a b", "SERRIED_RUN_ID": run}
        assert {name: variables.get(name) for name in expected} == expected
        absent = {"SERRIED_MARK", "SERRIED_STOP_FILE", "MASTER_ADDR", "MASTER_PORT", "PYTHONBREAKPOINT", "SERRIED_KEY"}
        assert absent & variables.keys() == set()
        if place.cluster == "slurm":
            assert variables["SLURM_NODEID"] == str(rank)
    assert place.serried("shell", run, "--rank", "0", "--", "sh", "-c", "exit 7").returncode == 7
    assert place.serried("shell", run, "--rank", "0", "--", "no-such-program").returncode == 127
    missing = place.serried("shell", run, "--rank", "5")
    assert missing.returncode == 2
    assert missing.stderr.splitlines() == [
        f"error: rank 5 does not run now in run `{run}`",
        "",
        "hint: its running ranks: 0-1",
    ]
    assert place.show(run)["state"] == "RUNNING"
    end(place, run)
    ended = place.serried("shell", run, "--rank", "0")
    assert ended.stderr.splitlines()[0] == f"error: run `{run}` is not running: it is COMPLETED"


def test_values_of_a_ranks_secrets_are_in_no_file_and_no_argv(local: Place, begin):
    place = Place(local.cluster, local.project, {**local.environ, "MY_TOKEN": "very-secret-77"})
    run = begin(place, "--cpus", "1", "--mem", "100M", "--set", 'environment.secrets=["MY_TOKEN"]', ranks=1)
    done = local.serried(
        "shell", run, "--rank", "0", "--", "sh", "-c", "echo $MY_TOKEN; cat /proc/$PPID/cmdline /proc/$$/cmdline"
    )
    assert done.stdout.splitlines()[0] == "very-secret-77", done.stderr
    assert done.stdout.count("very-secret-77") == 1
    files = (path for path in place.directory(run).rglob("*") if path.is_file())
    assert [path for path in files if b"very-secret-77" in path.read_bytes()] == []
    end(place, run)


def test_a_shell_on_a_terminal_reads_its_startup_file_and_keeps_the_ranks_path(local: Place, begin, tmp_path: Path):
    home = tmp_path / "my home"
    home.mkdir()
    (home / ".bashrc").write_text("export PATH=/bin:/usr/bin; export FROM_RC=1\n")
    place = Place(local.cluster, local.project, {**local.environ, "HOME": str(home)})
    run = begin(place, "--cpus", "1", "--mem", "100M", ranks=1)
    argv = [sys.executable, "-m", "serried", "shell", run, "--rank", "0"]
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(place.project)
        os.execvpe(argv[0], argv, {**place.environ, "TERM": "dumb"})
    os.write(terminal, b"echo rc=$FROM_RC prompt=${PS1:0:9} path=$PATH; exit 5\n")
    printed = b""
    while True:
        try:
            printed += os.read(terminal, 1 << 16)
        except OSError:
            break
    status = os.waitpid(child, 0)[1]
    os.close(terminal)
    text = printed.decode()
    assert os.WEXITSTATUS(status) == 5, text
    assert "rc=1 prompt=(rank 0) path=" in text
    path = place.serried("shell", run, "--rank", "0", "--", "printenv", "PATH").stdout.strip()
    assert path != "/bin:/usr/bin"
    assert f"path={path}" in "".join(text.split("\r\n"))
    end(place, run)


def test_a_shell_without_a_terminal_runs_the_commands_of_its_input(place: Place, begin):
    run = begin(place, "--cpus", "1", "--mem", "100M", ranks=1)
    argv = [sys.executable, "-m", "serried", "shell", run, "--rank", "0"]
    done = subprocess.run(
        argv,
        input="echo $SERRIED_RUN_ID\nexit 5\n",
        cwd=place.project,
        env=place.environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert (done.returncode, done.stdout) == (5, f"{run}\n"), done.stderr
    assert "$ " not in done.stderr
    end(place, run)


def test_beside_the_script_of_a_job_script(local: Place, wait_until):
    (local.project / "job.sh").write_text(f"#!/bin/bash\nexport IN_SCRIPT=1\n'{sys.executable}' rank.py\n")
    (local.project / "rank.py").write_text(RANK)
    run = local.submit("job.sh")
    log = local.directory(run) / "attempts" / "1" / "script.log"
    wait_until(lambda: "started" in log.read_text())
    done = local.serried("shell", run, "--rank", "0", "--", "sh", "-c", "echo $SERRIED_RUN_ID")
    assert (done.returncode, done.stdout) == (0, f"{run}\n"), done.stderr
    local.serried("stop", "-y", "--now", run)
