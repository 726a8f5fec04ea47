"""The agent under every Python there is on this machine, from 3.9 on."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

PROBE = "import sys; print(sys.version_info >= (3, 9), sys.executable)"


def interpreters():
    names = [f"python3.{minor}" for minor in range(9, 20)]
    candidates = [shutil.which(name) for name in (*names, "/usr/bin/python3")]
    candidates += sorted(str(path) for path in Path("~/.pyenv/versions").expanduser().glob("*/bin/python"))
    found = {}
    for candidate in filter(None, candidates):
        probe = subprocess.run([candidate, "-I", "-S", "-c", PROBE], capture_output=True, text=True, check=False)
        fits, _, path = probe.stdout.strip().partition(" ")
        if fits == "True":
            found[os.path.realpath(path)] = candidate
    return sorted(found.values())


@pytest.mark.parametrize("python", interpreters())
def test_the_agent_runs_under_this_python(start, python):
    run = start("test $RANK = 1 && exit 3; sleep 100", nodes=2, ranks=1, python=python)

    assert run.wait() == 3
    assert (run.ending[:3], run.log) == (("FAILED", 3, "exit"), "")
