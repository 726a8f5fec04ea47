"""`serried shell` as its user meets it: on a terminal, in the lab."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

import containing
import serried
from serried.schema.layout import PROGRAMS

SERRIED = [sys.executable, "-m", "serried"]
NOISE = re.compile(rb"\x1b\[[0-9;?]*[a-zA-Z]|\r")
SECONDS = 600

TOML = """
[clusters.slurm]
root = "{root}/runs"
[experiments.train]
command = "sleep 600"
resources = {{ nodes = 2, ranks = 2, cpus = 1, mem = "10M", time = "1h" }}
[experiments.train.environment]
env = {{ GREETING = "it's \\"$HOME\\"" }}
setup = "source limits.sh"
"""

WHO = """
import os, resource
names = ("RANK", "WORLD_SIZE", "SLURMD_NODENAME", "GREETING")
print("|".join([*(os.environ.get(name, "-") for name in names), str(resource.getrlimit(resource.RLIMIT_NOFILE)[0])]))
"""


pytestmark = pytest.mark.usefixtures("in_lab", "project")


@pytest.fixture
def project(tmp_path, monkeypatch):
    folder = tmp_path / "it's $(id)"
    folder.mkdir()
    (folder / "serried.toml").write_text(TOML.format(root=tmp_path))
    (folder / "who.py").write_text(WHO)
    (folder / "limits.sh").write_text("ulimit -n 333\n")
    (tmp_path / "home" / ".bashrc").write_text("PATH=/usr/bin:/bin\n")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PYTHONPATH", str(Path(serried.__file__).parents[1]))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    return folder


class Terminal:
    """A command on a terminal of 30 lines and 100 columns."""

    def __init__(self, *words: str) -> None:
        self.pid, self._end = pty.fork()
        if self.pid == 0:
            _set_size(0, 30, 100)
            os.execve(words[0], words, {**os.environ, "TERM": "xterm"})  # readline scrolls a long line of a dumb one
        self.said = b""

    def resize(self, rows: int, columns: int) -> None:
        _set_size(self._end, rows, columns)

    def type(self, text: str) -> None:
        os.write(self._end, text.encode())

    def await_text(self, text: str) -> None:
        """Until it has said that, since the last time."""
        deadline = time.monotonic() + SECONDS
        while text.encode() not in self.said:
            assert time.monotonic() < deadline, (text, self.said)
            assert self._read(), (text, self.said)
        self.said = self.said.partition(text.encode())[2]

    def _read(self) -> bool:
        if select.select([self._end], [], [], 0.2)[0]:
            with contextlib.suppress(OSError):
                more = os.read(self._end, 4096)
                self.said += NOISE.sub(b"", more)
                return bool(more)
            return False
        return True

    def status(self) -> int:
        while self._read():
            pass
        os.close(self._end)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def _set_size(terminal: int, rows: int, columns: int) -> None:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def shell(*words, **options):
    command = [*SERRIED, "shell", *words]
    return subprocess.run(
        command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=SECONDS, check=False, **options
    )


def left(project):
    """Files of runs: what all runs share of Serried stays for the next one."""
    runs = project.parent / "runs"
    return [path for path in runs.rglob("*") if path.is_file() and not path.is_relative_to(runs / PROGRAMS)]


def test_a_shell_is_a_terminal_on_the_first_node_with_the_experiments_environment(project, wait_until):
    terminal = Terminal(*SERRIED, "shell", "train")
    terminal.await_text("(train) ")
    terminal.type("stty size; python who.py\n")
    terminal.await_text('30 100\n0|1|n1|it\'s "$HOME"|333\n')
    terminal.resize(40, 132)
    terminal.type("bash -c 'touch begun; exec sleep 600'\n")
    wait_until((project / "begun").exists)
    terminal.type("\x03")
    terminal.await_text("^C")
    terminal.type("echo status $?; until [ \"$(stty size)\" = '40 132' ]; do sleep 0.1; done; ")
    terminal.type("srun --label hostname | cut -d: -f1 | sort | paste -sd,\n")
    terminal.await_text("status 130\n0,1,2,3\n")
    terminal.type('serried() { python -m serried "$@"; }; serried run train -- python who.py; serried shell\n')
    terminal.await_text('[3] 3|4|n2|it\'s "$HOME"|333')
    terminal.await_text("already")
    terminal.type("mkdir $SERRIED_RESULTS_DIR; echo kept > $SERRIED_RESULTS_DIR/note; exit 5\n")
    terminal.await_text("results and checkpoints are in")

    assert terminal.status() == 5
    assert [path.read_text() for path in (project.parent / "runs").rglob("note")] == ["kept\n"]


def test_one_command_has_its_exit_status_and_leaves_nothing(project):
    done = shell("train", "--nodes", "1", "--", "python", "who.py")
    missing = shell("train", "--nodes", "1", "--", "/no/such/program")
    failing = shell("train", "--nodes", "1", "--", "bash", "-c", "kill -KILL $$")

    assert (done.returncode, done.stdout) == (0, '0|1|n1|it\'s "$HOME"|333\n'), done.stderr
    assert (missing.returncode, failing.returncode) == (127, 137)
    assert "cannot run `/no/such/program`" in missing.stderr
    assert left(project) == []


def test_a_command_that_never_began_is_no_success_whatever_the_scheduler_says(tmp_path, monkeypatch):
    salloc = tmp_path / "bin" / "salloc"
    salloc.parent.mkdir()
    salloc.write_text("#!/bin/sh\n# as `qsub -I` does where the node does not see job.sh\nexit 0\n")
    salloc.chmod(0o700)
    monkeypatch.setenv("PATH", f"{salloc.parent}{os.pathsep}{os.environ['PATH']}")
    done = shell("--", "touch", "ran")

    assert (done.returncode, "nothing ran" in done.stderr) == (1, True)


def test_setup_that_fails_is_no_shell():
    done = shell("train", "--set", "environment.setup=nosuchcommand", "--", "true")

    assert done.returncode == 70
    assert "`setup` failed: `nosuchcommand` ended with status 127" in done.stderr


@pytest.fixture
def full_cluster(in_lab, wait_until):
    """No node is free."""
    job = subprocess.run(
        ["sbatch", "--parsable", "--nodes=4", "--exclusive", "--output=/dev/null", "--wrap=sleep 3600"],
        capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip
    wait_until(lambda: in_lab.run("squeue", "--noheader", "--states=RUNNING").stdout)
    yield
    subprocess.run(["scancel", job], check=True)


@pytest.mark.usefixtures("full_cluster")
def test_now_does_not_wait_and_otherwise_the_reason_is_told(project):
    now = shell("--now", "--time", "1m")
    terminal = Terminal(*SERRIED, "shell", "--time", "1m")
    terminal.await_text("waits: ")
    terminal.type("\x03")

    assert terminal.status() == 130, terminal.said
    assert (now.returncode, "no nodes that fit are free now" in now.stderr) == (1, True)
    assert left(project) == []


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_who_is_told_to_end_gives_the_allocation_back(project, wait_until, number, status):
    command = [*SERRIED, "shell", "train", "--", "sh", "-c", "touch began; sleep 600"]
    waits = subprocess.Popen(command, start_new_session=True)
    wait_until((project / "began").exists)
    if number == signal.SIGINT:
        os.killpg(waits.pid, number)  # as Ctrl-C does
    else:
        waits.send_signal(number)

    assert waits.wait(SECONDS) == status
    assert left(project) == []
    wait_until(lambda: not subprocess.run(["squeue", "--noheader"], capture_output=True, check=True).stdout)


def test_a_job_that_ends_around_the_shell_is_told_and_leaves_nothing(project, wait_until):
    terminal = Terminal(*SERRIED, "shell", "--time", "1h", "--ranks", "1", "--name", "doomed")
    terminal.await_text("(shell) ")
    queue = subprocess.run(["squeue", "--noheader", "--format=%i %j"], capture_output=True, text=True, check=True)
    job = next(line.split()[0] for line in queue.stdout.splitlines() if "doomed" in line)
    terminal.type("tr '\\0' '\\n' < /proc/$$/cmdline | grep /bashrc > rc; trap '' TERM; touch ready; sleep 600\n")
    wait_until((project / "ready").exists)
    subprocess.run(["scancel", job], check=True)
    terminal.await_text("the job ended before the shell")

    assert (terminal.status(), left(project)) == (143, [])
    assert not Path((project / "rc").read_text().strip()).parent.exists()


def test_beside_a_run_one_is_on_the_node_of_its_ranks_and_none_of_them(wait_until):
    submitted = subprocess.run([*SERRIED, "submit", "train"], capture_output=True, text=True, check=False)
    assert submitted.returncode == 0, submitted.stderr
    run = submitted.stdout.strip()
    wait_until(lambda: b"RUNNING" in subprocess.run([*SERRIED, "ps"], capture_output=True, check=True).stdout)
    beside = shell(run, "--node", "1", "--", "python", "who.py", cwd="/")
    nowhere = shell(run, "--node", "2", "--", "true")
    subprocess.run([*SERRIED, "stop", "-y", "--now", run], check=True, capture_output=True)
    subprocess.run([*SERRIED, "wait", run], check=False, capture_output=True)
    over = shell(run, "--", "true")
    more = shell(run, "--gpus", "4", "--", "true")
    no_run = shell("--node", "1", "--", "true")

    assert (beside.returncode, beside.stdout) == (0, '-|-|n2|it\'s "$HOME"|333\n'), beside.stderr
    assert (nowhere.returncode, "has no node 2" in nowhere.stderr) == (2, True)
    assert (over.returncode, "is not running" in over.stderr) == (2, True)
    assert (more.returncode, "uses its resources" in more.stderr) == (2, True)
    assert (no_run.returncode, "`--node` needs `RUN`" in no_run.stderr) == (2, True)


def test_the_shell_of_an_experiment_with_a_container_is_in_it(project, monkeypatch):
    monkeypatch.setenv("PATH", containing.path_with("ch-run"))
    image = {
        "image": str(containing.skeleton(project.parent / "root")),
        "runtime": "ch-run",
        "binds": containing.needed(),
    }
    with (project / "serried.toml").open("a") as file:
        file.write(containing.table("experiments.train.container", image))
    done = shell("train", "--cluster", "local", "--nodes", "1", "--", "sh", "-c", "ls /etc; echo $RANK; exit 8")

    assert (done.returncode, done.stdout.split()[-2:]) == (8, ["serried-image", "0"]), done.stderr
