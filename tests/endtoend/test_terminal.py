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


@pytest.fixture
def begin(local, tmp_path):
    """`serried run` as the foreground of a terminal of its own; what it prints, and where one types."""
    (local.project / "debug.py").write_text(PROGRAM)
    typed, terminal = os.openpty()
    started = []

    def begin(*options):
        with (tmp_path / "printed").open("wb") as printed:
            process = subprocess.Popen(
                [sys.executable, "-m", "serried", "run", *options, "--", sys.executable, "debug.py"],
                cwd=local.project,
                env=dict(local.environ),
                stdin=terminal,
                stdout=printed,
                stderr=printed,
                start_new_session=True,
                preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509 - one system call
            )
        started.append(process)
        return process, (tmp_path / "printed").read_text, lambda text: os.write(typed, text.encode())

    yield begin
    for process in started:
        if process.poll() is None:
            process.terminate()
        process.wait(240)
    os.close(typed)
    os.close(terminal)


def test_breakpoint_stops_the_only_rank_and_takes_what_is_typed(begin, wait_until):
    process, printed, write = begin()
    wait_until(lambda: "(Pdb)" in printed(), what="the debugger's prompt")
    write("p answer * 1000003\n")
    wait_until(lambda: "42000126" in printed(), what="the debugger's answer")
    write("continue\n")
    assert process.wait(240) == 0, printed()
    assert "terminal: True" in printed()
    assert "went on" in printed()


def test_several_ranks_have_no_terminal(begin):
    process, printed, _ = begin("--ranks", "2")
    assert process.wait(240) != 0
    assert printed().count("terminal: False") >= 1
