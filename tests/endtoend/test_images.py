"""`serried env build` with a real Apptainer: made once, kept by what it is made from."""

from __future__ import annotations

import concurrent.futures
import json
from pathlib import Path

import pytest

import containing

DEFINITION = """\
Bootstrap: localimage
From: {image}

%files
    greeting.txt /srv/greeting.txt

%environment
    export GREETING="the image's"
    export PYTHONPATH=/srv/of-the-image
"""
PRINTS = 'cat /srv/greeting.txt; echo "$GREETING"; echo "${PYTHONPATH##*:}"; exit 4'


@pytest.fixture
def place(local, tmp_path):
    """A project whose experiment runs in an image that is to be made."""
    path = containing.path_with("apptainer")
    base = containing.build(containing.skeleton(tmp_path / "rootfs"), tmp_path / "base.sif", path)
    folder = local.project / 'it\'s a "project" $(id)'
    folder.mkdir()
    (folder / "train it.def").write_text(DEFINITION.format(image=base))
    (folder / "greeting.txt").write_text("hello\n")
    container = {"image": "train it.def", "binds": "/usr"}
    (folder / "serried.toml").write_text(
        containing.table("experiments.x", {"command": ["sh", "-c", PRINTS]})
        + containing.table("experiments.x.resources", {"ranks": 1})
        + containing.table("experiments.x.container", container)
        + containing.table("experiments.x.environment.env", {"GREETING": "the experiment's"})
    )
    return type(local)("local", folder, {**local.environ, "PATH": path})


def test_an_image_is_made_once_used_and_made_again_once_its_definition_changes(place):
    refused = place.serried("submit", "--cluster", "local", "x")
    said = "error: the image from `train it.def` is not built, or its source has changed since\n"
    assert (refused.returncode, refused.stderr.splitlines(keepends=True)[0]) == (2, said)
    assert refused.stderr.endswith("hint: `serried env build x`, then submit again\n")
    with concurrent.futures.ThreadPoolExecutor() as pool:
        both = list(pool.map(lambda _: place.serried("env", "build", "--json"), range(2)))
    answers = [json.loads(done.stdout) for done in both]
    assert answers[0]["image"] == answers[1]["image"], [done.stderr for done in both]

    ran = place.serried("run", "x")

    assert (ran.returncode, ran.stdout) == (4, "hello\nthe experiment's\n/srv/of-the-image\n")
    (place.project / "greeting.txt").write_text("hello again\n")
    assert place.serried("submit", "--cluster", "local", "x").returncode == 2
    again = place.serried("env", "build")
    assert (again.returncode, Path(again.stdout.strip()).is_file()) == (0, True)
    assert again.stdout.strip() != answers[0]["image"]
    assert place.serried("env", "build", "--json").stdout.count('"was_there": true') == 1
    assert Path(answers[0]["image"]).exists()


def test_a_job_makes_an_image_and_says_why_it_could_not(place):
    done = place.serried("env", "build", "x", "--job")
    assert (done.returncode, Path(done.stdout.strip()).is_file()) == (0, True), done.stderr
    [run] = json.loads(place.serried("ps", "--json", "--all").stdout)["runs"]
    assert (run["experiment"], run["state"]) == ("environment", "COMPLETED")

    (place.project / "greeting.txt").unlink()
    failed = place.serried("env", "build", "x", "--here")

    assert failed.returncode == 1
    assert "greeting.txt" in failed.stderr
    assert place.serried("submit", "--cluster", "local", "x").returncode == 2
