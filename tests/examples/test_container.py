"""The example in a container; its image has this very Python, instead of the one that the definition fetches."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import containing

EXAMPLE = Path(__file__).parents[2] / "examples" / "container"


def serried(project, *arguments):
    path = containing.path_with("apptainer")
    environ = {
        **os.environ,
        "PATH": path,
        "SERRIED_LOCAL_DIR": str(project.parent / "local"),
        "CUDA_VISIBLE_DEVICES": "",
    }
    argv = [sys.executable, "-m", "serried", *arguments]
    return subprocess.run(argv, cwd=project, env=environ, capture_output=True, text=True, timeout=600, check=False)


@pytest.mark.torch
def test_its_ranks_learn_in_the_container(tmp_path: Path):
    project = shutil.copytree(EXAMPLE, tmp_path / "container")
    image = containing.build(
        containing.skeleton(tmp_path / "rootfs"), tmp_path / "python.sif", containing.path_with("apptainer")
    )
    changes = {
        "container.image": str(image),
        "container.binds": json.dumps(containing.needed()),
        "command": json.dumps([sys.executable, "train.py", "--steps", "50"]),
    }

    done = serried(project, "run", *(word for name, value in changes.items() for word in ("--set", f"{name}={value}")))

    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("[0] 2 ranks on cpu, ")
    assert "[0] loss=0." in done.stdout


def test_its_image_is_made_from_its_definition(tmp_path: Path):
    project = shutil.copytree(EXAMPLE, tmp_path / "container")

    said = serried(project, "env", "build", "--dry-run").stdout

    assert shlex.quote((EXAMPLE / "torch.def").read_text()) in said
    assert said.rstrip().endswith("/torch.sif")
