"""`serried run` with several ranks on a terminal: progress bars move at its bottom."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import serried
from waiting import until

pytestmark = pytest.mark.runs

PROGRAM = """
import os, pathlib, sys, time
rank = os.environ["RANK"]
sys.stdout.write(f"\\r  0%|\\r \\x1b[32m50%\\x1b[0m|rank {rank}")
sys.stdout.flush()
while not pathlib.Path(f"go-{rank}").exists():
    time.sleep(0.05)
print(f"\\r100%|rank {rank}\\x1b[2A\\x1b[2K")  # would erase other lines of the terminal
"""
HOME = Path(serried.__file__).parents[1]


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Start `serried run` on a terminal; returns its process, and what the terminal has got so far."""
    monkeypatch.chdir(tmp_path)
    Path("bars.py").write_text(PROGRAM)
    started = []

    def begin(ranks, **variables):
        master, slave = pty.openpty()
        shown = bytearray()
        process = subprocess.Popen(
            [sys.executable, "-m", "serried", "run", "--ranks", str(ranks), "--", sys.executable, "bars.py"],
            env={**os.environ, "PYTHONPATH": str(HOME), "TERM": "xterm", "COLUMNS": "80", "NO_COLOR": "1", **variables},
            stdin=subprocess.DEVNULL,
            stdout=slave,
            stderr=subprocess.DEVNULL,
        )
        os.close(slave)
        reader = threading.Thread(target=read, args=(master, shown))
        reader.start()
        started.append((process, reader))
        return process, lambda: shown.decode(errors="replace")

    def read(master, shown):
        try:
            while piece := os.read(master, 4096):
                shown += piece
        except OSError:  # the other end is closed
            os.close(master)

    yield begin
    for process, reader in started:
        process.terminate()
        process.wait(240)
        reader.join()


def test_bars_of_ranks_are_shown_while_they_move_and_lines_above_them(start):
    process, shown = start(2)
    both = "[0]  50%|rank 0\r\n[1]  50%|rank 1"
    until(lambda: shown().endswith(both), what="both bars")
    Path("go-1").touch()
    above = "\r\x1b[2K\x1b[A\x1b[2K[1] 100%|rank 1\r\n\r\x1b[2K[0]  50%|rank 0"
    until(lambda: shown().endswith(both + above), what="a whole line above the other bar")
    Path("go-0").touch()
    assert process.wait(240) == 0
    until(lambda: shown().endswith(above + "\r\x1b[2K[0] 100%|rank 0\r\n"), what="the last line, and no bar")


def test_a_terminal_that_cannot_move_its_cursor_shows_whole_lines(start):
    process, shown = start(2, TERM="dumb")
    for rank in range(2):
        Path(f"go-{rank}").touch()
    assert process.wait(240) == 0
    until(lambda: sorted(shown().splitlines()) == ["[0] 100%|rank 0", "[1] 100%|rank 1"], what="two lines")
