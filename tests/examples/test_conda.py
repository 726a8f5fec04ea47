"""The example with a conda environment, in a prefix as conda would leave it; conda itself is in no package index."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from serried import config

EXAMPLE = Path(__file__).parents[2] / "examples" / "conda"


def conda_like(prefix: Path) -> Path:
    """A folder with `conda-meta` and a Python of its own, which finds our packages."""
    (prefix / "conda-meta").mkdir(parents=True)
    (prefix / "bin").mkdir()
    (prefix / "bin" / "python").symlink_to(Path(sys.base_prefix) / "bin" / "python3")
    (prefix / "pyvenv.cfg").write_text(f"home = {Path(sys.base_prefix) / 'bin'}\n")
    packages = prefix / "lib" / f"python3.{sys.version_info.minor}" / "site-packages"
    packages.mkdir(parents=True)
    (packages / "ours.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return prefix


@pytest.mark.torch
def test_its_ranks_are_those_of_the_conda_environment(tmp_path: Path):
    prefix = conda_like(tmp_path / "envs" / "regression")
    project = shutil.copytree(EXAMPLE, tmp_path / "conda")
    environ = {**os.environ, "CONDA_ENVS_PATH": str(prefix.parent), "SERRIED_LOCAL_DIR": str(tmp_path / "local")}
    said = ["--set", "environment.conda=regression", "--set", "environment.check=false"]
    argv = [sys.executable, "-m", "serried", "run", *said]

    done = subprocess.run(argv, cwd=project, env=environ, capture_output=True, text=True, check=False)

    expected = f"[0] 2 ranks, Python of {prefix}: weights [2.0, -3.0, 0.5, 1.0]\n"
    assert (done.returncode, done.stdout) == (0, expected), done.stderr


def test_on_a_cluster_that_forbids_conda_it_has_a_virtual_environment():
    environment = config.resolve(
        "train", None, {}, "narval", EXAMPLE, {"HOME": "/home/ada", "USER": "ada"}
    ).experiment.environment

    assert (environment.conda, environment.venv, environment.planned.modules) == (
        None,
        str(EXAMPLE / "requirements.txt"),
        ("StdEnv/2023", "python/3.11"),
    )
