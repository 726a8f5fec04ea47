"""Commands of first-day, of the tutorials and of README, typed in turn, print what the pages show."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import transcripts
from place import Place

ROOT = Path(__file__).parents[2]
FAILS_ON_RANK_3 = """import os

if os.environ["SLURM_PROCID"] == "3":
    raise ValueError("loss is nan")
"""


@pytest.fixture
def typed(slurm: Place, tmp_path: Path) -> Callable[[str], str]:
    """What a command prints in a project of its own, with the names of places that the pages have."""
    project = tmp_path / "digits"
    project.mkdir()
    path = f"{Path(sys.executable).parent}{os.pathsep}{slurm.environ['PATH']}"
    places = {project: "/home/ada/digits", tmp_path / "scratch": "/scratch/ada", tmp_path / "home": "/home/ada"}

    def run(command: str) -> str:
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=project,
            env={**slurm.environ, "PATH": path},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        for place, shown in places.items():
            done.stdout = done.stdout.replace(str(place), shown)
        return done.stdout

    return run


def write_files(page: str, project: Path) -> None:
    """The files that a page shows, each below a comment with its name."""
    for name, text in re.findall(r"(?ms)^<!-- (\S+) -->\n```\w+\n(.*?)^```$", page):
        (project / name).write_text(text, encoding="utf-8")


@pytest.mark.torch
def test_the_first_day_goes_as_its_page_shows(typed, tmp_path: Path) -> None:
    path = ROOT / "docs" / "start" / "first-day.md"
    page = path.read_text(encoding="utf-8")
    write_files(page, tmp_path / "digits")
    renewed = transcripts.renew(page, typed)
    model = tmp_path / "digits" / "results" / "model.pt"
    assert [*pytest.importorskip("torch").load(model, weights_only=True)] == [
        "0.weight",
        "0.bias",
        "2.weight",
        "2.bias",
    ]  # a plain model's, though of two ranks
    (tmp_path / path.name).write_text(renewed, encoding="utf-8")
    assert page == renewed, f"cp {tmp_path / path.name} {path}"


def test_the_first_failure_is_reported_as_its_page_shows(typed, tmp_path: Path) -> None:
    path = ROOT / "docs" / "tutorials" / "hang-or-crash.md"
    before, heading, rest = path.read_text(encoding="utf-8").partition("## A rank that fails\n")
    example, following, after = rest.partition("\n## ")
    write_files(example, tmp_path / "digits")
    renewed = transcripts.renew(example, typed)
    (tmp_path / path.name).write_text(f"{before}{heading}{renewed}{following}{after}", encoding="utf-8")
    assert example == renewed, f"cp {tmp_path / path.name} {path}"


@pytest.mark.parametrize(
    "tutorial",
    [
        "data-in-results-out",
        pytest.param("long-training", marks=pytest.mark.torch),
        pytest.param("first-sweep", marks=pytest.mark.torch),
    ],
)
def test_a_tutorial_goes_as_its_page_shows(typed, tmp_path: Path, tutorial: str) -> None:
    path = ROOT / "docs" / "tutorials" / f"{tutorial}.md"
    page = path.read_text(encoding="utf-8")
    write_files(page, tmp_path / "digits")
    renewed = transcripts.renew(page, typed)
    (tmp_path / path.name).write_text(renewed, encoding="utf-8")
    assert page == renewed, f"cp {tmp_path / path.name} {path}"


def test_a_failure_behind_a_pipe_is_reported_as_the_readme_shows(typed, tmp_path: Path) -> None:
    path = ROOT / "README.md"
    page = path.read_text(encoding="utf-8")
    [lines] = re.findall(r"(?ms)^```bash\n(.*?)^```$", page)
    script = f"#!/bin/bash\n#SBATCH --nodes=2 --ntasks-per-node=2\n{lines}"
    (tmp_path / "digits" / "train.sbatch").write_text(script, encoding="utf-8")
    (tmp_path / "digits" / "train.py").write_text(FAILS_ON_RANK_3, encoding="utf-8")
    run = typed("serried submit train.sbatch").split()[-1]
    typed(f"serried wait {run}")
    [shown] = re.findall(r"(?m)^(\w{6}) train FAILED", page)
    renewed = transcripts.renew(page, lambda command: typed(command).replace(run, shown))
    (tmp_path / path.name).write_text(renewed, encoding="utf-8")
    assert page == renewed, f"cp {tmp_path / path.name} {path}"
