"""`serried watch` in a real terminal, tmux's, with a real run on this machine."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys

import pytest

from serried.base import linux
from waiting import until

PROGRAM = """
import pathlib, time
print("hello from the program", flush=True)
while not pathlib.Path({go!r}).exists():
    time.sleep(0.05)
print("bye", flush=True)
"""


class Terminal:
    """80 columns and 24 rows, whose keys are pressed and whose screen is read."""

    def __init__(self, socket, *, environ, directory):
        self._tmux = ["tmux", "-S", str(socket), "-f", os.devnull]
        self._options = {"env": environ, "cwd": directory}

    def start(self, *words):
        """Run a command in it. Its exit status is shown behind `ended with`."""
        line = f"{shlex.join(words)}; echo ended with $?; exec sleep 100000"
        self._run("new-session", "-d", "-x", "80", "-y", "24", "sh", "-c", line)

    def keys(self, *keys):
        self._run("send-keys", *keys)

    def screen(self, *options):
        return self._run("capture-pane", "-p", *options).stdout

    def resize(self, columns, rows):
        self._run("resize-window", "-x", str(columns), "-y", str(rows))

    def sees(self, text):
        until(lambda: text in self.screen(), what=f"{text!r} on the screen\n{self.screen()}")

    def settings(self):
        """What curses programs change, and have to put back."""
        shown = "#{alternate_on} #{cursor_flag} #{mouse_any_flag} #{keypad_flag}"
        return self._run("display-message", "-p", shown).stdout.split()

    def pid(self):
        """Of the command in it."""
        shell = int(self._run("display-message", "-p", "#{pane_pid}").stdout)
        return next(pid for pid in linux.pids() if linux.parent(pid) == shell)

    def close(self):
        subprocess.run([*self._tmux, "kill-server"], check=False, capture_output=True)

    def _run(self, *words):
        return subprocess.run([*self._tmux, *words], check=True, capture_output=True, text=True, **self._options)


@pytest.fixture
def terminal(tmp_path, tmp_path_factory):
    if shutil.which("tmux") is None:
        if os.environ.get("CI") == "true":
            pytest.fail("tmux is missing: make slurm installs it")
        pytest.skip("needs tmux: apt-get install tmux, or `make slurm`")
    environ = {**os.environ, "TERM": "xterm-256color", "LC_ALL": "C.UTF-8"}
    made = Terminal(tmp_path_factory.mktemp("tmux") / "socket", environ=environ, directory=tmp_path)
    yield made
    made.close()


@pytest.fixture
def project(tmp_path):
    folder = tmp_path / "project"
    folder.mkdir()
    return folder


@pytest.fixture
def serried(project):
    def run(*words):
        command = [sys.executable, "-m", "serried", *words]
        return subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=600, check=False)

    return run


@pytest.fixture
def run(project, tmp_path, serried):
    """The id of a run that ends when `go` exists."""
    (project / "train.py").write_text(PROGRAM.format(go=str(tmp_path / "go")))
    done = serried("submit", "--cluster", "local", "--name", "train", "--", sys.executable, "train.py")
    assert done.returncode == 0, done.stderr
    yield done.stdout.strip()
    (tmp_path / "go").touch()
    assert serried("wait", "last", "--timeout", "280s").returncode in (0, 1)


def watch(terminal, *words):
    terminal.start(sys.executable, "-m", "serried", "watch", *words)


def test_keys_open_a_run_and_its_end_is_seen(terminal, run, serried, tmp_path):
    watch(terminal)
    terminal.sees(f"{run}  train  RUNNING")
    terminal.keys("Enter")
    terminal.sees("hello from the program")
    terminal.keys("?")
    terminal.sees("stop the run, as `serried stop`")
    terminal.keys("x")
    (tmp_path / "go").touch()
    terminal.sees(f"{run} train COMPLETED")
    terminal.keys("q")
    terminal.sees("ended with 0")
    assert terminal.settings() == ["0", "1", "0", "0"]
    assert serried("wait", run).returncode == 0


def test_a_run_is_stopped_by_two_keys_and_not_by_one(terminal, run, serried, tmp_path):
    watch(terminal, run)
    terminal.sees("hello from the program")
    terminal.keys("S")
    terminal.sees(f"stop {run} (train, RUNNING)?")

    def is_confirmed():  # the first half second does not count
        terminal.keys("y")
        return "stopping" in terminal.screen() or "CANCELLED" in terminal.screen()

    until(is_confirmed)
    terminal.sees(f"{run} train CANCELLED")
    assert (tmp_path / "go").exists() is False
    assert "CANCELLED" in serried("ps", "--all").stdout


def test_a_question_fits_on_a_small_terminal_and_no_color_leaves_no_colours(terminal, run):
    terminal.start("env", "NO_COLOR=1", sys.executable, "-m", "serried", "watch")
    terminal.sees(f"{run}  train  RUNNING")
    terminal.resize(40, 10)
    terminal.keys("S")
    terminal.sees("│  y stops it; any other key does not  │\n")
    assert f"│{f'  stop {run} (train, RUNNING)?':<38}│\n" in terminal.screen()
    attributes = {code for codes in re.findall(r"\x1b\[([\d;]*)m", terminal.screen("-e")) for code in codes.split(";")}
    assert {code for code in attributes if code.startswith(("3", "4", "9", "10"))} <= {"39", "49"}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_restores_the_terminal_and_leaves_the_run_alone(terminal, run, serried, number):
    watch(terminal, run)
    terminal.sees("hello from the program")
    os.kill(terminal.pid(), number)
    terminal.sees(f"ended with {128 + number}")
    assert terminal.settings() == ["0", "1", "0", "0"]
    assert "RUNNING" in serried("ps").stdout


def test_a_closed_terminal_ends_it_and_leaves_the_run_alone(terminal, run, serried):
    watch(terminal, run)
    terminal.sees("hello from the program")
    pid = terminal.pid()
    terminal.close()
    until(lambda: pid not in linux.pids())
    assert "RUNNING" in serried("ps").stdout
