"""stdout that its reader has closed, that is full, or that does not exist."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture
def serried(make):
    """Run a command with a stdout of its own: its exit status and stderr."""
    make(name="digits").ending()

    def run(*arguments, stdout, unbuffered=""):
        ended = subprocess.run(
            [sys.executable, "-m", "serried", *arguments],
            stdout=stdout,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
            text=True,
            timeout=900,
            check=False,
        )
        return ended.returncode, ended.stderr

    return run


@pytest.fixture
def closed():
    reader, writer = os.pipe()
    os.close(reader)
    yield writer
    os.close(writer)


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("line", ["ps --all", "show last --json", "--help", "ps --help"])
def test_a_reader_that_has_seen_enough_is_no_failure(serried, closed, line, unbuffered):
    assert serried(*line.split(), stdout=closed, unbuffered=unbuffered) == (0, "")


def test_a_command_whose_status_says_more_does_not_succeed_without_its_reader(serried, closed):
    status, _ = serried("wait", "last", "--json", stdout=closed, unbuffered="1")
    assert status == 1


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_output_that_has_no_room_is_an_error(serried, unbuffered):
    with Path("/dev/full").open("w") as full:
        ended = serried("ps", "--all", stdout=full, unbuffered=unbuffered)
    assert ended == (1, "error: cannot write the output: no space left on device\n")


def test_a_command_without_stdout_runs(make):
    make().ending()
    line = f"exec {sys.executable} -m serried ps --all >&-"
    ended = subprocess.run(["sh", "-c", line], stderr=subprocess.PIPE, text=True, timeout=900, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
