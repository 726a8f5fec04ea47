"""An array that is several jobs: which job has a task, and under which index its scheduler knows it."""

from __future__ import annotations

import pytest

from serried.base.files import write_json
from serried.records import stopping
from serried.records.record import Record
from serried.records.status import task_of
from serried.schedulers.interface import Job
from serried.schema import names
from standing import the

OFFSETS = (0, 4, 8)


@pytest.fixture
def run(make):
    """Ten tasks in jobs 11, 12 and 13."""
    made = make(indices=range(10), job="11,12,13")
    plan = made.plan._replace(array=made.plan.array._replace(offsets=OFFSETS))
    write_json(made.record.directory.plan, plan.to_json())
    made.record = Record.load(made.plan.run)
    return made


def tell(slurm, job, *states):
    for index, state in enumerate(states):
        slurm.tell(Job(job, index, state, nodes=("n4",) if state == "RUNNING" else ()))


def test_what_the_scheduler_says_of_its_own_indices_is_said_of_the_tasks(run, slurm):
    tell(slurm, "11", *["CANCELLED"] * 4)
    tell(slurm, "12", "PENDING", "RUNNING", "PENDING", "PENDING")
    tell(slurm, "13", "PENDING", "RUNNING")
    run.attempt(task=5)

    status = the(slurm, run)

    assert status.to_json()["tasks"] == {"CANCELLED": "0-3", "PENDING": "4,6-8", "RUNNING": "5,9"}
    assert status.job == "11,12,13"
    assert [task_of(status, index).job for index in (0, 5, 9)] == ["11", "12", "13"]
    assert task_of(status, 5).node_names == ("n4",)
    assert slurm.polls == [("11", "12", "13", "12_1")]


def test_what_was_seen_of_a_task_is_remembered_under_its_own_index(run, slurm):
    tell(slurm, "11", *["PENDING"] * 4)
    tell(slurm, "12", *["PENDING"] * 4)
    tell(slurm, "13", "PENDING", "CANCELLED")
    the(slurm, run)
    slurm.jobs.pop(("13", 1))
    assert the(slurm, run).to_json()["tasks"] == {"PENDING": "0-8", "CANCELLED": "9"}


def test_one_task_is_cancelled_under_its_schedulers_index(run, slurm, monkeypatch):
    monkeypatch.setattr(stopping, "registered", slurm)
    for job, count in (("11", 4), ("12", 4), ("13", 2)):
        tell(slurm, job, *["PENDING"] * count)
    stopping.cancel(task_of(the(slurm, run), 6), [6], now=False)
    assert slurm.cancelled == ["12_2"]


def test_stopping_a_run_takes_all_its_claims_and_cancels_all_its_jobs(run, slurm, monkeypatch):
    monkeypatch.setattr(stopping, "registered", slurm)
    for job, count in (("11", 4), ("12", 4), ("13", 2)):
        tell(slurm, job, *["PENDING"] * count)
    status = the(slurm, run)
    stopping.cancel(status, stopping.left(status, ()), now=True)
    assert slurm.cancelled == ["11", "12", "13"]
    claims = {path.name: path.read_text() for path in run.where.claims.iterdir()}
    assert claims == dict.fromkeys((f"k3f9q2_{offset}-1" for offset in OFFSETS), names.WITHDRAWN)


def test_jobs_that_are_accepted_but_held_are_no_submission_yet(run, slurm):
    run.submit("uncertain", job="11,12")
    assert the(slurm, run).state == "UNCERTAIN"
    assert slurm.polls == []
