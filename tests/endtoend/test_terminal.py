"""A debugger in the only rank of `serried run`, on the terminal where that was typed."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import termios

import pytest

PROGRAM = """
import sys
print("terminal:", sys.stdin.isatty(), flush=True)
answer = 6 * 7
breakpoint()
print("went on", flush=True)
"""


class Screen:
    """`serried run` as the foreground of a terminal of its own: what it prints, and where one types."""

    def __init__(self, local, *options):
        self._typed, self.terminal = os.openpty()
        self.printed = b""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "serried", "run", *options, "--", sys.executable, "debug.py"],
            cwd=local.project,
            env={**local.environ, "TERM": "dumb"},
            stdin=self.terminal,
            stdout=self.terminal,
            stderr=self.terminal,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509 - one system call
        )
        os.set_blocking(self._typed, False)

    def write(self, text):
        os.write(self._typed, text.encode())

    def read(self):
        try:
            while more := os.read(self._typed, 1 << 16):
                self.printed += more
        except BlockingIOError:
            pass
        return self.printed.decode()

    def wait(self, wait_until):
        """Read until the end: a full terminal would hold the program up."""
        wait_until(lambda: (self.read(), self.process.poll())[1] is not None, 240)
        self.read()
        return self.process.returncode

    def modes(self):
        return termios.tcgetattr(self.terminal)

    def close(self):
        if self.process.poll() is None:
            self.process.terminate()
        self.process.wait(240)
        os.close(self._typed)
        os.close(self.terminal)


@pytest.fixture
def begin(local):
    (local.project / "debug.py").write_text(PROGRAM)
    screens = []

    def begin(*options):
        screens.append(Screen(local, *options))
        return screens[-1]

    yield begin
    for screen in screens:
        screen.close()


def test_breakpoint_stops_the_only_rank_and_takes_what_is_typed(begin, wait_until):
    screen = begin()
    modes = screen.modes()
    wait_until(lambda: "(Pdb)" in screen.read(), what="the debugger's prompt")
    screen.write("p answer * 1000003\n")
    wait_until(lambda: "42000126" in screen.read(), what="the debugger's answer")
    wait_until(lambda: screen.modes()[6][termios.VINTR] == b"\0", what="the next prompt")
    screen.write("p answer * 7\x03p answer * 1000005\n")
    wait_until(lambda: "42000210" in screen.read(), what="the answer after Ctrl-C, which clears the line")
    screen.write("continue\n")
    assert screen.wait(wait_until) == 0, screen.read()
    assert "terminal: True" in screen.read()
    assert "went on" in screen.read()
    assert "294" not in screen.read()
    assert screen.modes() == modes


def test_lines_are_edited_with_readline(begin, wait_until):
    screen = begin()
    wait_until(lambda: "(Pdb)" in screen.read(), what="the debugger's prompt")
    screen.write("answer * 1000003\x01p \n")  # Ctrl-A: to the beginning of the line
    wait_until(lambda: "42000126" in screen.read(), what="the debugger's answer")
    screen.write("continue\n")
    assert screen.wait(wait_until) == 0, screen.read()


def test_a_debugger_that_is_killed_at_its_prompt_leaves_a_terminal_that_works(begin, local, wait_until):
    screen = begin()
    modes = screen.modes()
    wait_until(lambda: "(Pdb)" in screen.read() and not screen.modes()[3] & termios.ECHO, what="the prompt")
    done = local.serried("stop", "-y", "last")
    assert done.returncode == 0, done.stderr
    screen.wait(wait_until)
    assert screen.modes() == modes


def test_several_ranks_skip_a_breakpoint_and_are_told_what_to_do(begin, wait_until):
    screen = begin("--ranks", "2")
    assert screen.wait(wait_until) == 0, screen.read()
    text = screen.read()
    assert text.count("terminal: False") == 2
    assert text.count("debug.py:5 is skipped: this run has 2 ranks, which cannot share a terminal") == 2
    assert text.count("`serried run --ranks 1`") == 2
    assert text.count("went on") == 2


def test_a_submitted_run_has_no_terminal(local):
    (local.project / "debug.py").write_text(PROGRAM)
    run = local.submit("--", sys.executable, "debug.py")
    assert local.wait(run)[0] == 0
    assert "debug.py:5 is skipped: this run has no terminal" in local.serried("logs", run).stdout


@pytest.mark.parametrize(("value", "printed"), [("0", ""), ("builtins.print", "\n")])
def test_a_variable_of_the_user_is_kept(local, value, printed):
    (local.project / "debug.py").write_text("breakpoint()\n")
    run = local.submit("--set", f"environment.env.PYTHONBREAKPOINT={value}", "--", sys.executable, "debug.py")
    assert local.wait(run)[0] == 0
    assert local.serried("logs", run).stdout == printed
