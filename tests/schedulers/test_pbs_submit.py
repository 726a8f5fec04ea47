"""What `qsub` leaves behind when it refuses, and what `qstat` is asked; scripts stand in, as no package brings PBS."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from serried.base.errors import SchedulerUnreachable, SubmissionRefused
from serried.base.files import read_environment
from serried.schedulers.client import Cache
from serried.schedulers.interface import SubmitCommand
from serried.schedulers.pbs import RELEASE
from serried.schedulers.pbs.commands import TOLERANT, Pbs


def submit(folder: Path, script: str, *options: str) -> str:
    qsub = folder / "qsub"
    qsub.write_text(f"#!/bin/sh\n{script}\n")
    qsub.chmod(0o755)
    return Pbs().submit(SubmitCommand((str(qsub), *options), {"KEY": "value"}, handover=folder / "private" / "k3f9q2"))


@pytest.mark.parametrize(("status", "error"), [(170, SubmissionRefused), (162, SchedulerUnreachable)])
def test_a_first_job_that_is_refused_leaves_no_environment(tmp_path, status, error):
    with pytest.raises(error):
        submit(tmp_path, f"exit {status}")
    assert list((tmp_path / "private").iterdir()) == []


def test_a_further_job_that_is_refused_leaves_the_first_its_environment(tmp_path):
    assert submit(tmp_path, "echo 12.head") == "12.head"
    with pytest.raises(SubmissionRefused):
        submit(tmp_path, "exit 170")
    assert read_environment(tmp_path / "private" / "k3f9q2") == {"KEY": "value"}


@pytest.mark.parametrize(
    "refused",
    [
        "qsub: Error (15002) submitting job' >&2; exit 154",  # an attribute that the version lacks
        "qsub: tolerate_node_failures is not allowed here' >&2; exit 32",  # a hook's words
    ],
)
def test_a_pbs_that_cannot_keep_a_job_with_a_lost_node_is_a_reason_to_request_no_spare_nodes(refused, tmp_path):
    with pytest.raises(SubmissionRefused) as told:
        submit(tmp_path, f"echo '{refused}", *TOLERANT)

    assert (told.value.message, told.value.details, told.value.hint) == (
        "PBS refused the job",
        refused.partition("'")[0],
        "spare nodes need `tolerate_node_failures`, of PBS 19.1 or later; `--spare-nodes 0` requests none",
    )


def put(program: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")


def test_lost_hosts_are_given_back_with_all_their_vnodes(tmp_path, monkeypatch):
    parts = "(n1:ncpus=4)+(n3[0]:ncpus=2+n3[1]:ncpus=2)+(n33:ncpus=4)+(n4.site.org:ncpus=4)"
    put(tmp_path / "qstat", f"echo 'Job Id: 12.head'; echo '    exec_vnode = {parts}'", monkeypatch)
    put(tmp_path / "pbs_release_nodes", f'echo "$@" >>{tmp_path}/released', monkeypatch)
    monkeypatch.setenv("PBS_JOBID", "12.head")

    subprocess.run(["/bin/bash", "-c", RELEASE, "release", "n3.site.org", "n4", "n5"], check=True)

    assert (tmp_path / "released").read_text() == "-j 12.head n3[0] n3[1]\n-j 12.head n4.site.org\n"


@pytest.mark.parametrize(
    "version",
    [
        "echo 'Version: 6.1.2'; echo 'Commit: 661e092552de43a785c15d39a3634a541d86898e'",  # as Torque's manual has it
        "echo 'Unknown option: version' >&2; exit 2",  # Slurm's
    ],
)
def test_torque_and_slurms_wrappers_are_refused_before_anything_is_written(version, tmp_path, monkeypatch):
    put(tmp_path / "qstat", version, monkeypatch)
    with pytest.raises(SubmissionRefused, match="belongs to Torque or to Slurm's wrappers"):
        submit(tmp_path, "touch submitted; echo 12.head")
    assert not (tmp_path / "private").exists()


def test_a_pbs_is_known_by_its_version(tmp_path, monkeypatch):
    put(tmp_path / "qstat", "echo 'pbs_version = 23.06.06'", monkeypatch)
    assert submit(tmp_path, "echo 12.head") == "12.head"


def test_any_number_of_runs_is_asked_about_at_once_and_nothing_else_is(tmp_path, monkeypatch):
    """Without -E `qstat` connects once for each; without ids it prints all jobs of all users."""
    put(tmp_path / "qstat", f'echo "$@" >>{tmp_path}/asked', monkeypatch)
    runs = [f"{number}.head" for number in range(100)]

    assert Pbs(cache=Cache(tmp_path / "cache.json")).poll(runs) == {}

    asked = (tmp_path / "asked").read_text().splitlines()
    assert [line.split() for line in asked] == [["-E", "-x", "-t", "-f", "-w", *sorted(runs)]]
