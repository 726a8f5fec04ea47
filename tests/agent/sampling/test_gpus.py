"""The GPUs of the job."""

from __future__ import annotations

from serried.agent.sampling import gpus


def test_a_job_without_gpus_has_no_source():
    assert gpus.open_source("") is None
