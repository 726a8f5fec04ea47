"""A sweep whose jobs draw trials: which job has a trial, and what stopping it means."""

from __future__ import annotations

import shutil
from unittest.mock import Mock

import pytest

from serried.base.errors import RunNotFoundError
from serried.base.files import make_directory, write_json
from serried.records import status as status_module
from serried.records import stopping
from serried.records.index import find
from serried.records.record import Record
from serried.records.status import task_of
from serried.schedulers.interface import Job
from serried.schema import layout, names
from standing import NOW, the


@pytest.fixture
def run(make):
    """Five trials; job 0 has run trial 0, and runs trial 2 now."""

    def made(offsets=(), job="11"):
        made = make(indices=range(5), job=job)
        plan = made.plan._replace(array=made.plan.array._replace(draws=True, offsets=offsets))
        write_json(made.record.directory.plan, plan.to_json())
        made.record = Record.load(made.plan.run)
        for trial in (0, 2):
            made.attempt(task=trial)
            made.where.task(trial).worker.write_text("0")
        made.ending(task=0)
        return made

    return made


def test_a_job_that_runs_several_trials_does_not_name_the_whole_sweep(run):
    made = run()
    assert str(find("11")) == made.plan.run
    with pytest.raises(RunNotFoundError, match="each job of the sweep `k3f9q2` runs several trials"):
        find("11_2")


def tell(slurm, job, *states):
    for index, state in enumerate(states):
        slurm.tell(Job(job, index, state, nodes=(f"n{index}",) if state == "RUNNING" else ()))


def test_a_drawn_trial_has_the_state_of_its_job_and_others_of_their_own(run, slurm):
    made = run()
    tell(slurm, "11", "RUNNING", *["PENDING"] * 4)

    status = the(slurm, made)

    assert status.to_json()["tasks"] == {"COMPLETED": "0", "RUNNING": "2", "PENDING": "1,3-4"}
    assert task_of(status, 2).node_names == ("n0",)
    assert slurm.polls == [("11", "11_0")]
    assert made.record.job_of("11", 2) == "11_0"
    assert made.record.scheduler_log(2).name == "scheduler-0.log"


def test_a_drawn_trial_ends_with_its_job_and_no_trial_before_it_does(run, slurm):
    made = run()
    tell(slurm, "11", "NODE_FAIL", *["PENDING"] * 4)
    assert the(slurm, made).to_json()["tasks"] == {"COMPLETED": "0", "NODE_FAIL": "2", "PENDING": "1,3-4"}


def test_a_job_that_was_cancelled_because_its_trial_was_drawn_says_nothing_of_the_trial(run, slurm):
    made = run()
    tell(slurm, "11", "RUNNING", "PENDING", "CANCELLED", "PENDING", "PENDING")
    assert the(slurm, made).to_json()["tasks"] == {"COMPLETED": "0", "RUNNING": "2", "PENDING": "1,3-4"}


def test_the_job_of_a_trial_that_another_job_of_the_array_runs(run, slurm):
    made = run(offsets=(0, 2), job="11,12")
    tell(slurm, "11", "RUNNING", "PENDING")
    tell(slurm, "12", *["PENDING"] * 3)

    status = the(slurm, made)

    assert status.to_json()["tasks"] == {"COMPLETED": "0", "RUNNING": "2", "PENDING": "1,3-4"}
    assert [task_of(status, trial).job for trial in (1, 2, 3)] == ["11", "11", "12"]
    assert made.record.job_of("11", 2) == "11_0"


def test_stopping_a_trial_that_waits_keeps_other_jobs_from_drawing_it(run, slurm, monkeypatch):
    monkeypatch.setattr(stopping, "registered", slurm)
    made = run()
    tell(slurm, "11", "RUNNING", *["PENDING"] * 4)
    stopping.cancel(task_of(the(slurm, made), 3), [3], now=False)
    assert slurm.cancelled == ["11_3"]
    assert made.where.task(3).worker.read_text() == names.WITHDRAWN
    assert not made.where.task(4).worker.exists()


def test_a_stopped_trial_is_cancelled_though_its_job_still_waits(run, slurm):
    made = run()
    tell(slurm, "11", "RUNNING", *["PENDING"] * 4)
    layout.withdraw(made.where, 3, 0o700)
    assert the(slurm, made).to_json()["tasks"] == {"COMPLETED": "0", "CANCELLED": "3", "RUNNING": "2", "PENDING": "1,4"}


@pytest.mark.parametrize("word", ["CANCELLED", "FAILED", "NODE_FAIL"])
def test_no_job_draws_a_trial_any_more_once_a_reader_reports_the_end_of_its_own_job(run, slurm, word):
    made = run()
    tell(slurm, "11", "RUNNING", "PENDING", "PENDING", word, "PENDING")
    assert the(slurm, made).tasks[3].state == word
    assert layout.owner_of(made.where, 3) == names.WITHDRAWN
    tell(slurm, "11", "RUNNING", "PENDING", "PENDING", "RUNNING", "PENDING")
    assert the(slurm, made).tasks[3].state == word


def test_a_trial_that_a_job_draws_while_a_reader_looks_has_the_state_of_that_job(run, slurm, monkeypatch):
    made = run()
    tell(slurm, "11", "RUNNING", "PENDING", "PENDING", "CANCELLED", "PENDING")

    def gather(*words):
        looks.append(real(*words))
        if len(looks) == 2:  # the last one, after the scheduler's answer
            make_directory(made.where.task(3).path)
            made.where.task(3).worker.write_text("0")
        return looks[-1]

    real, looks = status_module.gather, []
    with monkeypatch.context() as patched:
        patched.setattr(status_module, "gather", gather)
        assert the(slurm, made).tasks[3].state == "RUNNING"
    made.ending(task=3)
    tell(slurm, "11", "COMPLETED", *["CANCELLED"] * 4)
    assert the(slurm, made, now=NOW + 500).tasks[3].state == "COMPLETED"


def test_the_end_of_a_trial_that_cannot_be_withdrawn_is_not_final(run, slurm, monkeypatch):
    made = run()
    tell(slurm, "11", "RUNNING", "PENDING", "PENDING", "CANCELLED", "PENDING")
    with monkeypatch.context() as patched:
        patched.setattr(status_module, "withdraw", Mock(side_effect=OSError))
        for moment in (NOW, NOW + 500):
            assert the(slurm, made, now=moment).tasks[3].state == "CANCELLED"
    make_directory(made.where.task(3).path)
    made.where.task(3).worker.write_text("0")
    assert the(slurm, made, now=NOW + 600).tasks[3].state == "RUNNING"


def test_reading_the_status_of_a_deleted_sweep_creates_nothing(run, slurm):
    made = run()
    shutil.rmtree(made.where.path)
    tell(slurm, "11", *["CANCELLED"] * 5)
    assert the(slurm, made).tasks[3].state == "CANCELLED"
    assert not made.where.path.exists()


def test_cancelling_a_drawn_trial_cancels_the_job_that_runs_it(run, slurm, monkeypatch):
    monkeypatch.setattr(stopping, "registered", slurm)
    made = run()
    tell(slurm, "11", "RUNNING", *["PENDING"] * 4)
    stopping.cancel(task_of(the(slurm, made), 2), [2], now=True)
    assert slurm.cancelled == ["11_0"]
