"""Runs Serried as a user does, by its command line, on this machine and on a real Slurm."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from place import HAS_PBS, Place, environment
from serried.lab import Lab


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    return folder


@pytest.fixture
def local(project: Path, tmp_path: Path) -> Place:
    extra = {"SERRIED_LOCAL_DIR": str(tmp_path / "local"), "SERRIED_LOCAL_SLOTS": "8"}
    return Place("local", project, environment(tmp_path, extra))


@pytest.fixture
def slurm(project: Path, tmp_path: Path, lab: Any) -> Place:
    (tmp_path / "scratch").mkdir()
    return Place("slurm", project, environment(tmp_path, lab.variables))


@pytest.fixture
def slurm_of(project: Path, tmp_path: Path, make_lab: Callable[..., Lab]) -> Callable[..., tuple[Place, Lab]]:
    """A Slurm of a test's own: `slurm_of(nodes=2, settings={"SlurmdTimeout": "10"})`, with its lab."""

    def start(**options: Any) -> tuple[Place, Lab]:
        lab = make_lab(**options)
        (tmp_path / "scratch").mkdir()
        return Place("slurm", project, environment(tmp_path, lab.variables)), lab

    return start


@pytest.fixture
def pbs(project: Path, tmp_path: Path) -> Place:
    (tmp_path / "scratch").mkdir()
    return Place("pbs", project, environment(tmp_path, {}))


@pytest.fixture(params=["local", pytest.param("slurm", marks=pytest.mark.slurm), *(["pbs"] if HAS_PBS else [])])
def place(request: pytest.FixtureRequest) -> Place:
    """Each test that takes it runs on this machine and on Slurm; by hand, on a PBS too."""
    return request.getfixturevalue(request.param)
