"""What `serried init --template` writes trains as it is, on two ranks, and goes on where it was stopped."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import serried
from serried import templates

pytestmark = pytest.mark.torch


PYTEST = "import sys, pytest; sys.executable = sys.argv.pop(1); sys.exit(pytest.main(sys.argv[1:]))"
"""With another Python for what the tests start."""


def user_environment(commands: Path) -> dict[str, str]:
    paths = {"PATH": f"{commands}:{os.environ['PATH']}", "PYTHONPATH": str(Path(serried.__file__).parents[1])}
    return {**os.environ, **paths, "OMP_NUM_THREADS": "1"}


def project_of(template: str, tmp_path: Path) -> Path:
    if template == "lightning" and importlib.util.find_spec("lightning") is None:
        if os.environ.get("CI") == "true":
            pytest.fail("`lightning` is not installed")
        pytest.skip("needs lightning: pip install lightning")
    project = tmp_path / "project"
    project.mkdir()
    for name, content in templates.files(template).items():
        (project / name).write_bytes(content)
    return project


@pytest.mark.parametrize("template", templates.TEMPLATES)
def test_the_test_of_a_new_project_passes(template: str, tmp_path: Path, commands: Path):
    # The other test is the same file for all, and what it asks of their scripts is asked below, for less.
    options, passed = ((), "2 passed") if template == "train" else (("-k", "two_ranks"), "1 passed")
    done = subprocess.run(
        [sys.executable, "-c", PYTEST, str(commands / "python"), "-q", "-p", "no:cacheprovider", *options],
        cwd=project_of(template, tmp_path),
        env=user_environment(commands),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert passed in done.stdout


@pytest.mark.parametrize("template", [each for each in templates.TEMPLATES if each != "train"])
def test_a_new_project_goes_on_where_it_was_stopped(template: str, tmp_path: Path, train):
    script = project_of(template, tmp_path) / "train.py"
    stop = tmp_path / "stop"
    stop.write_text("limit")
    stopped = train(script, "--epochs", "2", SERRIED_CHECKPOINT_DIR=tmp_path, SERRIED_STOP_FILE=stop)
    assert stopped.statuses == [85, 85], stopped.output
    finished = train(script, "--epochs", "2", SERRIED_CHECKPOINT_DIR=tmp_path)
    assert finished.succeeded()
    epoch, accuracy = re.findall(r"epoch (\d): .*accuracy (\d\.\d+)", finished.output)[-1]
    assert (epoch, float(accuracy) > 0.9) == ("2", True)
