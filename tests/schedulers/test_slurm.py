"""Slurm when something goes wrong, on the fake; and its accounts, on the lab."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from building import a_plan
from serried.base.errors import SchedulerUnreachable, SubmissionRefused, SubmissionUncertain, UsageError
from serried.schedulers import client
from serried.schedulers.slurm.commands import Slurm
from serried.schema import names


@pytest.fixture
def slurm(fake_slurm):
    fake_slurm()
    return Slurm(timeout=600)


@pytest.fixture
def unshared(monkeypatch):
    """Every question is asked anew."""
    monkeypatch.setattr(client, "SHORTEST_SECONDS", 0.0)
    monkeypatch.setattr(client, "LONGEST_SECONDS", 0.0)


@pytest.fixture
def submit(tmp_path):
    def submit(slurm, script="true", token="k3f9q2-1", **plan):
        made = a_plan(token.partition("-")[0], root=tmp_path / "scratch", nodes=1, **plan)
        directory = Path(made.directory)
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "job.sh").write_text(f"#!/bin/bash\n{script}\n")
        return slurm.submit(slurm.submission(made, token, os.environ))

    return submit


@pytest.mark.parametrize("text", ["soon", "-1", "0", "nan", "inf"])
def test_a_time_out_that_is_none_is_an_error(text, monkeypatch):
    monkeypatch.setenv("SERRIED_SCHEDULER_TIMEOUT", text)
    with pytest.raises(UsageError, match="not a number of seconds"):
        Slurm()


def states(slurm, *ids):
    return {task: job.state for (_, task), job in slurm.poll(ids).items()}


def test_an_answer_is_read_once(slurm, submit, monkeypatch):
    job = submit(slurm)
    texts = []
    read = Slurm.read
    monkeypatch.setattr(Slurm, "read", lambda self, answer: texts.append([*answer]) or read(self, answer))

    assert [*slurm.poll([job])] == [(job, None)]
    assert texts == [["squeue"]]


@pytest.mark.parametrize(
    ("mode", "error"),
    [
        ("refuse", SubmissionRefused),
        ("refuse-option", SubmissionRefused),
        ("unreachable", SchedulerUnreachable),
        ("accept-then-time-out", SubmissionUncertain),
        ("accept-then-die", SubmissionUncertain),
    ],
)
def test_each_failure_of_sbatch_has_its_own_error_and_an_accepted_job_is_found_by_its_token(
    slurm, submit, fake_slurm, mode, error
):
    fake_slurm(mode)
    with pytest.raises(error) as raised:
        submit(slurm)
    assert raised.value.details is not None or mode == "accept-then-die"
    fake_slurm()
    if error is SubmissionUncertain:
        assert slurm.find("k3f9q2-1", time.time()) == "1"


@pytest.mark.parametrize("mode", ["hang", "accept-then-hang"])
def test_an_sbatch_that_does_not_answer_leaves_it_uncertain(submit, fake_slurm, mode):
    fake_slurm(mode)
    with pytest.raises(SubmissionUncertain):
        submit(Slurm(timeout=1))


@pytest.mark.parametrize("mode", ["print-then-die", "banner"])
def test_the_id_counts_behind_a_banner_and_from_an_sbatch_that_dies_after_it(slurm, submit, fake_slurm, mode):
    fake_slurm(mode)
    assert submit(slurm) == "1"


def test_a_controller_that_is_away_is_no_state(slurm, submit, fake_slurm):
    job = submit(slurm)
    fake_slurm("unreachable")
    with pytest.raises(SchedulerUnreachable):
        slurm.poll([job])
    with pytest.raises(SchedulerUnreachable):
        slurm.find("k3f9q2-1")
    with pytest.raises(SchedulerUnreachable):
        slurm.cancel([job])


def test_a_question_that_takes_too_long_is_unreachable(submit, slurm, fake_slurm):
    job = submit(slurm)
    fake_slurm("slow")
    with pytest.raises(SchedulerUnreachable):
        Slurm(timeout=1).poll([job])


def test_a_squeue_that_is_too_old_to_be_read_is_said_to_be_and_nothing_looks_forgotten(slurm, submit, fake_slurm):
    job = submit(slurm)
    fake_slurm("old")
    with pytest.raises(SchedulerUnreachable, match=r"20\.11 or later"):
        slurm.poll([job])


@pytest.mark.usefixtures("unshared")
def test_what_the_queue_forgot_is_in_the_accounts(slurm, submit, monkeypatch, wait_until):
    monkeypatch.setenv("FAKE_SLURM_KEEP", "0")
    job = submit(slurm, "exit 3")
    wait_until(lambda: states(slurm, job) == {None: names.FAILED})
    assert slurm.poll([job])[job, None].exit_code == 3
    assert slurm.find("k3f9q2-1") == job


@pytest.mark.usefixtures("unshared")
def test_a_task_that_the_queue_forgot_is_asked_for_by_name(slurm, submit, monkeypatch, wait_until):
    monkeypatch.setenv("FAKE_SLURM_KEEP", "0")
    job = submit(slurm, "[[ $SLURM_ARRAY_TASK_ID == 0 ]] || sleep 600", indices=[0, 1])
    wait_until(lambda: states(slurm, job) == {1: names.RUNNING})
    assert states(slurm, job, f"{job}_0") == {0: names.COMPLETED, 1: names.RUNNING}
    slurm.cancel([job])
    wait_until(lambda: states(slurm, f"{job}_1") == {1: names.CANCELLED})


@pytest.mark.usefixtures("unshared")
def test_without_accounts_a_forgotten_job_is_absent_and_no_error(slurm, submit, fake_slurm, monkeypatch, wait_until):
    monkeypatch.setenv("FAKE_SLURM_KEEP", "0")
    fake_slurm("no-accounts")
    job = submit(slurm)
    wait_until(lambda: states(slurm, job) == {})
    assert slurm.find("k3f9q2-1") is None


def test_accounts_that_are_down_cannot_tell_whether_a_job_was_accepted(slurm, fake_slurm):
    fake_slurm("accounts-down")
    with pytest.raises(SchedulerUnreachable):
        slurm.find("k3f9q2-1")


def test_two_processes_that_ask_within_seconds_take_one_squeue(slurm, submit, tmp_path, monkeypatch):
    monkeypatch.setattr(client, "SHORTEST_SECONDS", 900.0)
    job = submit(slurm)
    for each in (slurm, Slurm(), Slurm()):
        each.poll([job])
    calls = [json.loads(line)["command"] for line in (tmp_path / "slurm" / "calls").read_text().splitlines()]
    assert calls == ["sbatch", "squeue"]
    assert dict(slurm.calls) == {"sbatch": 1, "squeue": 1}


def test_a_job_that_is_younger_than_the_shared_answer_is_asked_for_anew(slurm, submit):
    slurm.poll([submit(slurm)])
    assert states(slurm, submit(slurm, token="m4g8r3-1")) != {}


def test_after_a_cancellation_nobody_is_shown_the_answer_from_before(slurm, submit, wait_until):
    job = submit(slurm, "sleep 600")
    wait_until(lambda: states(slurm, job) == {None: names.RUNNING})
    slurm.cancel([job])
    slurm.poll([job])
    assert slurm.calls["squeue"] >= 2


def test_many_jobs_and_tasks_take_one_squeue_and_one_sacct(slurm, submit):
    ids = [submit(slurm), "900001", "900002", "900003_7"]
    slurm.poll(ids)
    assert dict(slurm.calls) == {"sbatch": 1, "squeue": 1, "sacct": 1}


def test_no_ids_take_no_question(slurm):
    assert (slurm.poll([]), slurm.cancel([]), dict(slurm.calls)) == ({}, None, {})


def test_a_path_that_lacks_sbatch_does_not_hide_it(slurm, tmp_path):
    plan = a_plan(root=tmp_path / "scratch", nodes=1)
    Path(plan.directory).mkdir(parents=True)
    (Path(plan.directory) / "job.sh").write_text("#!/bin/bash\ntrue\n")
    environment = {"PATH": "/usr/bin:/bin"} | {k: v for k, v in os.environ.items() if k.startswith("FAKE_")}
    assert slurm.submit(slurm.submission(plan, "k3f9q2-1", environment)) == "1"


@pytest.mark.usefixtures("unshared")
def test_the_lab_s_accounts_know_what_its_queue_has_forgotten(lab_with_accounting, monkeypatch, submit, wait_until):
    for name, value in lab_with_accounting.variables.items():
        monkeypatch.setenv(name, value)
    slurm = Slurm()
    monkeypatch.setattr(slurm, "_squeue", lambda fields: "")  # noqa: ARG005 - MinJobAge is minutes
    start = time.time()
    failed, array = submit(slurm, "exit 3"), submit(slurm, "exit $SLURM_ARRAY_TASK_ID", "m4g8r3-1", indices=[0, 4])
    wait_until(lambda: states(slurm, failed, array, f"{array}_0", f"{array}_4").keys() == {None, 0, 4})
    wait_until(lambda: set(states(slurm, failed, array).values()) == {names.FAILED, names.COMPLETED})
    found = slurm.poll([failed, array], since=start)
    expected = {(failed, None): (names.FAILED, 3), (array, 0): (names.COMPLETED, 0), (array, 4): (names.FAILED, 4)}
    assert {key: (job.state, job.exit_code) for key, job in found.items()} == expected
    assert (slurm.find("k3f9q2-1", start), slurm.find("m4g8r3-1", start)) == (failed, array)
