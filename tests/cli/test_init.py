from __future__ import annotations

import os
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from resolving import fake_slurm
from serried import config
from serried.base.errors import UsageError
from serried.cli import init
from serried.config import definitions
from tables import for_each


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made = tmp_path / "digits"
    made.mkdir()
    monkeypatch.chdir(made)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    return made


def start() -> str:
    """Run `serried init` here; returns what it says."""
    result = CliRunner().invoke(init.command, catch_exceptions=False, standalone_mode=False)
    if result.exception:
        raise result.exception
    return result.stderr


def test_a_first_file_fits_the_folder(folder: Path):
    (folder / "train.py").write_text("import torch.distributed")
    said = start()
    assert (folder / "serried.toml").read_text() == (
        """\
# Experiments and their resources. `serried config show --explain` explains each setting.
[project]
name = "digits"

[experiments.train]
command = ["python3", "train.py"]

[experiments.train.resources]
nodes = 1
ranks = 2      # processes; on GPUs: gpus = 4

# Recognised here: cluster `local`. Settings for one cluster only (`serried clusters` lists all):
# [experiments.train.on.slurm.resources]
# nodes = 2
"""
    )
    assert said == (
        """\
wrote serried.toml for `train.py` on cluster `local`
  serried run                run it here, now
  serried submit --dry-run   see what would be submitted
  serried submit             submit it to `local`
"""
    )


def test_a_job_script_that_is_here_can_be_imported(folder: Path):
    (folder / "train.py").write_text("import torch.distributed")
    (folder / "README.md").write_text("Jobs begin with `#SBATCH`.")
    assert "job script" not in start()
    (folder / "serried.toml").unlink()

    (folder / "go there.sh").write_text("#!/bin/bash\n#SBATCH --nodes=2\nsrun python train.py\n")
    expected = (
        "note: `go there.sh` is a job script; add its settings: serried init --from 'go there.sh' >> serried.toml"
    )
    assert start().splitlines()[1] == expected


def test_a_script_that_shares_nothing_out_is_noted(folder: Path):
    (folder / "train.py").write_text("import torch")
    assert start().splitlines()[1] == (
        "note: `train.py` does not seem to be distributed, so it gets one rank; for more, see `serried docs adapt`"
    )
    assert "\nranks = 1 " in (folder / "serried.toml").read_text()


def test_of_several_scripts_none_is_taken_and_some_are_named(folder: Path):
    for name in "dcba":
        (folder / f"{name}.py").write_text("import torch")
    (folder / "setup.py").write_text("")
    assert start().splitlines() == [
        "wrote serried.toml for this folder on cluster `local`",
        "note: write the script to run into `command`; this folder has `a.py`, `b.py`, `c.py` and 1 more",
    ]


def test_where_a_cluster_has_gpus_and_this_machine_none_the_next_step_is_on_cpus(
    folder: Path, monkeypatch: pytest.MonkeyPatch
):
    fake_slurm(folder, monkeypatch)
    (folder / "train.py").write_text("import torch.distributed")
    assert start().splitlines()[1:] == [
        "  serried run --gpus 0 --ranks 2   run it here, now, on CPUs",
        "  serried submit --dry-run         see what would be submitted",
        "  serried submit                   submit it to `slurm`",
    ]


def test_where_no_environment_is_active_it_says_that_one_can_be_built(folder: Path, monkeypatch: pytest.MonkeyPatch):
    (folder / "train.py").write_text("import torch.distributed")
    (folder / "requirements.txt").write_text("torch\n")
    monkeypatch.setenv("VIRTUAL_ENV", "/somewhere")
    assert "no environment is active" not in start()

    (folder / "serried.toml").unlink()
    monkeypatch.delenv("VIRTUAL_ENV")
    monkeypatch.delenv("CONDA_PREFIX", raising=False)
    monkeypatch.setattr(sys, "prefix", sys.base_prefix)
    assert "with `environment.venv = true` Serried builds one from `requirements.txt`" in start()


def test_a_file_or_a_link_that_is_there_is_never_overwritten(folder: Path):
    (folder / "serried.toml").write_text("mine")
    with pytest.raises(UsageError, match="exists already"):
        start()
    assert (folder / "serried.toml").read_text() == "mine"
    (folder / "serried.toml").unlink()
    (folder / "serried.toml").symlink_to("elsewhere.toml")
    with pytest.raises(UsageError, match="exists already"):
        start()
    assert not (folder / "elsewhere.toml").exists()


@pytest.mark.parametrize(
    "name", ["it's", "a b", "é☃", "$(id)", "-rf", "a\\b", "x#y", "%j", "a\nb", 'q"q', "n" * 200, "a\x7f"]
)
def test_a_hostile_folders_name_makes_a_file_that_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
):
    folder = tmp_path / name
    folder.mkdir()
    (folder / f"{name}.py").write_text("if __name__ == '__main__':\n    pass\n")
    monkeypatch.chdir(folder)
    start()
    found = config.resolve(None, None, {}, "local", folder, os.environ)
    assert (found.project.name, found.experiment.command[1]) == (name, f"{name}.py")
    assert (folder / "serried.toml").read_text().count("\n") <= 20


@for_each("cluster", ["local", "slurm", "cedar"])
@for_each("gpus", [0, 4])
def test_what_is_written_is_valid_for_every_cluster(cluster: str, gpus: int):
    text = init.render("digits", "src/train.py", cluster, gpus=gpus)
    uncommented = "\n".join(
        line.removeprefix("# ") if line.startswith(("# [", "# nodes")) else line for line in text.splitlines()
    )
    assert list(definitions.check(tomllib.loads(text)))
    assert list(definitions.check(tomllib.loads(uncommented)))
    assert text.count("\n") <= 20


@pytest.mark.usefixtures("folder")
def test_a_folder_that_cannot_be_written_is_said_to_be_so(monkeypatch: pytest.MonkeyPatch):
    usual = Path.open

    def refuse(path: Path, mode: str = "r", **options: Any) -> Any:
        if mode == "xb":
            raise PermissionError(13, "Permission denied")
        return usual(path, mode, **options)

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(UsageError, match=r"cannot write `serried\.toml`: permission denied"):
        start()
