"""docs/first-day.md: its commands, typed in turn, print what the page shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import transcripts
from place import Place

PAGE = Path(__file__).parents[2] / "docs" / "first-day.md"


@pytest.mark.torch
def test_the_first_day_goes_as_its_page_shows(slurm: Place, tmp_path: Path) -> None:
    page = PAGE.read_text(encoding="utf-8")
    project = tmp_path / "digits"
    project.mkdir()
    for name, language in (("train.py", "python"), ("serried.toml", "toml")):
        [text] = re.findall(rf"(?ms)^<!-- {name} -->\n```{language}\n(.*?)^```$", page)
        (project / name).write_text(text, encoding="utf-8")
    path = f"{Path(sys.executable).parent}{os.pathsep}{slurm.environ['PATH']}"

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
        places = {project: "/home/ada/digits", tmp_path / "scratch": "/scratch/ada", tmp_path / "home": "/home/ada"}
        for place, shown in places.items():
            done.stdout = done.stdout.replace(str(place), shown)
        return done.stdout

    renewed = transcripts.renew(page, run)
    (tmp_path / PAGE.name).write_text(renewed, encoding="utf-8")

    assert page == renewed, f"cp {tmp_path / PAGE.name} {PAGE}"
