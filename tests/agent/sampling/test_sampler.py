"""The sampler of real runs."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

import fake_nvml
from serried.base.files import read_journal, read_json
from serried.schema.plan import ReportedMetric, Sampling

FAST = {"sampling.node_side.DELAY_SECONDS": 0.05, "sampling.node_side.RESTART_SECONDS": 0.05}
STEPS = ReportedMetric("loss", r"stdout:step (?P<step>\d+)/(?P<total>\d+) loss (\S+)")


def waiting(tmp_path):
    """A rank that prints a step, and ends when the test says so."""
    return f"echo step $((RANK + 3))/90 loss 0.5; while [ ! -e '{tmp_path}/go' ]; do sleep 0.05; done; echo step 9/90"


def ranks_of(run):
    """By number, as live.json has them."""
    document = read_json(run.place.attempt(1).live) or {"nodes": []}
    return {rank["rank"]: rank for node in document["nodes"] for rank in node["ranks"]}


def lines_of(run, node=0):
    return read_journal(run.place.attempt(1).samples(node))


def test_what_each_node_measures_is_in_its_file_and_in_live_json(start, tmp_path, wait_until):
    task = {"indices": [0, 1], "task": 1}
    run = start(waiting(tmp_path), nodes=2, ranks=2, metric=STEPS, sampling=Sampling(1), seconds=FAST, **task)
    wait_until(lambda: ["cpu" in rank for rank in ranks_of(run).values()] == 4 * [True])
    ranks = ranks_of(run)
    (tmp_path / "go").touch()
    assert run.wait() == 0, run.log
    assert {number: (rank["step"], rank["total_steps"], rank["metrics"]) for number, rank in ranks.items()} == {
        number: (number + 3, 90, {"loss": 0.5}) for number in range(4)
    }
    assert all(rank["memory"] > 0 and rank["output_age"] >= 0 for rank in ranks.values())
    for node in range(2):
        header, *periods = lines_of(run, node)
        assert set(header["node"]) == {"cpus", "memory", "memory_scope"}
        assert header["interval"] == 1
        assert set(periods[0]["ranks"]) == {str(2 * node), str(2 * node + 1)}
        used = periods[0]["node"]
        assert {"cpu", "memory", "disk_free"} <= set(used)
        assert used["memory_peak"] >= used["memory"][2] > 0
        assert (run.place.attempt(1).samples(node).stat().st_mode & 0o777) == 0o600


def test_a_killed_sampler_is_replaced_and_the_run_is_not_harmed(start, tmp_path, wait_until):
    run = start(waiting(tmp_path), ranks=1, sampling=Sampling(1), seconds=FAST)
    first = wait_until(lambda: run.pid_of("sample"))
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: run.pid_of("sample") not in {None, first})
    wait_until(lambda: ranks_of(run))
    (tmp_path / "go").touch()
    assert run.wait() == 0, run.log
    assert lines_of(run)[-1]["ranks"]
    assert not run.pid_of("sample")


def test_a_sampler_that_hangs_harms_no_run_and_ends_with_it(start, tmp_path, wait_until):
    run = start(waiting(tmp_path), ranks=1, sampling=Sampling(1), seconds=FAST)
    os.kill(wait_until(lambda: run.pid_of("sample")), signal.SIGSTOP)
    (tmp_path / "go").touch()
    assert run.wait() == 0, run.log
    wait_until(lambda: not run.pid_of("sample"))


def test_a_sampler_that_cannot_run_is_given_up_and_the_run_is_not_harmed(start, tmp_path, wait_until):
    crash = "\ndef main(arguments):\n    raise SystemExit(1)\n"
    run = start(waiting(tmp_path), ranks=1, seconds=FAST, sampling=Sampling(1), code={"sampling.worker": crash})
    wait_until(lambda: "it is not restarted" in run.log)
    (tmp_path / "go").touch()
    assert run.wait() == 0, run.log
    assert lines_of(run) == []


def test_a_hung_driver_leaves_only_the_values_of_gpus_missing(start, tmp_path, wait_until):
    hang = "\ndef open_source(visible):\n    import time\n    time.sleep(600)\n"
    gpus = "\nAttempt.visible_gpus = None\n"
    code = {"sampling.worker": hang, "attempt": gpus}
    run = start(waiting(tmp_path), ranks=1, sampling=Sampling(1), seconds=FAST, code=code)
    wait_until(lambda: "cpu" in ranks_of(run).get(0, {}))
    (tmp_path / "go").touch()
    assert run.wait() == 0, run.log
    assert lines_of(run)[-1]["ranks"]


def test_sampling_can_be_off(start, tmp_path, wait_until):
    run = start(waiting(tmp_path), ranks=1, sampling=Sampling(None), seconds=FAST)
    wait_until(run.output)
    assert not run.pid_of("sample")
    (tmp_path / "go").touch()
    assert run.wait() == 0, run.log
    assert lines_of(run) == []


def test_a_full_disk_harms_nothing(start, tmp_path, wait_until):
    full = "\nclass _Full:\n    def __getattr__(self, name):\n        return getattr(_os, name)\n"
    full += "    def open(self, *_):\n        raise OSError(28, 'No space left on device')\n_os, os = os, _Full()\n"
    code = {"sampling.worker": full}
    run = start(waiting(tmp_path), ranks=1, sampling=Sampling(1), seconds=FAST, code=code)
    wait_until(lambda: "cpu" in ranks_of(run).get(0, {}))
    (tmp_path / "go").touch()
    assert run.wait() == 0, run.log
    assert lines_of(run) == []


LIBRARY = Path(fake_nvml.__file__).read_text().replace("from __future__ import annotations\n", "")
GPUS = """
CDLL = lambda name: FakeLibrary(
    [FakeGpu("GPU-1a", "NVIDIA A100", 80 << 30), FakeGpu("GPU-2b", "NVIDIA A100", 80 << 30, processes={1: 31000 << 20})]
)
"""
UNTIL = 'until [ -e "$SERRIED_RUN_DIR/go" ]; do sleep 0.05; done'


@pytest.mark.runs
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
