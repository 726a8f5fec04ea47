"""`serried submit` killed, and its sbatch failing, at every step: then there is one job or none, and it is known."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time

import pytest

import command_line
from killing import Cluster, kill
from serried.records.index import records
from serried.schema.names import WITHDRAWN
from serried.submission.reconcile import reconcile

pytestmark = pytest.mark.runs


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    made = Cluster(tmp_path, monkeypatch)
    yield made
    made.end()


def found_out(record) -> tuple[str, str | None]:
    """What a record says once commands have looked at it for long enough."""
    now = time.time()
    for later in (100, 200):
        reconcile(record, now + later)
    (submission,) = record.submissions
    return submission.state, submission.job


def test_a_submission_that_goes_well_is_one_job(cluster):
    code, out, err = cluster.submit()
    (record,) = records()
    assert (code, out, cluster.jobs) == (0, f"{record.id}\n", ["1"])
    assert f"submitted {record.id} as job 1 of slurm" in err
    assert found_out(record) == ("submitted", "1")


def test_killed_before_it_asked_nothing_was_submitted(cluster, wait_until):
    """Its sbatch never answers and accepts nothing: as good as a kill before the scheduler heard of it."""
    cluster.set("FAKE_SLURM_MODE", "hang")
    process = cluster.start()
    wait_until(lambda: cluster.calls("sbatch"))
    kill(process)
    cluster.recover()
    (record,) = records()
    assert record.submissions[0].state == "submitting"
    assert found_out(record) == ("failed", None)
    assert (cluster.jobs, cluster.calls("sbatch")) == ([], 1)


def test_killed_while_sbatch_hangs_after_it_was_accepted_the_job_is_found(cluster, wait_until):
    cluster.set("FAKE_SLURM_MODE", "accept-then-hang")
    process = cluster.start()
    wait_until(lambda: cluster.jobs)
    kill(process)
    cluster.recover()
    (record,) = records()
    assert found_out(record) == ("submitted", "1")
    assert (cluster.jobs, cluster.calls("sbatch")) == (["1"], 1)


AT_ITS_BEGINNING = [(0, milliseconds) for milliseconds in range(0, 150, 15)]
WHILE_IT_ASKS = [(1, milliseconds) for milliseconds in range(0, 200, 40)]


@pytest.mark.parametrize(("calls", "milliseconds"), AT_ITS_BEGINNING + WHILE_IT_ASKS)
def test_killed_at_any_moment_there_is_one_job_or_none_and_it_is_known(cluster, wait_until, calls, milliseconds):
    """That long after it began, or after it called sbatch."""
    process = cluster.start()
    wait_until(lambda: cluster.calls("sbatch") >= calls)
    time.sleep(milliseconds / 1000)
    kill(process)
    states = [found_out(record) for record in records()]
    assert len(cluster.jobs) <= 1
    known = [job for state, job in states if state == "submitted"]
    assert known == cluster.jobs
    assert [state for state, job in states if job is None] == ["failed"] * (len(states) - len(known))


@pytest.mark.parametrize("mode", ["accept-then-die", "accept-then-time-out", "accept-then-hang"])
def test_an_sbatch_that_accepts_and_does_not_say_so_is_uncertain_and_then_found(cluster, mode):
    if mode == "accept-then-hang":
        cluster.set("SERRIED_SCHEDULER_TIMEOUT", "5")
    code, out, err = cluster.submit(mode)
    (record,) = records()
    assert (code, out) == (3, "")
    assert "the next `serried ps` checks the job" in err
    assert record.submissions[0].state == "uncertain"

    cluster.recover()
    if mode != "accept-then-hang" or cluster.jobs:
        assert found_out(record) == ("submitted", "1")
    else:  # it was too slow even to accept
        assert found_out(record) == ("failed", None)
    assert cluster.calls("sbatch") <= 1


def test_an_sbatch_that_is_killed_after_it_printed_the_id_has_submitted(cluster):
    assert cluster.submit("print-then-die")[0] == 0
    assert found_out(records()[0]) == ("submitted", "1")


def test_a_job_accepted_after_two_looks_found_nothing_ends_itself(cluster):
    cluster.set("SERRIED_SCHEDULER_TIMEOUT", "2")
    cluster.submit("hang")
    cluster.recover()
    (record,) = records()
    assert found_out(record) == ("failed", None)
    (submission,) = record.submissions

    late = subprocess.run(
        ["bash", record.where.job_script, submission.token],
        env={**os.environ, "SLURM_JOB_ID": "99", "SLURM_JOB_NODELIST": "n1"},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )

    assert late.returncode == 0
    assert "was withdrawn" in late.stdout + late.stderr
    assert record.where.claim(submission.token).read_text() == WITHDRAWN
    assert list(record.where.path.glob("attempts/*")) == []


@pytest.mark.parametrize("mode", ["refuse", "refuse-option"])
def test_what_slurm_refuses_is_an_error_in_its_words_with_nothing_left(cluster, mode, tmp_path):
    code, out, err = cluster.submit(mode)
    assert (code, out, records()) == (2, "", [])
    assert "error: Slurm refused the job\n  | sbatch: " in err
    assert [path.name for path in (tmp_path / "scratch/project").iterdir()] == ["sources"]


def test_an_unreachable_controller_is_exit_code_3_with_nothing_left(cluster, tmp_path):
    code, out, err = cluster.submit("unreachable")
    assert (code, out, records()) == (3, "", [])
    assert "nothing was submitted" in err
    assert "Unable to contact slurm controller" in err
    assert [path.name for path in (tmp_path / "scratch/project").iterdir()] == ["sources"]


def test_ctrl_c_while_sbatch_runs_keeps_the_record(cluster, wait_until):
    cluster.set("FAKE_SLURM_MODE", "accept-then-hang")
    process = cluster.start()
    wait_until(lambda: cluster.jobs)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=900)
    cluster.recover()
    assert process.returncode == 3
    assert "do not submit it again" in err
    assert found_out(records()[0]) == ("submitted", "1")


def test_ps_finds_out_by_itself(cluster):
    cluster.submit("accept-then-die")
    cluster.recover()
    (run,) = json.loads(command_line.here("ps", "--json").stdout)["runs"]
    assert (run["state"], run["job"]) == ("PENDING", "1")


def test_forget_gives_up_what_stays_uncertain_and_until_then_nothing_repeats_it(cluster):
    cluster.set("SERRIED_SCHEDULER_TIMEOUT", "2")
    cluster.submit("hang")
    cluster.set("FAKE_SLURM_MODE", "unreachable")
    (record,) = records()
    again = command_line.here("rerun", "-y", record.id)
    uncertain = f"error: the scheduler may have the job of run `{record.id}`: both would train\n\nhint: `serried wait"
    assert (again.returncode, again.stderr.startswith(uncertain)) == (3, True)
    done = command_line.here("stop", "--forget", "-y", record.id)
    assert "if its job starts after all, it ends itself" in done.stderr
    assert record.submissions[0].state == "failed"
    assert record.where.claim(record.submissions[0].token).read_text() == WITHDRAWN
