"""What is edited after submit does not reach the job: real ranks of a real queue, and a package installed editable."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

import serried
from serried.submission.snapshot import redirect, site_folders, survey

pytestmark = pytest.mark.runs

TRAIN = """
import os, pathlib, sys, time
go = pathlib.Path(sys.argv[1])
print("ready", flush=True)
while not go.exists():
    time.sleep(0.05)
import digits, helper
print(digits.VERSION, helper.VERSION, pathlib.Path("data/set").read_text(), flush=True)
pathlib.Path(__file__).write_text("broken(")
"""


PYPROJECT = """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
[project]
name = "digits"
version = "1"
"""


def install_editable(venv, project):
    """`pip install -e`, without the network: setuptools is the one of the environment that runs the tests."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    pip = [sys.executable, "-m", "pip", "--python", venv / "bin/python", "install", "--quiet"]
    setuptools = importlib.util.find_spec("setuptools")
    assert setuptools is not None
    assert setuptools.origin is not None
    environment = {**os.environ, "PYTHONPATH": str(Path(setuptools.origin).parents[1])}
    subprocess.run([*pip, "--no-build-isolation", "--no-deps", "-e", project], env=environment, check=True)


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A src layout, installed editable in the active environment, with data that git ignores."""
    folder = tmp_path / "project"
    for path, text in {
        "src/digits/__init__.py": "VERSION = 1\n",
        "helper.py": "VERSION = 1\n",
        "train.py": TRAIN,
        ".gitignore": "data/\n",
        "data/set": "data 1",
        "pyproject.toml": PYPROJECT,
    }.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)

    install_editable(tmp_path / "venv", folder)
    monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path / "venv"))
    monkeypatch.setenv("PATH", f"{tmp_path}/venv/bin:{os.environ['PATH']}")
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.chdir(folder)
    return folder


def edit(project):
    for path in ("src/digits/__init__.py", "helper.py"):
        (project / path).write_text("VERSION = 2\n")
    (project / "train.py").unlink()
    (project / "data/set").write_text("data 2")


def submit(go, **more):
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return serried.submit(["python", "train.py", str(go)], cluster="local", cpus=cpus, **more)


def test_neither_a_running_nor_a_queued_job_sees_what_is_edited(project, tmp_path, wait_until):
    go = tmp_path / "go"
    running, queued = submit(go), submit(go)
    wait_until(running.logs)
    assert queued.state == "PENDING"

    edit(project)
    go.touch()

    assert [run.wait(240) for run in (running, queued)] == ["COMPLETED", "COMPLETED"]
    # Ignored data is linked to, not frozen; and neither run saw that the other wrote over its own source.
    assert [run.logs() for run in (running, queued)] == ["ready\n1 1 data 2\n"] * 2
    assert not (project / "train.py").exists()
    files = [run.directory / "source/helper.py" for run in (running, queued)]
    assert [path.stat().st_nlink for path in files] == [1, 1]
    assert len(list((running.directory.parents[1] / "sources").iterdir())) == 1  # one archive of one content


def test_the_finder_of_a_flat_layout_is_turned_to_the_snapshot_too(tmp_path):
    flat = tmp_path / "flat"
    for path, text in {
        "digits/__init__.py": "",
        "data/set": "",
        "pyproject.toml": PYPROJECT + '[tool.setuptools]\npackages = ["digits"]\n',
    }.items():
        (flat / path).parent.mkdir(parents=True, exist_ok=True)
        (flat / path).write_text(text)
    install_editable(tmp_path / "venv", flat)
    sites = site_folders(tmp_path / "venv")
    assert list(sites[0].glob("__editable___*_finder.py")) != []
    assert redirect(survey(flat), sites) == (".",)


def test_without_a_snapshot_it_runs_in_place(project, tmp_path, wait_until):
    go = tmp_path / "go"
    run = submit(go, settings={"project.snapshot": False})
    wait_until(run.logs)
    edit(project)
    (project / "train.py").touch()
    go.touch()
    assert run.wait(240) == "COMPLETED"
    assert run.logs() == "ready\n2 2 data 2\n"
    assert not Path(run.directory / "source").exists()


def test_code_beside_the_folder_it_was_submitted_from_is_there(tmp_path, monkeypatch):
    """`sys.path.append("..")` in a folder of a repository."""
    repository = tmp_path / "repository"
    for path, text in {
        "lib.py": "VALUE = 3\n",
        "experiments/train.py": "import sys; sys.path.append('..'); import lib; print(lib.VALUE, lib.__file__)\n",
    }.items():
        (repository / path).parent.mkdir(parents=True, exist_ok=True)
        (repository / path).write_text(text)
    subprocess.run(["git", "init", "-q"], cwd=repository, check=True)
    monkeypatch.chdir(repository / "experiments")
    run = serried.submit(["python3", "train.py"], cluster="local")
    assert run.wait(240) == "COMPLETED"
    assert run.logs() == f"3 {run.directory}/source/experiments/../lib.py\n"
