"""What the Makefile looks for before it installs anything."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("programs", "status"),
    [
        ({"g++": "", "cmake": "", "mpicxx": "grep -q mpi.h"}, 0),
        ({"g++": "", "cmake": "", "mpicxx": "exit 1"}, 1),  # Debian's openmpi-bin without libopenmpi-dev
        ({"g++": "", "mpicxx": ""}, 1),
    ],
)
def test_horovod_is_built_only_where_mpi_programs_compile(tmp_path: Path, programs: dict[str, str], status: int):
    for name, does in programs.items():
        (tmp_path / name).write_text(f"#!/bin/bash\nPATH={os.environ['PATH']}\n{does}\n")
        (tmp_path / name).chmod(0o755)
    script = ["/bin/bash", ROOT / "tests/wheels/horovod.sh", "check"]
    assert subprocess.run(script, env={"PATH": str(tmp_path)}, check=False).returncode == status


def test_make_horovod_asks_for_the_headers():
    said = subprocess.run(["make", "-n", "horovod"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "tests/wheels/horovod.sh check ||" in said
