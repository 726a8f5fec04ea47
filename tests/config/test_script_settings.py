"""Settings of an experiment with a job script: those that cannot apply, and those of another scheduler's directives."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from resolving import refusal, resolve
from serried import config

EXPERIMENT = '[experiments.train]\nscript = "train.sbatch"\n'


@pytest.fixture(autouse=True)
def job_script(tmp_path: Path) -> None:
    (tmp_path / "train.sbatch").write_text("#!/bin/bash\necho hi\n")


@pytest.mark.parametrize(
    ("setting", "message", "hint"),
    [
        ("shell = true", "`shell`", "its `#!` line names its interpreter"),
        ('launch.kind = "torchrun"', "`launch.kind`", "the script starts its launcher itself"),
        (
            'container.image = "a.sif"',
            "`container.image`",
            "the script enters a container itself, for example by `srun apptainer exec IMAGE …`",
        ),
        ('environment.setup = "ulimit -n 99"', "`environment.setup`", "write these lines into the script"),
    ],
)
def test_settings_that_a_script_cannot_follow_are_refused(tmp_path: Path, setting: str, message: str, hint: str):
    refused = refusal(tmp_path, EXPERIMENT + setting)
    assert refused == (f"serried.toml:3: {message} does not apply to a job script", hint)


def test_a_flag_that_a_script_cannot_follow_is_refused(tmp_path: Path):
    refused = refusal(tmp_path, EXPERIMENT, launch__kind="mpirun")
    assert refused == ("`launch.kind` does not apply to a job script", "the script starts its launcher itself")


def test_defaults_that_a_script_cannot_follow_are_left_out_with_a_note(tmp_path: Path):
    text = '[defaults]\nlaunch.kind = "torchrun"\nenvironment.setup = "ulimit -n 99"\n'
    resolved = resolve(tmp_path, text + EXPERIMENT, cluster="local")
    assert (resolved.experiment.launch.kind, resolved.experiment.environment.planned.setup) == ("", "")
    assert resolved.notes == (
        "`launch` of serried.toml:2 does not apply to a job script",
        "`environment.setup` of serried.toml:3 does not apply to a job script",
    )


@pytest.mark.parametrize(
    ("value", "message"), [('"\'a"', "`script` has a quote that is never closed"), ('[""]', "`script` names no file")]
)
def test_a_script_that_names_no_file_is_refused_with_its_line(tmp_path: Path, value: str, message: str):
    refused, _ = refusal(tmp_path, f"[experiments.train]\nscript = {value}\n")
    assert refused == f"serried.toml:2: {message}"


def test_words_of_another_cluster_are_no_settings_here(tmp_path: Path):
    (tmp_path / "train.pbs").write_text(
        "#!/bin/bash\n#PBS -q longq\n#PBS -A project-1\n#PBS -l select=2:ncpus=4,walltime=2:00:00\n"
    )
    resolved = config.resolve(None, ("train.pbs",), {}, "local", tmp_path, os.environ, is_script=True)
    asked = resolved.experiment.resources
    assert (asked.partition, asked.account, asked.nodes, asked.time) == (None, None, 2, 7200)


def test_requeue_without_attempts_is_noted(tmp_path: Path):
    (tmp_path / "train.pbs").write_text("#!/bin/bash\n#PBS -r y\n")
    note = "`-r y` of the script has no effect without `--chain N`, which allows N attempts"
    ours = EXPERIMENT.replace("train.sbatch", "train.pbs")
    assert note in resolve(tmp_path, ours, cluster="pbs").notes
    assert note not in resolve(tmp_path, ours, cluster="pbs", limit__restarts=2).notes
