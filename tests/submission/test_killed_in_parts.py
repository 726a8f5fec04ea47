"""`serried submit` of an array in several jobs, killed at every step: then all of them begin, or none."""

from __future__ import annotations

import json
import os
import signal
import time

import pytest

import command_line
from killing import Cluster, kill
from serried.records.index import records
from serried.submission.reconcile import reconcile
from waiting import until

pytestmark = pytest.mark.runs

TEN = ("--array", "0-9")


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """It takes no array of more than four tasks, so that ten are three jobs."""
    made = Cluster(tmp_path, monkeypatch)
    made.set("FAKE_SLURM_ARRAY", "4")
    yield made
    made.end()


def found_out(record) -> tuple[str, list[str]]:
    now = time.time()
    for later in (100, 200):
        reconcile(record, now + later)
    (submission,) = record.submissions
    return submission.state, list(submission.jobs)


def all_or_none(cluster) -> str:
    """Whether all jobs of the run may begin, or none is left; anything else fails."""
    (record,) = records()
    state, jobs = found_out(record)
    if state == "submitted":
        assert (jobs, cluster.jobs, cluster.released[-1]) == (["1", "2", "3"], ["1", "2", "3"], ["1", "2", "3"])
        assert cluster.live == ["1", "2", "3"]
    else:
        assert (state, cluster.released) == ("failed", [])
        until(lambda: cluster.live == [])
    assert cluster.calls("sbatch") <= 3
    return state


def test_an_array_above_the_limit_is_several_jobs_that_begin_together(cluster):
    flags = ("submit", "-y", "--cluster", "slurm", "--set", 'resources.extra=["--begin=now+1hour"]', *TEN, "--", "true")
    done = command_line.serried(*flags, directory=cluster.project, environ=os.environ, timeout=900)
    (record,) = records()
    assert f"submitted {record.id} as jobs 1, 2, 3 of slurm" in done.stderr
    assert "10 tasks (0-9), in 3 jobs" in done.stderr
    assert cluster.released == [["1", "2", "3"]]
    assert all_or_none(cluster) == "submitted"


@pytest.mark.parametrize("accepted", [1, 2])
def test_killed_while_a_later_job_is_asked_for_none_begins(cluster, wait_until, accepted):
    cluster.set("FAKE_SLURM_MODE", "hang")
    cluster.set("FAKE_SLURM_FROM", str(accepted + 1))
    process = cluster.start(*TEN)
    wait_until(lambda: cluster.calls("sbatch") == accepted + 1)
    kill(process)
    cluster.recover()
    assert len(cluster.jobs) == accepted
    assert all_or_none(cluster) == "failed"


@pytest.mark.parametrize(("accepted", "state"), [(2, "failed"), (3, "submitted")])
def test_killed_when_a_job_was_accepted_all_begin_or_none(cluster, wait_until, accepted, state):
    cluster.set("FAKE_SLURM_MODE", "accept-then-hang")
    cluster.set("FAKE_SLURM_FROM", str(accepted))
    process = cluster.start(*TEN)
    wait_until(lambda: len(cluster.jobs) == accepted)
    kill(process)
    cluster.recover()
    assert all_or_none(cluster) == state


@pytest.mark.parametrize("mode", ["accept-then-die", "accept-then-time-out"])
def test_a_last_job_of_which_nobody_says_that_it_was_accepted_is_found_and_all_begin(cluster, mode):
    cluster.set("FAKE_SLURM_FROM", "3")
    cluster.set("FAKE_SLURM_MODE", mode)
    process = cluster.start(*TEN)
    _, err = process.communicate(timeout=900)
    assert (process.returncode, cluster.released) == (3, [])
    assert "the next `serried ps` checks the job" in err
    cluster.recover()
    assert all_or_none(cluster) == "submitted"


def test_killed_while_the_jobs_are_released_they_all_begin(cluster, wait_until):
    cluster.set("FAKE_SLURM_MODE", "slow-release")
    process = cluster.start(*TEN)
    wait_until(lambda: cluster.released)
    kill(process)
    cluster.recover()
    assert records()[0].submissions[0].state == "submitting"
    assert all_or_none(cluster) == "submitted"


AT_ITS_BEGINNING = [(0, milliseconds) for milliseconds in range(0, 300, 30)]
WHILE_IT_ASKS = [(calls, milliseconds) for calls in (1, 2, 3, 4) for milliseconds in (0, 20, 100)]


@pytest.mark.parametrize(("calls", "milliseconds"), AT_ITS_BEGINNING + WHILE_IT_ASKS)
def test_killed_at_any_moment_all_jobs_begin_or_none(cluster, wait_until, calls, milliseconds):
    """That long after so many calls of Slurm's commands: three of sbatch, then the release."""
    process = cluster.start(*TEN)
    wait_until(lambda: cluster.calls("sbatch") + len(cluster.released) >= calls)
    time.sleep(milliseconds / 1000)
    kill(process)
    if records():
        all_or_none(cluster)
    else:
        assert cluster.jobs == []


def test_a_later_job_that_is_refused_takes_the_others_back(cluster, tmp_path):
    cluster.set("FAKE_SLURM_FROM", "3")
    cluster.set("FAKE_SLURM_MODE", "refuse")
    process = cluster.start(*TEN)
    out, err = process.communicate(timeout=900)
    assert (process.returncode, out, records()) == (2, "", [])
    assert "error: Slurm refused the job (job 3 of 3 of the array)\n  | sbatch: " in err
    assert (cluster.jobs, cluster.released) == (["1", "2"], [])
    until(lambda: cluster.live == [])
    assert [path.name for path in (tmp_path / "scratch/project").iterdir()] == ["sources"]


def test_jobs_that_are_released_together_cannot_be_held_by_their_user(cluster):
    process = cluster.start(*TEN, "--set", 'resources.extra=["--hold"]')
    _, err = process.communicate(timeout=900)
    assert (process.returncode, cluster.jobs, records()) == (2, [], [])
    assert "are released together, whatever `--hold` in `resources.extra` says" in err


def test_ctrl_c_between_the_jobs_keeps_the_record_and_none_begins(cluster, wait_until):
    cluster.set("FAKE_SLURM_MODE", "hang")
    cluster.set("FAKE_SLURM_FROM", "2")
    process = cluster.start(*TEN)
    wait_until(lambda: cluster.calls("sbatch") == 2)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=900)
    cluster.recover()
    assert process.returncode == 3
    assert "do not submit it again" in err
    assert all_or_none(cluster) == "failed"


def test_forget_cancels_the_jobs_that_were_accepted(cluster, wait_until):
    cluster.set("FAKE_SLURM_MODE", "hang")
    cluster.set("FAKE_SLURM_FROM", "3")
    process = cluster.start(*TEN)
    wait_until(lambda: cluster.calls("sbatch") == 3)
    kill(process)
    cluster.recover()
    (record,) = records()
    assert command_line.here("stop", "--forget", "-y", record.id).returncode == 0
    assert record.submissions[0].state == "failed"
    until(lambda: cluster.live == [])
    (run,) = json.loads(command_line.here("ps", "--json").stdout)["runs"]
    assert run["state"] == "LAUNCH_FAILED"
