"""The Pythons of this machine that a compute node might have."""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

PROBE = "import sys; print(sys.version_info >= (3, 9), sys.executable)"


@cache
def interpreters():
    """One of each, from 3.9 on."""
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
