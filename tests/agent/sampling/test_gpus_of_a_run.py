"""GPUs of a real run, with a stand-in for `nvidia-smi`: this machine needs no GPU."""

from __future__ import annotations

import os

import pytest

from serried.fs.files import read_journal, read_json

pytestmark = pytest.mark.runs

NVIDIA_SMI = """#!/bin/sh
case "$1" in
*compute-apps*) echo "GPU-2b, 1, 31000";;
*) echo "GPU-1a, NVIDIA A100, 81920, 400.00, 97, 71000, 398.51, 61, 1410, 0, 0x0000000000000004"
   echo "GPU-2b, NVIDIA A100, 81920, 400.00, 3, 31000, 61.02, 30, 210, 0, 0x0000000000000001";;
esac
"""
UNTIL = 'until [ -e "$SERRIED_RUN_DIR/go" ]; do sleep 0.05; done'


@pytest.fixture
def environment(tmp_path):
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "nvidia-smi").write_text(NVIDIA_SMI)
    (folder / "nvidia-smi").chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}", "CUDA_VISIBLE_DEVICES": "1"}


def test_a_run_samples_its_own_gpu_and_warns_of_others_that_use_it(start, wait_until, environment):
    run = start(UNTIL, ranks=1, gpus=1, environment=environment)
    attempt = run.directory.attempt(1)
    wait_until(lambda: run.events("gpus-in-use"))
    wait_until(lambda: "gpus" in ((read_json(attempt.live) or {}).get("nodes") or [{}])[0])
    (gpu,) = read_json(attempt.live)["nodes"][0]["gpus"]
    assert (gpu["gpu"], gpu["name"], gpu["memory_total"]) == (0, "NVIDIA A100", 80 << 30)
    (run.directory.path / "go").touch()

    assert run.wait() == 0
    (warning,) = run.exit["warnings"]
    host = run.events("gpus-in-use")[0]["host"]
    assert warning["message"] == (
        f"other programs used GPU 0 on {host} when the ranks started: 1 process, 32.5 GB of GPU memory"
    )
    about = next(entry for entry in read_journal(attempt.samples(0)) if "interval" in entry)
    assert (about["gpu_source"], about["gpus"]["0"]["uuid"]) == ("nvidia-smi", "GPU-2b")
