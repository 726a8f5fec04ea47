"""The schedulers that there are, and what each brings of its own."""

from __future__ import annotations

import pytest

from house import HOUSE
from serried import schedulers
from serried.base.errors import MissingProgramError
from serried.schedulers.slurm.commands import Slurm


def test_each_folder_is_a_scheduler():
    folders = {path.name for path in (HOUSE / "schedulers").iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert set(schedulers.NAMES) <= folders
    assert {"local", "pbs", "slurm"} <= set(schedulers.NAMES)


def test_where_slurm_is_the_commands_of_pbs_are_its_wrappers(tmp_path):
    for program in ("sbatch", "qsub", "pbsnodes"):
        (tmp_path / program).touch(mode=0o755)
    assert schedulers.here({"PATH": str(tmp_path)}) == "slurm"
    (tmp_path / "sbatch").unlink()
    assert schedulers.here({"PATH": str(tmp_path)}) == "pbs"


def test_variables_of_any_job_are_dropped_and_those_that_select_a_cluster_stay():
    kept = {"HOME": "/home/me", "SLURM_CONF": "/etc/slurm.conf", "PBS_SERVER": "head"}
    dropped = ["SLURM_JOB_ID", "SBATCH_ACCOUNT", "PBS_JOBID", "PMI_RANK", "PMIX_RANK", "SERRIED_JOB"]
    assert schedulers.scrub({**kept, **dict.fromkeys(dropped, "1")}) == kept


@pytest.mark.parametrize(
    ("scheduler", "program", "hint"),
    [
        ("pbs", "qsub", "PBS provides it: try a login node of the cluster, or a login shell, `bash -l`"),
        ("slurm", "sbatch", "apt-get install slurm-wlm (on Debian or Ubuntu, as root)"),
    ],
)
def test_a_missing_command_is_named_with_what_brings_it(scheduler, program, hint):
    missing = schedulers.missing_command(scheduler, program)
    assert missing.message == f"`{program}` is not installed, or not on PATH"
    assert missing.hint.startswith(hint)


def test_a_query_names_what_brings_its_command(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("serried.base.shell.PACKAGES", {})
    with pytest.raises(MissingProgramError) as caught:
        Slurm().query(("squeue",))
    assert caught.value.hint.startswith("Slurm provides it: ")
