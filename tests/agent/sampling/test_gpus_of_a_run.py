"""GPUs of a real run, whose sampler has the stand-in of tests/fake_nvml.py: this machine needs no GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

import fake_nvml
from serried.base.files import read_journal, read_json

pytestmark = pytest.mark.runs

LIBRARY = Path(fake_nvml.__file__).read_text().replace("from __future__ import annotations\n", "")
GPUS = """
CDLL = lambda name: FakeLibrary(
    [FakeGpu("GPU-1a", "NVIDIA A100", 80 << 30), FakeGpu("GPU-2b", "NVIDIA A100", 80 << 30, processes={1: 31000 << 20})]
)
"""
UNTIL = 'until [ -e "$SERRIED_RUN_DIR/go" ]; do sleep 0.05; done'


def test_a_run_samples_its_own_gpu_and_warns_of_others_that_use_it(start, wait_until):
    code = {"sampling.nvml": LIBRARY + GPUS}
    run = start(UNTIL, ranks=1, gpus=1, code=code, environment={"CUDA_VISIBLE_DEVICES": "1"})
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
    assert (about["gpu_source"], about["gpus"]["0"]["uuid"]) == ("nvml", "GPU-2b")
