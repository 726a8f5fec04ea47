"""What `qsub` leaves behind when it refuses; a script stands in for it, as no package brings PBS."""

from __future__ import annotations

from pathlib import Path

import pytest

from serried.contract.files import read_environment
from serried.errors import SchedulerUnreachable, SubmissionRefused
from serried.schedulers.interface import Submission
from serried.schedulers.pbs.scheduler import Pbs


def submit(folder: Path, script: str) -> str:
    qsub = folder / "qsub"
    qsub.write_text(f"#!/bin/sh\n{script}\n")
    qsub.chmod(0o755)
    return Pbs().submit(Submission((str(qsub),), {"KEY": "value"}, handover=folder / "private" / "k3f9q2"))


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
