"""The table `container`: paths made absolute, and what is wrong refused with its line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from resolving import BARE, refusal, resolve
from serried.schema.plan import Container


@pytest.mark.parametrize(
    ("said", "image"),
    [
        ('"torch.sif"', "{project}/torch.sif"),
        ('"../images/it\'s $(id).sif"', "{parent}/images/it's $(id).sif"),
        ('"~/torch.sif"', "{home}/torch.sif"),
        ('"$IMAGES/torch.sif"', "/images/torch.sif"),
        ('"docker://pytorch/pytorch:2.6.0"', "docker://pytorch/pytorch:2.6.0"),
        ("false", ""),
        ('"off"', ""),
    ],
)
def test_an_image_is_a_path_or_an_address(folder: Path, monkeypatch: pytest.MonkeyPatch, said: str, image: str):
    monkeypatch.setenv("IMAGES", "/images")
    found = resolve(folder, f"[defaults]\ncontainer.image = {said}", command=BARE).experiment.container
    places = {"{project}": str(folder), "{parent}": str(folder.parent), "{home}": os.environ["HOME"]}
    for name, place in places.items():
        image = image.replace(name, place)
    assert found == Container(image=image)


def test_what_pyxis_is_told_is_not_looked_for(folder: Path):
    found = resolve(folder, '[defaults.container]\nimage = "nvcr.io#x:1"\nruntime = "pyxis"', command=BARE)
    assert found.experiment.container.image == "nvcr.io#x:1"


def test_a_cluster_says_what_runs_containers_there_and_one_experiment_that_it_has_none(folder: Path):
    text = """
[defaults.container]
image = "/i.sif"
[clusters.local.container]
runtime = "/opt/singularity/bin/singularity"
binds = ["$HOME/data:/data:ro"]
[experiments.x]
command = "a"
[experiments.y]
command = "b"
on.local.container.image = "off"
"""
    found = resolve(folder, text, name="x").experiment.container
    binds = (f"{os.environ['HOME']}/data:/data:ro",)
    assert found == Container(image="/i.sif", runtime="/opt/singularity/bin/singularity", binds=binds)
    assert resolve(folder, text, name="y").experiment.container.image == ""


@pytest.mark.parametrize("name", ["$SLURM_TMPDIR", "${SLURM_TMPDIR}"])
def test_the_node_s_own_disk_is_not_looked_up_here(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str):
    monkeypatch.setenv("SLURM_TMPDIR", "/of/this/job")
    monkeypatch.setenv("SLURM_TMPDIR_2", "/other")
    text = f'[defaults.container]\nimage = "/i.sif"\nbinds = ["{name}", "{name}/a b:/c:ro", "$SLURM_TMPDIR_2/x"]'
    found = resolve(folder, text, command=BARE).experiment.container
    assert found.binds == ("$SLURM_TMPDIR", "$SLURM_TMPDIR/a b:/c:ro", "/other/x")


def test_an_experiment_that_has_an_image_and_no_command_runs_the_image_s_own(folder: Path):
    text = "[experiments.x]\nresources.ranks = 1\n"
    assert resolve(folder, text + "container.image = '/i.sif'\n", name="x").experiment.command == ("%runscript",)
    assert refusal(folder, text, name="x")[0].endswith("the experiment `x` has no `command`")


def test_it_may_be_set_by_a_variable(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SERRIED_CONTAINER_IMAGE", "/i.sif")
    assert resolve(folder, command=BARE).experiment.container == Container(image="/i.sif")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('runtime = "aptainer"', "`defaults.container.runtime` must be one of"),
        ('runtime = "bin/apptainer"', "`defaults.container.runtime` must be one of"),
        ('binds = ["data"]', "`container.binds`: `data` must be `/folder`"),
        ('binds = ["/a:/b:/c"]', "`container.binds`: `/a:/b:/c` has too many colons"),
        ('binds = ["$NOWHERE/x"]', "`container.binds` names `$NOWHERE`, which is not set here"),
        ('image = "$NOWHERE/x.sif"', "`container.image` names `$NOWHERE`, which is not set here"),
    ],
)
def test_what_is_wrong_is_refused_at_its_line(folder: Path, line: str, message: str):
    said = refusal(folder, f"[defaults.container]\n{line}", command=BARE)[0]
    assert said.startswith(f"serried.toml:2: {message}"), said
